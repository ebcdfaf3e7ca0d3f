"""``hami explain``: why a pod is where it is, or is nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from hami_cli import ask
from hami_cli.exits import run
from hami_cli.output import Format, OutputOption, columns, count_of, plain, show, strong
from hami_cli.places import ContextOption, KubeconfigOption, NamespaceOption, SchedulerOption, TokenOption
from hami_cli.pod_names import pod_name
from hami_protocol.event_line import shares_text
from hami_protocol.events import PodPlaced
from hami_protocol.explanation import Explanation


def explain(
    pod: Annotated[str, typer.Argument(help="NAME, NAMESPACE/NAME or pod/NAME.")],
    namespace: NamespaceOption = "",
    output: OutputOption = Format.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    url: SchedulerOption = "",
    token: TokenOption = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Ask the scheduler why a pod is where it is, or what keeps it from being placed.

    [bold]Examples[/]

    $ hami explain too-big

    $ hami explain default/too-big -o yaml
    """
    namespace, name = pod_name(pod, namespace, kubeconfig, context)
    path = f"/v1/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
    content = run("explain", ask.get(ask.scheduler(url, token, kubeconfig, context), path))
    answer = msgspec.json.decode(content, type=Explanation)
    show(answer, Format.JSON if as_json else output, lambda: text(answer))


def text(answer: Explanation) -> str:
    """The answer for people."""
    lines = [
        strong(f"{answer.pod.namespace}/{answer.pod.name}") + f"  {answer.phase or 'not seen yet'}  {answer.node}".rstrip(),
        plain(answer.summary) + _choice(answer),
    ]
    if shares := shares_text(answer.holding.assignments if answer.holding else ()):
        lines.append(f"  {plain(shares)}")
    lines += [f"  warning: {plain(warning)}" for warning in answer.warnings]
    lines += [f"  {plain(cause)}" for cause in answer.causes or _reasons(answer)]
    if answer.nodes:
        rows = [(node.node, node.reason or "fits", node.detail) for node in answer.nodes]
        lines.append(columns(("NODE", "REASON", "DETAIL"), rows))
        if answer.nodes_left_out:
            lines.append(f"... and {count_of(answer.nodes_left_out, 'more node')}")
    return "\n".join(lines)


def _reasons(answer: Explanation) -> Iterable[str]:
    """The short reasons, which an older scheduler sends without causes."""
    return (f"{count_of(count, 'node')}: {reason}" for reason, count in answer.reasons.items())


def _choice(answer: Explanation) -> str:
    """Why this node, where the scheduler that answers has chosen it."""
    placed = answer.verdict.verdict if answer.verdict else None
    if not answer.node or not isinstance(placed, PodPlaced) or placed.node != answer.node:
        return ""
    fitting = placed.fitting_node_count
    best = "the only one" if fitting == 1 else f"the best of {fitting}"
    return f", {best} that fit{'s' if fitting == 1 else ''}, of {placed.node_count} nodes (score {placed.score:.1f})"

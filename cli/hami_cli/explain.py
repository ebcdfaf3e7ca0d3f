"""``hami explain``: why a pod is where it is, or is nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from hami_cli import ask
from hami_cli.exits import run
from hami_cli.output import Format, OutputOption, columns, count_of, plain, show, strong
from hami_cli.places import ContextOption, KubeconfigOption, NamespaceOption, SchedulerOption, TokenOption
from hami_cli.pod_names import pod_name
from hami_protocol.devices import VendorAssignment
from hami_protocol.event_line import shares_text


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
    answer = msgspec.json.decode(content, type=dict[str, Any])
    show(answer, Format.JSON if as_json else output, lambda: text(answer))


def text(answer: dict[str, Any]) -> str:
    """The answer for people."""
    ref = answer["pod"]
    lines = [
        strong(f"{ref['namespace']}/{ref['name']}") + f"  {answer.get('phase') or 'not seen yet'}  {answer.get('node', '')}".rstrip(),
        plain(answer["summary"]) + _choice(answer),
    ]
    if shares := shares_text(msgspec.convert((answer.get("holding") or {}).get("assignments", ()), tuple[VendorAssignment, ...])):
        lines.append(f"  {plain(shares)}")
    lines += [f"  warning: {plain(warning)}" for warning in answer.get("warnings") or ()]
    lines += [f"  {plain(cause)}" for cause in answer.get("causes") or _reasons(answer)]
    if nodes := answer.get("nodes"):
        rows = [(node.get("node", ""), node.get("reason", "") or "fits", node.get("detail", "")) for node in nodes]
        lines.append(columns(("NODE", "REASON", "DETAIL"), rows))
        if left_out := answer.get("nodesLeftOut", 0):
            lines.append(f"... and {count_of(left_out, 'more node')}")
    return "\n".join(lines)


def _reasons(answer: dict[str, Any]) -> Iterable[str]:
    """The short reasons, as an older scheduler has them."""
    return (f"{count_of(count, 'node')}: {reason}" for reason, count in (answer.get("reasons") or {}).items())


def _choice(answer: dict[str, Any]) -> str:
    """Why this node, where the scheduler that answers has chosen it."""
    verdict = (answer.get("verdict") or {}).get("verdict") or {}
    if not answer.get("node") or verdict.get("type") != "pod_placed" or verdict.get("node") != answer["node"]:
        return ""
    fitting, count = verdict["fittingNodeCount"], verdict["nodeCount"]
    best = "the only one" if fitting == 1 else f"the best of {fitting}"
    return f", {best} that fit{'s' if fitting == 1 else ''}, of {count} nodes (score {verdict.get('score', 0.0):.1f})"

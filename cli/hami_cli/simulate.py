"""``hami simulate``: where pods would go, with nodes added. Changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hami_cli import ask, live, manifests, profiles
from hami_cli.exits import FAILED, FOUND, reason_of, run
from hami_cli.output import Format, OutputOption, columns, show
from hami_cli.places import ContextOption, KubeconfigOption, SchedulerOption, TokenOption
from hami_protocol.event_line import shares_text
from hami_protocol.simulation import MOST_PODS, Simulation, SimulationQuestion


def simulate(
    file: Annotated[str, typer.Option("--file", "-f", help="Manifests of pods or of workloads; - for standard input.")],
    add_nodes: Annotated[
        list[str] | None,
        typer.Option("--add-nodes", metavar="PROFILE=N", help=f"Add N such nodes: {', '.join(profiles.USUAL)}, or a YAML file."),
    ] = None,
    copies: Annotated[int, typer.Option(help="So many of each pod.", min=1, max=MOST_PODS)] = 1,
    only_added: Annotated[bool, typer.Option("--only-added", help="Without the cluster's own nodes.")] = False,
    output: OutputOption = Format.TABLE,
    url: SchedulerOption = "",
    token: TokenOption = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
) -> None:
    """Ask where these pods would go, each beside those before it, on the cluster as it is or with nodes added.

    Devices alone are looked at, not CPU, taints or affinity. Exits with 3 where a pod would go nowhere.

    [bold]Examples[/]

    $ hami simulate -f examples/too-big.yaml --add-nodes a100-80gb=2

    $ cat examples/three-shares.yaml | hami simulate -f - --copies 20
    """
    try:
        question = SimulationQuestion(
            pods=tuple(manifests.pods(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"), name=file)),
            copies=copies,
            profiles=tuple(profiles.parse(given) for given in add_nodes or ()),
            only_added=only_added,
        )
    except (manifests.ManifestError, profiles.ProfileError, OSError, UnicodeDecodeError) as exc:
        print(f"hami simulate: {reason_of(exc)}", file=sys.stderr)
        raise SystemExit(FAILED) from exc
    live.progress("asking the scheduler")
    body = msgspec.json.encode(question)
    content = run("simulate", ask.post(ask.scheduler(url, token, kubeconfig, context), "/v1/simulate", body))
    answer = msgspec.json.decode(content, type=Simulation)
    show(answer, output, lambda: text(answer))
    if answer.placed_count < len(answer.pods):
        raise SystemExit(FOUND)


def text(answer: Simulation) -> str:
    """The answer for people."""
    rows = [(pod.namespace, pod.name, pod.node or "-", shares_text(pod.assignments) if pod.node else pod.summary) for pod in answer.pods]
    table = columns(("NAMESPACE", "POD", "NODE", "SHARES, OR WHY NOT"), rows)
    return f"{answer.placed_count} of {len(answer.pods)} pods would be placed, on {answer.node_count} nodes\n\n{table}"

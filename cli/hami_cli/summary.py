"""``hami summary``: how much is booked and how it is spread, of a live cluster or of a pasted metrics page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hami_cli import live
from hami_cli.exits import FAILED, reason_of, run
from hami_cli.output import Format, OutputOption, columns, percent, show
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NatsOption, RegistryOption, TokenOption
from hami_cli.summary_facts import Summary, SummaryError, of_metrics, of_snapshot
from hami_protocol.figures import rounded

MOST_BYTES = 256 * 1024 * 1024
SHOWN_PODS = 20


def summary(
    metrics: Annotated[
        str, typer.Option("--metrics", help="A saved /metrics page of the scheduler, or - for standard input; default: the live cluster.")
    ] = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Sum up what is booked per node, card, namespace and pod, and say how it is spread.

    [bold]Examples[/]

    $ hami summary

    $ curl -s http://127.0.0.1:9395/metrics | hami summary --metrics -
    """
    if metrics:
        try:
            found = of_metrics(_page(metrics), source="standard input" if metrics == "-" else metrics)
        except (SummaryError, OSError, UnicodeDecodeError) as exc:
            print(f"hami summary: {reason_of(exc)}", file=sys.stderr)
            raise SystemExit(FAILED) from exc
    else:
        where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
        found = of_snapshot(run("summary", live.read(where)))
    show(found, output, lambda: text(found))


def text(found: Summary) -> str:
    """The summary for people."""
    booked = (
        f"{found.node_count} nodes, {found.card_count} cards. "
        f"Memory: {found.allocated_memory_mib:.0f} of {found.memory_mib:.0f} MiB booked "
        f"({percent(found.allocated_memory_mib, found.memory_mib)}). "
        f"Cores: {found.allocated_cores:.0f} of {found.cores:.0f} ({percent(found.allocated_cores, found.cores)}). "
        f"Spread: {found.pattern}."
    )
    about = "These figures are of what is booked" + (
        "; measured use is in `hami report`." if found.measured else ": nobody has measured what is used."
    )
    cards = columns(
        ("NODE", "CARD", "MODEL", "MEMORY MIB", "OF", "MEMORY", "CORES", "OF", "CONTAINERS"),
        (
            (
                card.node,
                card.uuid,
                card.model,
                f"{card.allocated_memory_mib:.0f}",
                f"{card.memory_mib:.0f}",
                percent(card.allocated_memory_mib, card.memory_mib),
                f"{card.allocated_cores:.0f}",
                f"{card.cores:.0f}",
                card.shares,
            )
            for card in found.cards
        ),
    )
    namespaces = columns(
        ("NAMESPACE", "MEMORY MIB", "OF BOOKED", "CORES", "OF BOOKED"),
        (
            (
                each.namespace,
                f"{each.memory_mib:.0f}",
                f"{rounded(each.memory_percent)} %",
                f"{each.cores:.0f}",
                f"{rounded(each.cores_percent)} %",
            )
            for each in found.namespaces
        ),
    )
    pods = columns(
        ("NAMESPACE", "POD", "MEMORY MIB", "OF BOOKED", "CORES"),
        (
            (each.namespace, each.pod, f"{each.memory_mib:.0f}", f"{rounded(each.memory_percent)} %", f"{each.cores:.0f}")
            for each in found.pods[:SHOWN_PODS]
        ),
    )
    rest = f"... and {len(found.pods) - SHOWN_PODS} more pods: -o json has them all" if len(found.pods) > SHOWN_PODS else ""
    return "\n\n".join(part for part in (f"{booked}\n{about}", *found.caveats, cards, namespaces, pods, rest) if part)


def _page(path: str) -> str:
    if path == "-":
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SummaryError(f"{path}: longer than {MOST_BYTES // 1024**2} MiB")
    return content.decode()

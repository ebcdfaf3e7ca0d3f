"""``hami top``: what is booked and what is used, per node, card or pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from hami_cli import live
from hami_cli.exits import run
from hami_cli.output import Format, OutputOption, columns, percent, show
from hami_cli.places import ContextOption, DeviceConfigOption, KubeconfigOption, NatsOption, RegistryOption, TokenOption
from hami_cli.snapshot import BookedCard, NodeFact, Snapshot
from hami_protocol.card_facts import GONE

UNUSABLE_FIRST = {"ok": 0, "cordoned": 1, "unhealthy": 2, "away": 3}


class What(StrEnum):
    """What is listed."""

    NODES = "nodes"
    CARDS = "cards"
    PODS = "pods"


def top(
    what: Annotated[What, typer.Argument(help="One line per node, card, or container with a share.")] = What.NODES,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Pods of this namespace alone; default: all.", show_default=False)
    ] = "",
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
    device_config: DeviceConfigOption = "",
) -> None:
    """Show what is booked of nodes and cards, who holds it, and what was measured.

    A dash stands for what nobody has measured.

    [bold]Examples[/]

    $ hami top

    $ hami top cards

    $ hami top pods -n default -o json
    """
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token, device_config=device_config)
    snapshot = run("top", live.read(where))
    show(listed(snapshot, what, namespace), output, lambda: table(snapshot, what, namespace))


def listed(snapshot: Snapshot, what: What, namespace: str = "") -> tuple[Any, ...]:
    """The facts that are shown, for programs."""
    match what:
        case What.CARDS:
            return snapshot.cards
        case What.PODS:
            return tuple(held for held in snapshot.held if not namespace or held.namespace == namespace)
        case What.NODES:
            return tuple(
                {"name": node.name, "ready": node.ready, "schedulable": node.schedulable, **_sums(cards)}
                for node, cards in _with_cards(snapshot)
            )


def table(snapshot: Snapshot, what: What, namespace: str = "") -> str:
    """The same for people."""
    return _TABLES[what](snapshot, namespace)


def _nodes(snapshot: Snapshot, _namespace: str) -> str:
    headers = ("NODE", "STATUS", "CARDS", "MEMORY MIB", "OF", "MEMORY", "CORES", "CONTAINERS")
    return columns(headers, (_node_row(node, cards) for node, cards in _with_cards(snapshot)))


def _node_row(node: NodeFact, cards: list[BookedCard]) -> tuple[object, ...]:
    sums = _sums(cards)
    worst = max((card.status for card in cards), key=UNUSABLE_FIRST.__getitem__, default="ok")
    status = "NotReady" if not node.ready else "unschedulable" if not node.schedulable else worst
    return (
        node.name,
        status,
        sums["cards"],
        sums["allocatedMemoryMib"],
        sums["memoryMib"],
        percent(sums["allocatedMemoryMib"], sums["memoryMib"]),
        percent(sums["allocatedCores"], sums["cores"]),
        sums["containers"],
    )


def _cards(snapshot: Snapshot, _namespace: str) -> str:
    headers = ("NODE", "INDEX", "UUID", "MODEL", "STATUS", "MEMORY MIB", "OF", "CORES", "SHARES", "USED MIB", "USED SM")
    return columns(
        headers,
        (
            (
                card.node,
                card.index,
                card.uuid,
                card.model,
                card.status,
                card.allocated_memory_mib,
                card.memory_mib,
                f"{card.allocated_cores}/{card.cores}",
                f"{card.allocated_shares}/{card.shares}",
                _or_dash(card.used_memory_mib),
                _or_dash(card.used_sm_percent),
            )
            for card in snapshot.cards
        ),
    )


def _pods(snapshot: Snapshot, namespace: str) -> str:
    headers = ("NAMESPACE", "POD", "CONTAINER", "NODE", "CARD", "KIND", "MEMORY MIB", "CORES", "USED MIB", "USED SM", "PHASE")
    rows = [
        (
            held.namespace,
            held.pod,
            held.container,
            held.node,
            held.uuid,
            held.kind,
            held.memory_mib,
            held.cores or "-",
            _or_dash(held.used_memory_mib),
            _or_dash(held.used_sm_percent),
            "unenforced" if held.enforced is False else held.bind_phase,
        )
        for held in snapshot.held
        if not namespace or held.namespace == namespace
    ]
    waiting = [each for each in snapshot.waiting if not namespace or each.namespace == namespace]
    parts = [columns(headers, rows)]
    if waiting:
        parts.append(columns(("NAMESPACE", "WAITS", "WHY"), ((each.namespace, each.pod, each.reason) for each in waiting)))
    return "\n\n".join(parts)


_TABLES: dict[What, Callable[[Snapshot, str], str]] = {What.NODES: _nodes, What.CARDS: _cards, What.PODS: _pods}


def _with_cards(snapshot: Snapshot) -> Iterable[tuple[NodeFact, list[BookedCard]]]:
    cards: dict[str, list[BookedCard]] = {}
    for card in snapshot.cards:
        cards.setdefault(card.node, []).append(card)
    return ((node, cards.get(node.name, [])) for node in snapshot.nodes)


def _sums(cards: Iterable[BookedCard]) -> dict[str, int]:
    listed = list(cards)
    return {
        "cards": sum(card.status != GONE for card in listed),
        "memoryMib": sum(card.memory_mib for card in listed),
        "allocatedMemoryMib": sum(card.allocated_memory_mib for card in listed),
        "cores": sum(card.cores for card in listed),
        "allocatedCores": sum(card.allocated_cores for card in listed),
        "containers": sum(card.containers for card in listed),
    }


def _or_dash(figure: int | None) -> object:
    return "-" if figure is None else figure

"""The rows of ``hami top``: selected, sorted, and written as a table, as CSV or as names. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from hami_cli.output import columns
from hami_cli.snapshot import BookedCard, HeldFact, NodeFact, Snapshot, WaitingFact
from hami_protocol.card_facts import AWAY, CORDONED, GONE, OK, UNHEALTHY
from hami_protocol.figures import percent

NOT_KNOWN: Final = "unknown"
"""The status of a card or node where the registry was not reached: whether its agent reports is not known."""
_WORST_LAST: Final = (OK, CORDONED, UNHEALTHY, AWAY, GONE)
Row = dict[str, object]


class What(StrEnum):
    """What is listed."""

    NODES = "nodes"
    CARDS = "cards"
    PODS = "pods"


class TopError(ValueError):
    """The command line asks for something that is not there; the text names what is accepted."""


class Listing(Struct, frozen=True, kw_only=True):
    """What is shown: rows with a cell for each column, and the pods that wait."""

    what: What
    facts: tuple[Any, ...]
    """For programs, in the order of the rows."""
    rows: tuple[Row, ...]
    waiting: tuple[WaitingFact, ...] = ()


def read_what(text: str) -> What:
    """What ``text`` names, in kubectl's forms too.

    Raises:
        TopError: it names nothing.
    """
    aliases = {"no": "nodes", "po": "pods", **{each.value.removesuffix("s"): each.value for each in What}}
    try:
        return What(aliases.get(text, text))
    except ValueError:
        raise TopError(f"{text!r} is not one of 'nodes', 'cards', 'pods'") from None


def listing(
    snapshot: Snapshot,
    what: What,
    *,
    namespace: str = "",
    node: str = "",
    names: Collection[str] | None = None,
    sort_by: str = "",
) -> Listing:
    """What is shown of ``snapshot``.

    Args:
        snapshot: of the cluster.
        what: nodes, cards or pods.
        namespace: pods of this one alone; empty for all.
        node: this node alone; empty for all.
        names: nodes, or pods as ``namespace/name``, that a selector has matched; None for all.
        sort_by: the column to sort by; empty keeps the order by name.

    Raises:
        TopError: there is no such column.
    """
    pairs = list(_PAIRS[what](snapshot))
    pairs = [pair for pair in pairs if _shown(pair[1], what, namespace, node, names)]
    if sort_by:
        pairs = _sorted(pairs, sort_by)
    waiting = tuple(
        each
        for each in (snapshot.waiting if what is What.PODS and not node else ())
        if namespace in ("", each.namespace) and (names is None or f"{each.namespace}/{each.pod}" in names)
    )
    return Listing(what=what, facts=tuple(pair[0] for pair in pairs), rows=tuple(pair[1] for pair in pairs), waiting=waiting)


def as_table(shown: Listing, *, width: int | None = None, namespace: str = "") -> str:
    """For people, fitted into ``width``; None cuts nothing."""
    parts = []
    if shown.rows:
        headers = list(shown.rows[0])
        rows = ([_cell(row[header]) for header in headers] for row in shown.rows)
        parts.append(columns(headers, rows, width=width, cuttable=_CUTTABLE[shown.what], optional=_OPTIONAL[shown.what]))
    elif not shown.waiting:
        parts.append(f"No resources found in {namespace} namespace." if namespace else "No resources found.")
    if shown.waiting:
        waiting = [(each.namespace, each.pod, each.reason) for each in shown.waiting]
        parts.append(columns(("NAMESPACE", "WAITS", "WHY"), waiting, width=width, cuttable=("NAMESPACE", "WAITS", "WHY")))
    return "\n\n".join(parts)


def as_csv(shown: Listing) -> str:
    """For spreadsheets: a header, then a line for each row; empty where nothing was measured."""
    text = io.StringIO()
    if shown.rows:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([header.lower().replace(" ", "_") for header in shown.rows[0]])
        writer.writerows(["" if cell is None else cell for cell in row.values()] for row in shown.rows)
    return text.getvalue().rstrip("\n")


def as_names(shown: Listing) -> str:
    """``node/NAME``, ``card/UUID`` or ``pod/NAMESPACE/NAME``, each once."""
    if shown.what is What.NODES:
        return "\n".join(f"node/{row['NODE']}" for row in shown.rows)
    if shown.what is What.CARDS:
        return "\n".join(f"card/{row['UUID']}" for row in shown.rows)
    return "\n".join(dict.fromkeys(f"pod/{row['NAMESPACE']}/{row['POD']}" for row in shown.rows))


def _shown(row: Row, what: What, namespace: str, node: str, names: Collection[str] | None) -> bool:
    if node not in ("", row["NODE"]) or (what is What.PODS and namespace not in ("", row["NAMESPACE"])):
        return False
    return names is None or (f"{row['NAMESPACE']}/{row['POD']}" if what is What.PODS else row["NODE"]) in names


def _sorted(pairs: list[tuple[Any, Row]], sort_by: str) -> list[tuple[Any, Row]]:
    if not pairs:
        return pairs
    wanted = sort_by.upper().replace("-", " ")
    headers = list(pairs[0][1])
    header = wanted if wanted in headers else next((each for each in headers if each.startswith(wanted)), None)
    if header is None:
        accepted = ", ".join(each.lower().replace(" ", "-") for each in headers)
        raise TopError(f"--sort-by: {sort_by!r} is not a column; accepted: {accepted}")
    return sorted(pairs, key=lambda pair: _order(pair[1][header]))


def _order(cell: object) -> tuple[int, float, str]:
    """Figures first, the largest first; then texts; what was not measured last."""
    if cell is None:
        return 2, 0.0, ""
    text = str(cell).removesuffix(" %").partition("/")[0]
    return (0, -float(text), "") if text.replace(".", "", 1).isdigit() else (1, 0.0, str(cell))


def _cell(cell: object) -> object:
    return "-" if cell is None else cell


def _nodes(snapshot: Snapshot) -> Iterable[tuple[Any, Row]]:
    by_node: dict[str, list[BookedCard]] = {}
    for card in snapshot.cards:
        by_node.setdefault(card.node, []).append(card)
    for node in snapshot.nodes:
        cards = by_node.get(node.name, [])
        sums = {
            "cards": sum(card.status != GONE for card in cards),
            "memoryMib": sum(card.memory_mib for card in cards),
            "allocatedMemoryMib": sum(card.allocated_memory_mib for card in cards),
            "cores": sum(card.cores for card in cards),
            "allocatedCores": sum(card.allocated_cores for card in cards),
            "containers": node.containers,
        }
        fact = {"name": node.name, "ready": node.ready, "schedulable": node.schedulable, "alive": node.alive, **sums}
        yield (
            fact,
            {
                "NODE": node.name,
                "STATUS": node_status(node, cards),
                "CARDS": sums["cards"],
                "MEMORY MIB": sums["allocatedMemoryMib"],
                "OF": sums["memoryMib"],
                "MEMORY": percent(sums["allocatedMemoryMib"], sums["memoryMib"]),
                "CORES": percent(sums["allocatedCores"], sums["cores"]),
                "CONTAINERS": sums["containers"],
            },
        )


def node_status(node: NodeFact, cards: Sequence[BookedCard]) -> str:
    """What keeps new pods off the node: its own state, or that of how many of its cards."""
    if not node.ready:
        return "NotReady"
    if not node.schedulable:
        return "unschedulable"
    worst = max((card.status for card in cards), key=_WORST_LAST.index, default=OK)
    fine = OK if node.alive is not None else NOT_KNOWN
    if worst in (OK, AWAY):
        return fine if worst == OK else AWAY
    count = sum(card.status == worst for card in cards)
    return f"cards {worst}" if count == len(cards) else f"{fine} ({count}/{len(cards)} {worst})"


def _cards(snapshot: Snapshot) -> Iterable[tuple[Any, Row]]:
    known = {node.name: node.alive is not None for node in snapshot.nodes}
    for card in snapshot.cards:
        yield (
            card,
            {
                "NODE": card.node,
                "INDEX": card.index,
                "UUID": card.uuid,
                "MODEL": card.model,
                "STATUS": NOT_KNOWN if card.status == OK and not known.get(card.node, True) else card.status,
                "MEMORY MIB": card.allocated_memory_mib,
                "OF": card.memory_mib,
                "CORES": f"{card.allocated_cores}/{card.cores}",
                "SHARES": f"{card.allocated_shares}/{card.shares}",
                "USED MIB": card.used_memory_mib,
                "USED SM": card.used_sm_percent,
            },
        )


def _pods(snapshot: Snapshot) -> Iterable[tuple[Any, Row]]:
    return ((held, _pod(held)) for held in snapshot.held)


def _pod(held: HeldFact) -> Row:
    return {
        "NAMESPACE": held.namespace,
        "POD": held.pod,
        "CONTAINER": held.container,
        "NODE": held.node,
        "CARD": held.uuid,
        "KIND": held.kind,
        "MEMORY MIB": held.memory_mib,
        "CORES": held.cores or None,
        "USED MIB": held.used_memory_mib,
        "USED SM": held.used_sm_percent,
        "PHASE": "unenforced" if held.enforced is False else held.bind_phase,
    }


_PAIRS: Final[dict[What, Callable[[Snapshot], Iterable[tuple[Any, Row]]]]] = {What.CARDS: _cards, What.PODS: _pods, What.NODES: _nodes}
_CUTTABLE: Final = {
    What.NODES: ("NODE", "STATUS"),
    What.CARDS: ("NODE", "UUID", "MODEL"),
    What.PODS: ("NAMESPACE", "POD", "CONTAINER", "NODE", "CARD"),
}
_OPTIONAL: Final = {
    What.NODES: (),
    What.CARDS: ("MODEL", "USED SM", "SHARES", "USED MIB"),
    What.PODS: ("KIND", "CONTAINER", "USED SM", "CORES", "NODE", "USED MIB"),
}

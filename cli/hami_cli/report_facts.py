"""What the usage report says, as facts: totals, namespaces, real against booked, what would still fit, and the findings drawn from them. Pure.

Every figure is counted from one snapshot. What was not measured is None, and the findings say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Final

from msgspec import Struct

from hami_cli.snapshot import BookedCard, ChargeFact, HeldFact, NodeFact, Snapshot, WaitingFact
from hami_protocol.card_facts import GONE
from hami_protocol.figures import rounded

IDLE_USE: Final = 0.2
"""A container that uses less of its memory than this, and less of its card's compute, holds much and uses little."""
MUCH: Final = 0.5
"""Of a card: what counts as holding much."""
FULL: Final = 0.9
MAIN_PODS: Final = 3
FRACTION: Final = 0.25


class _Fact(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read-only, camelCase for programs."""


class Totals(_Fact, frozen=True, kw_only=True):
    """The cluster in a few figures."""

    nodes: int
    nodes_ready: int
    cards: int
    cards_usable: int
    memory_mib: int
    allocated_memory_mib: int
    cores: int
    allocated_cores: int
    pods: int
    containers: int
    waiting: int


class NodeSum(_Fact, frozen=True, kw_only=True):
    """One node."""

    name: str
    ready: bool
    cards: int
    memory_mib: int
    allocated_memory_mib: int
    cores: int
    allocated_cores: int


class NamespaceSum(_Fact, frozen=True, kw_only=True):
    """One namespace."""

    name: str
    pods: int
    memory_mib: int
    cores: int
    memory_percent: float
    """Of what is booked in all."""
    cores_percent: float
    main_pods: tuple[str, ...]


class CardUse(_Fact, frozen=True, kw_only=True):
    """One card that was measured."""

    node: str
    uuid: str
    memory_mib: int
    allocated_memory_mib: int
    used_memory_mib: int
    allocated_cores: int
    used_sm_percent: int


class Fit(_Fact, frozen=True, kw_only=True):
    """What a new job would find."""

    idle_cards: int
    full_cards: int
    fragmented_cards: int
    """Neither idle nor full."""
    stranded_memory_mib: int
    """Free memory on fragmented cards."""
    largest_free_mib: int
    """On one card."""
    quarter_shares: int
    """How many shares of a quarter of their card would still fit."""
    most_idle_on_one_node: int
    """For a job that wants several whole cards."""


class Report(_Fact, frozen=True, kw_only=True):
    """The eight sections."""

    time: str
    summary: str
    totals: Totals
    nodes: tuple[NodeSum, ...]
    cards: tuple[BookedCard, ...]
    namespaces: tuple[NamespaceSum, ...]
    workloads: tuple[HeldFact, ...]
    measured: bool
    card_use: tuple[CardUse, ...]
    idle_holders: tuple[HeldFact, ...]
    """Hold much and use little."""
    over_users: tuple[HeldFact, ...]
    """Use more than is booked."""
    fit: Fit
    waiting: tuple[WaitingFact, ...]
    findings: tuple[str, ...]
    caveats: tuple[str, ...]


def report(snapshot: Snapshot) -> Report:
    """The report on ``snapshot``."""
    totals = _totals(snapshot)
    fit = _fit(snapshot.cards)
    capacity = {(card.node, card.uuid): card for card in snapshot.cards}
    idle = tuple(held for held in snapshot.held if _is_idle(held, capacity.get((held.node, held.uuid))))
    over = tuple(held for held in snapshot.held if held.used_memory_mib is not None and held.used_memory_mib > held.memory_mib)
    findings = tuple(_findings(snapshot, totals, fit, idle, over))
    caveats: tuple[str, ...] = (
        "Figures are of what is booked." if not snapshot.measured else "Booked and measured figures stand side by side.",
    )
    if not snapshot.measured:
        caveats += ("Nobody has measured what is used: section 6 is empty for that reason.",)
    return Report(
        time=snapshot.time,
        summary=_in_words(totals, fit),
        totals=totals,
        nodes=_nodes(snapshot),
        cards=snapshot.cards,
        namespaces=_namespaces(snapshot.charges),
        workloads=snapshot.held,
        measured=snapshot.measured,
        card_use=tuple(_card_use(snapshot.cards)),
        idle_holders=idle,
        over_users=over,
        fit=fit,
        waiting=snapshot.waiting,
        findings=findings,
        caveats=caveats + snapshot.caveats,
    )


def ratio_percent(part: float, whole: float) -> float:
    """``part`` of ``whole`` in percent; 0 where there is no whole."""
    return 100 * part / whole if whole else 0.0


def _totals(snapshot: Snapshot) -> Totals:
    return Totals(
        nodes=len(snapshot.nodes),
        nodes_ready=sum(node.ready for node in snapshot.nodes),
        cards=sum(card.status != GONE for card in snapshot.cards),
        cards_usable=sum(card.status == "ok" for card in snapshot.cards),
        memory_mib=sum(card.memory_mib for card in snapshot.cards),
        allocated_memory_mib=sum(card.allocated_memory_mib for card in snapshot.cards),
        cores=sum(card.cores for card in snapshot.cards),
        allocated_cores=sum(card.allocated_cores for card in snapshot.cards),
        pods=len({(held.namespace, held.pod) for held in snapshot.held}),
        containers=len({(held.namespace, held.pod, held.container) for held in snapshot.held}),
        waiting=len(snapshot.waiting),
    )


def _in_words(totals: Totals, fit: Fit) -> str:
    if not totals.cards:
        return "No node has registered a card."
    memory = ratio_percent(totals.allocated_memory_mib, totals.memory_mib)
    state = "has room to spare" if memory < 50 else "is well used" if memory < 85 else "is almost full"
    return (
        f"The cluster {state}. Pods: {totals.pods}, which hold {rounded(memory)} % of the memory and "
        f"{rounded(ratio_percent(totals.allocated_cores, totals.cores))} % of the cores. Nodes: {totals.nodes}. "
        f"Cards: {totals.cards}, of them {fit.idle_cards} idle, {fit.full_cards} full, {fit.fragmented_cards} partly used, "
        f"{totals.cards - totals.cards_usable} that take no new pods. Pods that wait for a device: {totals.waiting}."
    )


def _nodes(snapshot: Snapshot) -> tuple[NodeSum, ...]:
    cards: dict[str, list[BookedCard]] = {}
    for card in snapshot.cards:
        cards.setdefault(card.node, []).append(card)
    return tuple(_node(node, cards.get(node.name, [])) for node in snapshot.nodes)


def _node(node: NodeFact, cards: list[BookedCard]) -> NodeSum:
    return NodeSum(
        name=node.name,
        ready=node.ready,
        cards=sum(card.status != GONE for card in cards),
        memory_mib=sum(card.memory_mib for card in cards),
        allocated_memory_mib=sum(card.allocated_memory_mib for card in cards),
        cores=sum(card.cores for card in cards),
        allocated_cores=sum(card.allocated_cores for card in cards),
    )


def _namespaces(charges: Iterable[ChargeFact]) -> tuple[NamespaceSum, ...]:
    by_name: dict[str, dict[str, tuple[int, int]]] = {}
    for each in charges:
        pods = by_name.setdefault(each.namespace, {})
        memory_mib, cores = pods.get(each.pod, (0, 0))
        pods[each.pod] = (memory_mib + each.memory_mib, cores + each.cores)
    sums = {name: (sum(memory for memory, _ in pods.values()), sum(cores for _, cores in pods.values())) for name, pods in by_name.items()}
    all_memory, all_cores = sum(each[0] for each in sums.values()), sum(each[1] for each in sums.values())
    return tuple(
        NamespaceSum(
            name=name,
            pods=len(by_name[name]),
            memory_mib=memory_mib,
            cores=cores,
            memory_percent=ratio_percent(memory_mib, all_memory),
            cores_percent=ratio_percent(cores, all_cores),
            main_pods=tuple(sorted(by_name[name], key=lambda pod: (-by_name[name][pod][0], pod))[:MAIN_PODS]),
        )
        for name, (memory_mib, cores) in sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    )


def _card_use(cards: Iterable[BookedCard]) -> Iterable[CardUse]:
    for card in cards:
        if card.used_memory_mib is not None and card.used_sm_percent is not None:
            yield CardUse(
                node=card.node,
                uuid=card.uuid,
                memory_mib=card.memory_mib,
                allocated_memory_mib=card.allocated_memory_mib,
                used_memory_mib=card.used_memory_mib,
                allocated_cores=card.allocated_cores,
                used_sm_percent=card.used_sm_percent,
            )


def _is_idle(held: HeldFact, card: BookedCard | None) -> bool:
    if card is None or held.used_memory_mib is None or held.used_sm_percent is None or not held.memory_mib:
        return False
    holds_much = held.memory_mib >= MUCH * card.memory_mib
    return holds_much and held.used_memory_mib < IDLE_USE * held.memory_mib and held.used_sm_percent < 100 * IDLE_USE


def _fit(cards: Iterable[BookedCard]) -> Fit:
    usable = [card for card in cards if card.status == "ok"]
    idle = [card for card in usable if not card.allocated_shares]
    full = [card for card in usable if card.allocated_shares and _is_full(card)]
    fragmented = [card for card in usable if card.allocated_shares and not _is_full(card)]
    idle_by_node: dict[str, int] = {}
    for card in idle:
        idle_by_node[card.node] = idle_by_node.get(card.node, 0) + 1
    return Fit(
        idle_cards=len(idle),
        full_cards=len(full),
        fragmented_cards=len(fragmented),
        stranded_memory_mib=sum(_free_mib(card) for card in fragmented),
        largest_free_mib=max((_free_mib(card) for card in usable if not _is_taken(card)), default=0),
        quarter_shares=sum(_quarters(card) for card in usable),
        most_idle_on_one_node=max(idle_by_node.values(), default=0),
    )


def _free_mib(card: BookedCard) -> int:
    return max(card.memory_mib - card.allocated_memory_mib, 0)


def _is_taken(card: BookedCard) -> bool:
    """Whether no share fits any more, whatever memory is left."""
    return card.allocated_shares >= card.shares or (card.cores > 0 and card.allocated_cores >= card.cores)


def _is_full(card: BookedCard) -> bool:
    return _is_taken(card) or card.allocated_memory_mib >= FULL * card.memory_mib


def _quarters(card: BookedCard) -> int:
    """How many shares of a quarter of the card's memory and cores still fit."""
    if _is_taken(card) or not card.memory_mib:
        return 0
    by_memory = int(_free_mib(card) / (FRACTION * card.memory_mib))
    by_cores = int((card.cores - card.allocated_cores) / (FRACTION * card.cores)) if card.cores else by_memory
    return min(by_memory, by_cores, card.shares - card.allocated_shares)


def _findings(snapshot: Snapshot, totals: Totals, fit: Fit, idle: tuple[HeldFact, ...], over: tuple[HeldFact, ...]) -> Iterable[str]:
    yield from _findings_on_cards(snapshot, totals, fit)
    yield from _findings_on_pods(snapshot, idle, over)


def _findings_on_cards(snapshot: Snapshot, totals: Totals, fit: Fit) -> Iterable[str]:
    if away := [node.name for node in snapshot.nodes if not node.ready]:
        yield f"Not ready: {_count(away, 'node')}: {_some(away)}."
    for status, meaning in (("unhealthy", "unhealthy"), ("cordoned", "cordoned"), ("away", "on a node that does not register any more")):
        if cards := [card.uuid for card in snapshot.cards if card.status == status]:
            yield f"{meaning.capitalize()}: {_count(cards, 'card')}: {_some(cards)}."
    if totals.waiting:
        waiting = [_pod(each) for each in snapshot.waiting]
        yield f"Waiting: {_count(waiting, 'pod')}: {_some(waiting)}. `hami explain` says why."
    if fit.fragmented_cards and not fit.idle_cards:
        free = f"{fit.stranded_memory_mib} MiB are, spread over {fit.fragmented_cards} cards"
        yield f"No whole card is free, though {free}: a job that wants a whole card waits."
    elif totals.cards and not fit.idle_cards:
        yield "No whole card is free."


def _findings_on_pods(snapshot: Snapshot, idle: tuple[HeldFact, ...], over: tuple[HeldFact, ...]) -> Iterable[str]:
    if unlimited := sorted({_pod(held) for held in snapshot.held if not held.cores}):
        yield f"Without a limit of cores, so that they compete for compute: {_count(unlimited, 'pod')}: {_some(unlimited)}."
    loose = [held for held in snapshot.held if held.enforced is False]
    for listed, what in (
        (idle, "Holding much and using little"),
        (over, "Using more memory than is booked"),
        (loose, "Using a card without being held to a limit"),
    ):
        if containers := {(_pod(held), held.container): None for held in listed}:
            pods = list(dict.fromkeys(pod for pod, _ in containers))
            yield f"{what}: {_count(containers, 'container')}: {_some(pods)}."


def _count(listed: Sized, what: str) -> str:
    return f"{len(listed)} {what}{'' if len(listed) == 1 else 's'}"


def _pod(fact: HeldFact | WaitingFact) -> str:
    return f"{fact.namespace}/{fact.pod}"


def _some(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown

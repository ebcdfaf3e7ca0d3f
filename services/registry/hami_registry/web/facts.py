"""What the page is told, as wire types, made of devices, spans, usage and verdicts. Pure.

Figures are of what is booked; what was measured has names of its own and is missing where nobody measured. A card that holds something and is
registered no more is told of too, as ``gone``: nothing that is booked is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from hami_protocol.card_facts import AWAY, CORDONED, GONE, OK, UNHEALTHY, CardFact, Measured, Use, standing
from hami_protocol.cordon import cordoned
from hami_protocol.devices import RegisteredDevice, VendorAssignment
from hami_protocol.events import AllocationEvent, NodeUsage
from hami_protocol.holdings import CardCharge, WaitingPod
from hami_registry.web.history import Span

MOST_MODELS: Final = 4


class _Fact(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read-only, camelCase for the page."""


class NodeSummary(_Fact, frozen=True, kw_only=True):
    """One node in the list."""

    name: str
    status: str
    """``ok``; ``away`` where none of its agents reports; ``unhealthy`` or ``cordoned`` where some of its cards are."""
    models: tuple[str, ...]
    card_count: int
    memory_mib: int
    booked_memory_mib: int
    cores: int
    booked_cores: int
    pod_count: int
    loads: tuple[int, ...]
    """Booked memory of each card in percent."""


class PodOnCard(_Fact, frozen=True, kw_only=True):
    """What one pod is charged on one card."""

    namespace: str
    name: str
    uid: str
    phase: str
    memory_mib: int
    cores: int
    shares: int
    since: float
    """Unix seconds; 0 for longer than the log goes back."""
    used_memory_mib: int | None = None
    used_sm_percent: int | None = None
    enforced: bool | None = None
    """Whether all its containers are held to their shares; None where nobody looked."""


class CardDetail(CardFact, frozen=True, kw_only=True):
    """One card, what is booked of it, and for whom."""

    numa: int
    booked_memory_mib: int
    booked_cores: int
    booked_shares: int
    pods: tuple[PodOnCard, ...]


class NodeDetail(_Fact, frozen=True, kw_only=True):
    """One node with its cards and who holds them."""

    name: str
    status: str
    cards: tuple[CardDetail, ...]


class LogLine(_Fact, frozen=True, kw_only=True):
    """One event of the log of allocations, without what only programs need."""

    sequence: int
    time: float
    """Unix seconds, by the clock of who said it."""
    type: str
    namespace: str
    pod: str
    uid: str
    node: str
    reason: str = ""
    memory_mib: int = 0
    cores: int = 0


class Resources(_Fact, frozen=True, kw_only=True):
    """How devices of one type are asked for."""

    device_type: str
    count: str
    memory: str = ""
    memory_unit_mib: int = 1
    cores: str = ""


class Overview(_Fact, frozen=True, kw_only=True):
    """All nodes at one moment, and what else the page begins with."""

    time: float
    """Of the moment, Unix seconds."""
    now: float
    begins: float
    """How far back the moment may lie."""
    devices_since: float
    """From when on nodes and their devices are shown as they were; those of an earlier moment are shown as they were then."""
    nodes: tuple[NodeSummary, ...]
    waiting: tuple[WaitingPod, ...]
    """Now, even where the moment lies back."""
    waiting_count: int
    log: tuple[LogLine, ...]
    """The last lines, the newest last."""
    resources: tuple[Resources, ...]
    caveats: tuple[str, ...] = ()
    """What could not be read or asked, in sentences."""


class CardSpan(_Fact, frozen=True, kw_only=True):
    """What one pod held of a card for a while."""

    namespace: str
    name: str
    uid: str
    phase: str
    memory_mib: int
    cores: int
    begin: float
    end: float | None = None


class CardHistory(_Fact, frozen=True, kw_only=True):
    """A card's last day."""

    node: str
    uuid: str
    model: str
    memory_mib: int
    cores: int
    begins: float
    now: float
    spans: tuple[CardSpan, ...]


class Group(NamedTuple):
    """A node's devices of one type."""

    device_type: str
    alive: bool
    devices: tuple[RegisteredDevice, ...]


class NodeAnnotations(Struct, frozen=True, kw_only=True):
    """What a node's object says that its registration does not."""

    cordon: str = ""


def summary(name: str, groups: Sequence[Group], spans: Iterable[Span], annotations: NodeAnnotations) -> NodeSummary:
    """One node in the list, with what ``spans`` hold of it."""
    held = list(spans)
    booked = _booked(held)
    devices = [device for group in groups for device in group.devices]
    loads = tuple(_percent(booked.get(device.uuid, _NOTHING).memory_mib, device.memory_mib) for device in devices)
    return NodeSummary(
        name=name,
        status=_node_status(groups, annotations),
        models=tuple(dict.fromkeys(device.type for device in devices))[:MOST_MODELS],
        card_count=len(devices),
        memory_mib=sum(device.memory_mib for device in devices),
        booked_memory_mib=sum(charge.memory_mib for charge in booked.values()),
        cores=sum(device.cores for device in devices),
        booked_cores=sum(charge.cores for charge in booked.values()),
        pod_count=len(held),
        loads=loads,
    )


def detail(name: str, groups: Sequence[Group], spans: Iterable[Span], annotations: NodeAnnotations, usage: NodeUsage | None) -> NodeDetail:
    """One node with its cards, who holds them, and what was measured."""
    held = list(spans)
    listed = [(group.device_type, group.alive, device) for group in groups for device in group.devices]
    known = {device.uuid for _, _, device in listed}
    gone = dict.fromkeys(charge.uuid for span in held for charge in span.charges if charge.uuid not in known)
    listed += [("", True, RegisteredDevice(uuid=uuid, shares=0, memory_mib=0, cores=0, type="")) for uuid in gone]
    stopped = frozenset(cordoned(annotations.cordon))
    measured = Measured((usage,) if usage else ())
    cards = []
    for device_type, alive, device in listed:
        pods = tuple(
            _pod_on(span, charge, measured.by_pod(name, span.pod.uid, charge.uuid), enforced=measured.pod_enforced(name, span.pod.uid))
            for span in sorted(held, key=lambda span: (span.pod.namespace, span.pod.name))
            for charge in span.charges
            if charge.uuid == device.uuid
        )
        used = measured.of_card(name, device.uuid)
        cards.append(
            CardDetail(
                uuid=device.uuid,
                device_type=device_type,
                index=device.index,
                model=device.type,
                mode=device.mode,
                numa=device.numa,
                status=GONE if device.uuid in gone else standing(device, alive=alive, cordoned=device.uuid in stopped),
                memory_mib=device.memory_mib,
                cores=device.cores,
                shares=device.shares,
                booked_memory_mib=sum(pod.memory_mib for pod in pods),
                booked_cores=sum(pod.cores for pod in pods),
                booked_shares=sum(pod.shares for pod in pods),
                pods=pods,
                used_memory_mib=used.memory_mib if used else None,
                used_sm_percent=used.sm_percent if used else None,
            )
        )
    return NodeDetail(name=name, status=_node_status(groups, annotations), cards=tuple(cards))


def card_history(node: str, uuid: str, groups: Sequence[Group], spans: Iterable[Span], *, begins: float, now: float) -> CardHistory:
    """One card's last day, the oldest span first."""
    device = next((device for group in groups for device in group.devices if device.uuid == uuid), None)
    told = [
        CardSpan(
            namespace=span.pod.namespace,
            name=span.pod.name,
            uid=span.pod.uid,
            phase=span.phase,
            memory_mib=charge.memory_mib,
            cores=charge.cores,
            begin=span.begin,
            end=span.end,
        )
        for span in spans
        for charge in span.charges
        if charge.uuid == uuid and (span.end is None or span.end >= begins)
    ]
    return CardHistory(
        node=node,
        uuid=uuid,
        model=device.type if device else "",
        memory_mib=device.memory_mib if device else 0,
        cores=device.cores if device else 0,
        begins=begins,
        now=now,
        spans=tuple(sorted(told, key=lambda span: (span.begin, span.namespace, span.name))),
    )


def log_line(event: AllocationEvent, *, sequence: int, time: float) -> LogLine:
    """One event of the log."""
    shares = [share for assignment in _assignments(event) for container in assignment.containers for share in container.shares]
    return LogLine(
        sequence=sequence,
        time=time,
        type=str(type(event).__struct_config__.tag),
        namespace=event.pod.namespace,
        pod=event.pod.name,
        uid=event.pod.uid,
        node=event.node,
        reason=getattr(event, "reason", ""),
        memory_mib=sum(share.memory_mib for share in shares),
        cores=sum(share.cores for share in shares),
    )


def _assignments(event: AllocationEvent) -> tuple[VendorAssignment, ...]:
    found: tuple[VendorAssignment, ...] = getattr(event, "assignments", ())
    return found


_NOTHING: Final = CardCharge(uuid="", memory_mib=0, cores=0, shares=0)


def _booked(spans: Iterable[Span]) -> dict[str, CardCharge]:
    booked: dict[str, CardCharge] = {}
    for span in spans:
        for charge in span.charges:
            before = booked.get(charge.uuid, _NOTHING)
            booked[charge.uuid] = CardCharge(
                uuid=charge.uuid,
                memory_mib=before.memory_mib + charge.memory_mib,
                cores=before.cores + charge.cores,
                shares=before.shares + charge.shares,
            )
    return booked


def _node_status(groups: Sequence[Group], annotations: NodeAnnotations) -> str:
    if not any(group.alive for group in groups):
        return AWAY
    if not all(group.alive and device.healthy for group in groups for device in group.devices):
        return UNHEALTHY
    stopped = frozenset(cordoned(annotations.cordon))
    return CORDONED if any(device.uuid in stopped for group in groups for device in group.devices) else OK


def _pod_on(span: Span, charge: CardCharge, used: Use | None, *, enforced: bool | None) -> PodOnCard:
    return PodOnCard(
        namespace=span.pod.namespace,
        name=span.pod.name,
        uid=span.pod.uid,
        phase=span.phase,
        memory_mib=charge.memory_mib,
        cores=charge.cores,
        shares=charge.shares,
        since=span.begin,
        used_memory_mib=used.memory_mib if used else None,
        used_sm_percent=used.sm_percent if used else None,
        enforced=enforced,
    )


def _percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0

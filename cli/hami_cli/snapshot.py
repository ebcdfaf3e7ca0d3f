"""The cluster's devices and who holds them, at one moment: what ``top``, ``summary`` and ``report`` are made from. Pure.

Read from the canonical record, the annotations of nodes and pods; what was measured, and whether nodes are alive, is added where the bus
said it. A pod is charged as the scheduler charges it: the largest of all moments of its life, and what still runs once its init containers are
over. A record that cannot be read is named, and never counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.registrations import device_record, on_node
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.card_facts import GONE, CardFact, Measured, Use, standing
from hami_protocol.cordon import cordoned
from hami_protocol.devices import SHARED_MODE, ContainerKind, RegisteredDevice, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.events import NodeUsage, PodRefused
from hami_protocol.inventory import Inventory
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import containers_in_order, is_terminal

WHOLE, SHARE = "whole card", "share"


class _Fact(Struct, frozen=True, kw_only=True, rename="camel"):
    """Read-only, camelCase for programs."""


class NodeFact(_Fact, frozen=True, kw_only=True):
    """One node that has devices, or should have."""

    name: str
    ready: bool
    schedulable: bool
    alive: bool | None = None
    """Whether its agents report; None where the registry was not reached."""
    containers: int = 0
    """How many containers hold anything of its cards."""


class BookedCard(CardFact, frozen=True, kw_only=True):
    """One card, and what is booked of it."""

    node: str
    allocated_memory_mib: int
    allocated_cores: int
    allocated_shares: int
    containers: int
    """How many containers share it."""


class HeldFact(_Fact, frozen=True, kw_only=True):
    """What one container holds of one card."""

    namespace: str
    pod: str
    container: str
    container_kind: str
    node: str
    device_type: str
    uuid: str
    memory_mib: int
    cores: int
    kind: str
    """``whole card``, ``share``, or the mode of the card, as ``mig``."""
    bind_phase: str
    used_memory_mib: int | None = None
    used_sm_percent: int | None = None
    enforced: bool | None = None


class ChargeFact(_Fact, frozen=True, kw_only=True):
    """What one pod is charged on one card now: not the sum of its containers, where they do not all run at once."""

    namespace: str
    pod: str
    node: str
    uuid: str
    memory_mib: int
    cores: int
    shares: int


class WaitingFact(_Fact, frozen=True, kw_only=True):
    """A pod that asks for devices and is nowhere yet."""

    namespace: str
    pod: str
    reason: str
    since: str


class Snapshot(_Fact, frozen=True, kw_only=True):
    """All of it."""

    time: str
    """RFC 3339, UTC."""
    nodes: tuple[NodeFact, ...]
    cards: tuple[BookedCard, ...]
    held: tuple[HeldFact, ...]
    """By container, init containers among them."""
    charges: tuple[ChargeFact, ...]
    """By pod: these add up to what is booked."""
    waiting: tuple[WaitingFact, ...]
    measured: bool
    """Whether anybody has measured what containers use."""
    caveats: tuple[str, ...] = ()
    """What could not be read or asked, in sentences."""


class Heard(Struct, frozen=True, kw_only=True):
    """What the bus said besides."""

    inventory: Inventory | None = None
    usage: tuple[NodeUsage, ...] = ()
    refusals: Mapping[str, PodRefused] = {}
    """By pod UID."""
    caveats: tuple[str, ...] = ()


class _Booked(Struct):
    memory_mib: int = 0
    cores: int = 0
    shares: int = 0
    containers: int = 0


def take(nodes: Iterable[Node], pods: Iterable[Pod], heard: Heard, catalog: Catalog, *, time: str) -> Snapshot:
    """The snapshot of ``nodes`` and ``pods``."""
    caveats = list(heard.caveats)
    booked: dict[tuple[str, str], _Booked] = {}
    measured = Measured(heard.usage)
    ordered_nodes = sorted(nodes, key=lambda node: node.metadata.name)
    devices = {node.metadata.name: _devices(node, catalog, caveats) for node in ordered_nodes}
    whole = {(name, device.uuid): device for name, listed in devices.items() for _, device in listed}
    held: list[HeldFact] = []
    charges: list[ChargeFact] = []
    waiting: list[WaitingFact] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        if is_terminal(pod):
            continue
        if not pod.spec.node_name:
            waiting.extend(_waiting(pod, catalog, heard.refusals))
            continue
        try:
            assignments = catalog.read_assignments(pod)
        except RecordError as exc:
            caveats.append(f"pod {pod.metadata.namespace}/{pod.metadata.name}: what it holds cannot be read: {exc}")
            continue
        charges.extend(mine := list(_charges(pod, assignments)))
        now = _without_init(assignments) if _init_is_over(pod) else assignments
        _book(booked, mine, now)
        for fact in _held(pod, now, catalog):
            device = whole.get((fact.node, fact.uuid))
            kind = fact.kind if device is None else _kind(fact, memory_mib=device.memory_mib, cores=device.cores, mode=device.mode)
            place = pod.spec.node_name, pod.metadata.uid, fact.container
            held.append(_with_usage(fact, kind, measured.by_container(*place, fact.uuid), enforced=measured.enforced(*place)))
    alive = _alive(heard.inventory)
    cards = tuple(
        _card(
            node,
            device_type,
            device,
            booked.get((node.metadata.name, device.uuid), _Booked()),
            measured.of_card(node.metadata.name, device.uuid),
            alive=alive.get((node.metadata.name, device_type), True),
        )
        for node in ordered_nodes
        for device_type, device in devices[node.metadata.name]
    )
    lost = [fact for fact in held if (fact.node, fact.uuid) not in whole and fact.node in devices]
    cards = (*cards, *_gone(lost, booked))
    caveats += dict.fromkeys(
        f"pod {each.namespace}/{each.pod} holds card {each.uuid}, which node {each.node} no longer registers" for each in lost
    )
    containers: dict[str, set[tuple[str, str, str]]] = {}
    for fact in held:
        containers.setdefault(fact.node, set()).add((fact.namespace, fact.pod, fact.container))
    return Snapshot(
        time=time,
        nodes=tuple(
            NodeFact(
                name=node.metadata.name,
                ready=_is_ready(node),
                schedulable=not node.spec.unschedulable,
                alive=None
                if heard.inventory is None
                else all(alive.get((node.metadata.name, kind), True) for kind in _types(node, devices)),
                containers=len(containers.get(node.metadata.name, ())),
            )
            for node in ordered_nodes
            if devices[node.metadata.name]
        ),
        cards=cards,
        held=tuple(held),
        charges=tuple(charges),
        waiting=tuple(waiting),
        measured=bool(heard.usage),
        caveats=tuple(caveats),
    )


def _types(node: Node, devices: Mapping[str, list[tuple[str, RegisteredDevice]]]) -> set[str]:
    return {device_type for device_type, _ in devices[node.metadata.name]}


def _devices(node: Node, catalog: Catalog, caveats: list[str]) -> list[tuple[str, RegisteredDevice]]:
    found: list[tuple[str, RegisteredDevice]] = []
    for vendor in catalog.vendors:
        try:
            record = device_record(vendor, node)
            listed = () if record is None else on_node(vendor, record.read(), node)
        except RecordError as exc:
            caveats.append(f"node {node.metadata.name}: its {vendor.device_type} registration cannot be read: {exc}")
            continue
        found.extend((vendor.device_type, device) for device in listed)
    return found


def _charges(pod: Pod, assignments: tuple[VendorAssignment, ...]) -> Iterable[ChargeFact]:
    charges, running = charges_of(assignments)
    for charge in running if _init_is_over(pod) else charges:
        yield ChargeFact(
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            node=pod.spec.node_name,
            uuid=charge.uuid,
            memory_mib=charge.memory_mib,
            cores=charge.cores,
            shares=charge.shares,
        )


def _book(booked: dict[tuple[str, str], _Booked], charges: list[ChargeFact], assignments: tuple[VendorAssignment, ...]) -> None:
    for charge in charges:
        total = booked.setdefault((charge.node, charge.uuid), _Booked())
        total.memory_mib += charge.memory_mib
        total.cores += charge.cores
        total.shares += charge.shares
        total.containers += sum(
            share.uuid == charge.uuid for given in assignments for container in given.containers for share in container.shares
        )


def _without_init(assignments: tuple[VendorAssignment, ...]) -> tuple[VendorAssignment, ...]:
    """What is held once the init containers are over."""
    return tuple(
        replace(given, containers=tuple(each for each in given.containers if each.kind is not ContainerKind.INIT)) for given in assignments
    )


def _init_is_over(pod: Pod) -> bool:
    ordinary = {placed.container.name for placed in containers_in_order(pod) if placed.kind is ContainerKind.INIT}
    ended = {
        status.name
        for status in pod.status.init_container_statuses or ()
        if status.state is not None and status.state.terminated is not None and status.state.terminated.exit_code == 0
    }
    return bool(ordinary) and ordinary <= ended


def _held(pod: Pod, assignments: tuple[VendorAssignment, ...], catalog: Catalog) -> Iterable[HeldFact]:
    for assignment in assignments:
        for container in assignment.containers:
            for share in container.shares:
                yield HeldFact(
                    namespace=pod.metadata.namespace,
                    pod=pod.metadata.name,
                    container=container.container,
                    container_kind=container.kind.value,
                    node=pod.spec.node_name,
                    device_type=catalog.vendor(assignment.vendor).device_type,
                    uuid=share.uuid,
                    memory_mib=share.memory_mib,
                    cores=share.cores,
                    kind=SHARE,
                    bind_phase=pod.metadata.annotations.get(keys.BIND_PHASE, ""),
                )


def _kind(fact: HeldFact, *, memory_mib: int, cores: int, mode: str) -> str:
    if mode and mode != SHARED_MODE:
        return mode
    return WHOLE if fact.memory_mib >= memory_mib and (fact.cores >= cores or not fact.cores) else SHARE


def _with_usage(fact: HeldFact, kind: str, used: Use | None, *, enforced: bool | None) -> HeldFact:
    if used is None:
        return replace(fact, kind=kind, enforced=enforced)
    return replace(fact, kind=kind, used_memory_mib=used.memory_mib, used_sm_percent=used.sm_percent, enforced=enforced)


def _card(node: Node, device_type: str, device: RegisteredDevice, booked: _Booked, used: Use | None, *, alive: bool) -> BookedCard:
    stopped = cordoned(node.metadata.annotations.get(keys.DEVICE_CORDON, ""))
    return BookedCard(
        node=node.metadata.name,
        device_type=device_type,
        index=device.index,
        uuid=device.uuid,
        model=device.type,
        mode=device.mode,
        memory_mib=device.memory_mib,
        cores=device.cores,
        shares=device.shares,
        allocated_memory_mib=booked.memory_mib,
        allocated_cores=booked.cores,
        allocated_shares=booked.shares,
        containers=booked.containers,
        status=standing(device, alive=alive, cordoned=device.uuid in stopped),
        used_memory_mib=used.memory_mib if used else None,
        used_sm_percent=used.sm_percent if used else None,
    )


def _gone(held: Iterable[HeldFact], booked: Mapping[tuple[str, str], _Booked]) -> Iterable[BookedCard]:
    """Cards that pods hold and their nodes no longer register: of no size, with what is booked of them, so that all totals agree."""
    for (node, uuid), device_type in sorted({(each.node, each.uuid): each.device_type for each in held}.items()):
        yield BookedCard(
            node=node,
            device_type=device_type,
            index=0,
            uuid=uuid,
            model="",
            mode="",
            memory_mib=0,
            cores=0,
            shares=0,
            allocated_memory_mib=booked[node, uuid].memory_mib,
            allocated_cores=booked[node, uuid].cores,
            allocated_shares=booked[node, uuid].shares,
            containers=booked[node, uuid].containers,
            status=GONE,
            used_memory_mib=None,
            used_sm_percent=None,
        )


def _waiting(pod: Pod, catalog: Catalog, refusals: Mapping[str, PodRefused]) -> Iterable[WaitingFact]:
    try:
        if not catalog.read_pod(pod).asks:
            return
        refusal = refusals.get(pod.metadata.uid)
        scheduled = next((each for each in pod.status.conditions or () if each.type == "PodScheduled"), None)
        reason = refusal.summary if refusal else (scheduled.message if scheduled and scheduled.message else "not tried yet")
    except RequestError as exc:
        reason = f"its request is refused: {exc}"
    yield WaitingFact(namespace=pod.metadata.namespace, pod=pod.metadata.name, reason=reason, since=pod.metadata.creation_timestamp or "")


def _alive(inventory: Inventory | None) -> dict[tuple[str, str], bool]:
    if inventory is None:
        return {}
    return {(node.name, group.device_type): group.alive for node in inventory.nodes for group in node.device_groups}


def _is_ready(node: Node) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())

"""What each node has: decides which copy of a registration counts, and whether a node may take pods. No I/O.

Per node and vendor there are two copies: the node's own word (its annotations, else its capacity: canonical) and the bus (faster). The one
with the higher generation counts, the node's where they are equal. A text is decoded once, when it changes. A registration that cannot be read
fences the devices of its vendor on the node and leaves what was known before, so that running pods stay charged; the fence falls when a readable one
arrives. Liveness is the
registry's verdict: from the bus where it has spoken there, else from the handshake annotation; the times in a handshake are never compared with a
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from hami_devices import registrations
from hami_devices.catalog import Catalog
from hami_devices.topology import PairScores
from hami_devices.vendor import Vendor
from hami_protocol import handshake, keys, quantities, registration
from hami_protocol.cordon import cordoned, problem
from hami_protocol.devices import AllocationMode, RegisteredDevice, VendorAssignment
from hami_protocol.errors import QuantityError, RecordError
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_protocol.kubernetes import Node
from hami_scheduler.placement import ClusterState

Devices = tuple[RegisteredDevice, ...]
MAX_GENERATION = 2**63 - 1
LEGACY_DEVICE_TYPE = "nvidia"
"""Whose handshake may be under the key that names no type."""


class _PairRow(Struct, frozen=True, kw_only=True):
    uuid: str
    score: dict[str, int]


_PAIR_SCORES: Final = msgspec.json.Decoder(tuple[_PairRow, ...])


class Fence(Struct, frozen=True, kw_only=True):
    """A node, or its devices of one vendor, that takes no pods until a record on it can be read."""

    node: str
    source: str
    reason: str
    vendor: str = ""
    """Whose devices alone it concerns; empty for the whole node."""


class InventoryChange(Struct, frozen=True, kw_only=True):
    """What a change of a node came to."""

    improved: bool = False
    """A pod that did not fit before may fit on it now."""
    fenced: tuple[Fence, ...] = ()


@dataclass(slots=True)
class _Annotated:
    """One vendor's registration as the node has it, in an annotation or in its capacity."""

    text: str
    generation: int
    devices: Devices | None
    error: str = ""


@dataclass(slots=True)
class _NodeRecord:
    """One node."""

    node: Node | None = None
    """As the cluster has it; None while only the bus has spoken of it."""
    annotated: dict[str, _Annotated] = field(default_factory=dict)
    reported: dict[str, DevicesReported] = field(default_factory=dict)
    alive: dict[str, bool] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    """Device types whose handshake annotation says that an older scheduler gave them up."""
    mode: AllocationMode | None = None
    allocatable: dict[str, int | None] = field(default_factory=dict)
    """By vendor, how many device ids kubelet has allocatable; None where it lists none."""
    limits: dict[str, int] = field(default_factory=dict)
    """By vendor, what of that was last given to the state; missing means no limit."""
    cordoned: frozenset[str] = frozenset()
    cordon_problem: str = ""
    """Why the annotation that names them cannot be read."""
    pair_text: str = ""
    pair_scores: PairScores | None = None
    given: tuple[dict[str, Devices], frozenset[str], PairScores | None] | None = None
    """Devices by vendor, cordoned UUIDs and pair scores, as last given to the state."""
    available: dict[str, bool] = field(default_factory=dict)
    """By vendor, what was last given to the state; missing means available."""
    fenced: dict[str, Fence] = field(default_factory=dict)
    """By source, as last given to the state."""

    @property
    def devices(self) -> dict[str, Devices]:
        """By vendor, what the state knows."""
        return {} if self.given is None else self.given[0]


class Inventory:
    """Feeds ``ClusterState`` with nodes, from the cluster and from the bus."""

    def __init__(self, state: ClusterState, catalog: Catalog) -> None:
        self._state = state
        self._catalog = catalog
        self._nodes: dict[str, _NodeRecord] = {}

    def node_changed(self, name: str, node: Node | None) -> InventoryChange:
        """Take node ``name`` as it is now in the cluster; None where it is gone, and with it what the bus said of it."""
        if node is None:
            record = self._nodes.pop(name, None)
            if record is not None and record.given is not None:
                self._state.remove_node(name)
            return InventoryChange()
        record = self._nodes.setdefault(name, _NodeRecord())
        annotations = node.metadata.annotations
        record.node = node
        for vendor in self._catalog.vendors:
            _read_registration(record, vendor, node)
            record.allocatable[vendor.name] = _allocatable(node, vendor.count_resource)
        record.given_up = frozenset(vendor.device_type for vendor in self._catalog.vendors if _gave_up(annotations, vendor))
        record.mode = _mode(annotations.get(keys.ALLOCATION_MODE))
        _read_pair_scores(record, next((annotations.get(v.pair_scores_key, "") for v in self._catalog.vendors if v.pair_scores_key), ""))
        cordon = annotations.get(keys.DEVICE_CORDON, "")
        record.cordoned, record.cordon_problem = frozenset(cordoned(cordon)), problem(cordon)
        return self._settle(name, record)

    def reported(self, event: DevicesReported) -> InventoryChange:
        """Take what the bus says a node has. It counts once the node is in the cluster; an older generation changes nothing."""
        record = self._nodes.setdefault(event.node, _NodeRecord())
        earlier = record.reported.get(event.device_type)
        if earlier is not None and earlier.generation > event.generation:
            return InventoryChange()
        annotated = record.annotated.get(event.device_type)
        if annotated is not None and annotated.devices == event.devices:  # as it should be: the registry writes what agents say
            event = msgspec.structs.replace(event, devices=annotated.devices)
        record.reported[event.device_type] = event
        return self._settle(event.node, record) if record.node is not None else InventoryChange()

    def liveness_changed(self, event: LivenessChanged) -> InventoryChange:
        """Take the registry's verdict on whether a node still registers."""
        record = self._nodes.setdefault(event.node, _NodeRecord())
        record.alive[event.device_type] = event.alive
        return self._settle(event.node, record) if record.node is not None else InventoryChange()

    def mode(self, name: str) -> AllocationMode:
        """How the node's agent tells which pod an Allocate call is for; ``envvar`` where nobody has said."""
        record = self._nodes.get(name)
        if record is None:
            return AllocationMode.ENVVAR
        newest = max(record.reported.values(), key=lambda event: event.generation, default=None)
        mirrored = max((copy.generation for copy in record.annotated.values()), default=-1)
        if newest is not None and (record.mode is None or newest.generation > mirrored):
            return newest.allocation_mode
        return record.mode or AllocationMode.ENVVAR

    def locks(self, name: str, assignments: Iterable[VendorAssignment]) -> tuple[str, ...]:
        """The node annotations that a pod which gets these takes as locks, in the order of taking.

        A lock is taken where a device plugin finds its pod by it: ours in its ``envvar`` mode, others always, some by a lock of their own.
        """
        if self.mode(name) is not AllocationMode.ENVVAR:
            return ()
        record = self._nodes.get(name)
        if record is not None and (record.mode is not None or any(not event.third_party for event in record.reported.values())):
            return (keys.NODE_LOCK,) if any(True for _ in assignments) else ()
        vendors = sorted((self._catalog.vendor(given.vendor) for given in assignments), key=lambda vendor: vendor.name)
        return tuple(dict.fromkeys(each.own_lock.key if each.own_lock else keys.NODE_LOCK for each in vendors if each.locks_nodes))

    def devices_of_kind(self, label: str, value: str) -> dict[str, Devices]:
        """The devices, by vendor, of the first node by name that has this label and any device; empty where there is none."""
        named = (
            name
            for name, record in self._nodes.items()
            if record.node and record.node.metadata.labels.get(label) == value and record.devices
        )
        name = min(named, default=None)
        return {} if name is None else dict(self._nodes[name].devices)

    def labels(self, name: str) -> Mapping[str, str]:
        """The node's labels; none of a node that is not in the cluster."""
        record = self._nodes.get(name)
        return {} if record is None or record.node is None else record.node.metadata.labels

    def known(self, name: str) -> bool:
        """Whether the node is in the cluster."""
        record = self._nodes.get(name)
        return record is not None and record.node is not None

    def _settle(self, name: str, record: _NodeRecord) -> InventoryChange:
        """Bring the state to what ``record`` says, changing only what differs."""
        devices: dict[str, Devices] = {}
        errors: dict[str, Fence] = {}
        if record.cordon_problem:
            errors[keys.DEVICE_CORDON] = Fence(
                node=name, source=keys.DEVICE_CORDON, reason=f"{keys.DEVICE_CORDON}: {record.cordon_problem}"
            )
        for vendor in self._catalog.vendors:
            known = record.devices.get(vendor.name)
            chosen, error = _choose(record.annotated.get(vendor.device_type), record.reported.get(vendor.device_type), known)
            if error:
                source = f"{vendor.device_type} registration"
                errors[source] = Fence(node=name, source=source, reason=error, vendor=vendor.name)
                chosen = known if chosen is None else chosen
            if chosen and record.node is not None:
                devices[vendor.name] = registrations.on_node(vendor, chosen, record.node)
        improved = self._apply_devices(name, record, devices, known=bool(devices or errors))
        improved |= self._apply_liveness(name, record)
        improved |= self._apply_allocatable(name, record)
        fenced = tuple(fence for source, fence in errors.items() if record.fenced.get(source) != fence)
        for source in [source for source in record.fenced if source not in errors]:
            self._state.unfence(name, source)
            improved = True
        for fence in fenced:
            self._state.fence(name, fence.source, fence.reason, vendor=fence.vendor)
        record.fenced = errors
        return InventoryChange(improved=improved, fenced=fenced)

    def _apply_devices(self, name: str, record: _NodeRecord, devices: dict[str, Devices], *, known: bool) -> bool:
        reported = (event.pair_scores for event in record.reported.values() if event.pair_scores)
        pair_scores = next(reported, None) or record.pair_scores
        wanted = (devices, record.cordoned, pair_scores)
        if record.given == wanted or (record.given is None and not known):
            return False
        self._state.upsert_node(name, devices, cordoned=record.cordoned, pair_scores=pair_scores)
        record.given = wanted
        return True

    def _apply_liveness(self, name: str, record: _NodeRecord) -> bool:
        improved = False
        for vendor in self._catalog.vendors:
            available = record.alive.get(vendor.device_type, vendor.device_type not in record.given_up)
            if available != record.available.get(vendor.name, True):
                self._state.set_available(name, vendor.name, available)
                record.available[vendor.name] = available
                improved |= available
        return improved

    def _apply_allocatable(self, name: str, record: _NodeRecord) -> bool:
        """Limit pods to what kubelet has allocatable. No count at all means that our agent has not registered with kubelet.

        Of a vendor's own plugin only 0 counts: what it registers is not always what it counts for kubelet.
        """
        improved = False
        for vendor in self._catalog.vendors:
            if vendor.name not in record.devices and vendor.name not in record.limits:
                continue
            count = record.allocatable.get(vendor.name)
            if _is_ours(record, vendor.device_type):
                limit: int | None = count or 0
            else:
                limit = 0 if count == 0 else None
            before = record.limits.get(vendor.name)
            if limit == before:
                continue
            self._state.set_allocatable(name, vendor.name, limit)
            if limit is None:
                del record.limits[vendor.name]
            else:
                record.limits[vendor.name] = limit
            improved |= before is not None and (limit is None or limit > before)
        return improved


def _is_ours(record: _NodeRecord, device_type: str) -> bool:
    """Whether an agent of ours registers the devices, rather than their vendor's own plugin."""
    reported, annotated = record.reported.get(device_type), record.annotated.get(device_type)
    return (reported is not None and not reported.third_party) or (annotated is not None and annotated.generation > 0)


def _allocatable(node: Node, resource: str) -> int | None:
    """How many of ``resource`` kubelet has allocatable; None where it lists none, 0 where that is no number."""
    text = (node.status.allocatable or {}).get(resource)
    if text is None:
        return None
    try:
        return int(quantities.exact(text))
    except QuantityError:
        return 0


def _read_registration(record: _NodeRecord, vendor: Vendor, node: Node) -> None:
    device_type = vendor.device_type
    said = registrations.device_record(vendor, node)
    if said is None:
        record.annotated.pop(device_type, None)
        return
    generation = _generation(node.metadata.annotations.get(keys.generation(device_type)))
    earlier = record.annotated.get(device_type)
    if earlier is not None and earlier.text == said.text:
        earlier.generation = generation
        return
    try:
        devices = said.read()
    except RecordError as exc:
        record.annotated[device_type] = _Annotated(said.text, generation, None, error=str(exc))
        return
    reported = record.reported.get(device_type)
    if reported is not None and reported.devices == devices:
        devices = reported.devices
    record.annotated[device_type] = _Annotated(said.text, generation, devices)


def _read_pair_scores(record: _NodeRecord, text: str) -> None:
    """Scores that cannot be read are no scores: the node loses a preference, and takes pods all the same (HAMi#1075)."""
    if text == record.pair_text:
        return
    record.pair_text = text
    try:
        record.pair_scores = {row.uuid: row.score for row in _PAIR_SCORES.decode(text)} if text else None
    except msgspec.DecodeError:
        record.pair_scores = None


def _choose(annotated: _Annotated | None, reported: DevicesReported | None, known: Devices | None) -> tuple[Devices | None, str]:
    """The devices that count, and what is wrong with the record that should have said so; ``known`` are those that count already."""
    if reported is None or not _is_newer(reported, annotated):
        return (None, "") if annotated is None else (annotated.devices, annotated.error)
    if reported.devices is not known:
        try:
            registration.check_ids(device.uuid for device in reported.devices)
        except RecordError as exc:
            return None, str(exc)
    return reported.devices, ""


def _is_newer(reported: DevicesReported, annotated: _Annotated | None) -> bool:
    if annotated is None or reported.generation > annotated.generation:
        return True
    return reported.third_party and annotated.devices is None


def _generation(text: str | None) -> int:
    """0 where there is none that can be read: any copy on the bus is then newer."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_GENERATION)):
        return 0
    return int(text)


def _gave_up(annotations: Mapping[str, str], vendor: Vendor) -> bool:
    text = annotations.get(vendor.handshake_key)
    if text is None and vendor.device_type == LEGACY_DEVICE_TYPE:
        text = annotations.get(keys.LEGACY_HANDSHAKE)
    if text is None:
        return False
    try:
        return isinstance(handshake.decode(text), handshake.Deleted)
    except RecordError:
        return False  # it says nothing about liveness; the registry overwrites it with its next handshake


def _mode(text: str | None) -> AllocationMode | None:
    try:
        return None if text is None else AllocationMode(text)
    except ValueError:
        return None

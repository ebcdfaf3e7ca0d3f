"""The reference's gauges of cards and shares, under both of their names, as pieces of a Prometheus page.

A cluster of 10,000 nodes has a million of these series, and all pods wait while one filter call runs: so a page is written in pieces of about a
millisecond, between which the event loop turns to others. What a card holds is read once for a page. Every series is keyed by node and device, since
one duplicate would fail a whole scrape. ``zone`` is ``vGPU`` on all of them, ``_ratio`` of cores is 0 to 100, of memory 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from hami_scheduler.placement import ClusterState, Entry

MIB: Final = 1 << 20
ZONE: Final = "vGPU"
NODES_A_PIECE: Final = 20
SERIES_A_PIECE: Final = 1000


class CardMetrics(StrEnum):
    """Which series of cards and shares are shown."""

    BOTH = "both"
    """Under their names and the earlier ones."""
    NEW = "new"
    NONE = "none"


class Card(NamedTuple):
    """One card and what pods hold of it; texts are escaped."""

    node: str
    uuid: str
    place: int
    type: str
    cores: int
    memory_mib: int
    held_mib: int
    held_shares: int
    held_cores: int
    percent: int
    """Its compute, and what is held of it, in percent: AMD's cards count in units of their own."""
    held_percent: int


class Held(NamedTuple):
    """What one container holds of one card; texts are escaped."""

    namespace: str
    node: str
    pod: str
    place: int
    uuid: str
    memory_mib: int
    cores: int
    percent: int


FIELDS: Final = {
    "node": "node",
    "nodeid": "node",
    "nodename": "node",
    "device_uuid": "uuid",
    "deviceuuid": "uuid",
    "device_index": "place",
    "deviceidx": "place",
    "device_type": "type",
    "devicetype": "type",
    "device_cores": "cores",
    "devicecores": "cores",
    "device_memory_limit": "memory_mib",
    "devicememorylimit": "memory_mib",
    "namespace": "namespace",
    "podnamespace": "namespace",
    "pod": "pod",
    "podname": "pod",
    "container_index": "place",
    "containeridx": "place",
}
"""Which field a label shows."""
Value = Callable[[Any], float | None]
"""What a series shows; None where it has nothing to show."""


class Family(NamedTuple):
    """One metric."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    value: Value
    earlier: bool
    """Whether it is the name from before."""

    def pieces(self, rows: Sequence[Card | Held]) -> Iterator[str]:
        """The metric's part of the page."""
        if not rows:
            return
        fields = type(rows[0])._fields
        shown = itemgetter(*(fields.index(FIELDS[label]) for label in self.labels))
        labels = ",".join(f'{label}="%s"' for label in self.labels)
        line = f'{self.name}{{zone="{ZONE}",{labels}}} '
        value = self.value
        yield f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} gauge\n"
        for start in range(0, len(rows), SERIES_A_PIECE):
            values = ((row, value(row)) for row in rows[start : start + SERIES_A_PIECE])
            yield "".join([f"{line % shown(row)}{number}\n" for row, number in values if number is not None])


def pieces(state: ClusterState, shown: CardMetrics = CardMetrics.BOTH) -> Iterator[str]:
    """The page, piece by piece; the state may change in between."""
    if shown is CardMetrics.NONE:
        return
    cards: list[Card] = []
    for place, node in enumerate(state.nodes(), 1):
        cards += _cards(state, node)
        if place % NODES_A_PIECE == 0:
            yield ""
    yield from _page(card_families(), cards, shown)
    units = {(card.node, card.uuid): card.cores for card in cards if card.type.lower().startswith("amd")}
    held: list[Held] = []
    for place, entry in enumerate(tuple(state.entries()), 1):
        held += _held(entry, units)
        if place % SERIES_A_PIECE == 0:
            yield ""
    yield from _page(share_families(), held, shown)


def _page(families: Iterable[Family], rows: Sequence[Card | Held], shown: CardMetrics) -> Iterator[str]:
    for family in families:
        if shown is CardMetrics.BOTH or not family.earlier:
            yield from family.pieces(rows)


def _held(entry: Entry, units: Mapping[tuple[str, str], int]) -> Iterator[Held]:
    """What one pod's containers hold; ``units`` has the cards whose compute is counted in units of their own."""
    namespace, node, pod = escaped(entry.pod.namespace), escaped(entry.node), escaped(entry.pod.name)
    for given in entry.assignments:
        for place, container in enumerate(given.containers):
            for share in container.shares:
                uuid = escaped(share.uuid)
                percent = share.cores_percent or _percent(share.cores, units.get((node, uuid), 100))
                yield Held(namespace, node, pod, place, uuid, share.memory_mib, share.cores, percent)


def _cards(state: ClusterState, node: str) -> list[Card]:
    """The cards of one node; of two with one UUID the first."""
    name = escaped(node)
    found: dict[str, Card] = {}
    for held in state.devices(node):
        device = held.device
        units = device.cores if device.type.lower().startswith("amd") else 100
        found.setdefault(
            device.uuid,
            Card(
                name,
                escaped(device.uuid),
                device.index,
                escaped(device.type),
                device.cores,
                device.memory_mib,
                held.used_memory_mib,
                held.used_shares,
                held.used_cores,
                _percent(device.cores, units),
                _percent(held.used_cores, units),
            ),
        )
    return list(found.values())


def _percent(cores: int, units: int) -> int:
    """``cores`` of a card that has 100 in ``units``, in percent."""
    return cores if units in {0, 100} else ceil(cores * 100 / units)


def card_families() -> tuple[Family, ...]:
    """The metrics of cards."""
    card = ("node", "device_uuid", "device_index", "device_type")
    old_card = ("nodeid", "deviceuuid", "deviceidx", "devicetype")
    return (
        *_pair("hami_gpu_memory_limit_bytes", card, "GPUDeviceMemoryLimit", old_card, "memory of a card", lambda row: row.memory_mib * MIB),
        *_pair(
            "hami_gpu_core_limit_ratio",
            card,
            "GPUDeviceCoreLimit",
            old_card,
            "compute of a card in percent",
            lambda row: row.percent,
            lambda row: row.cores,
        ),
        *_pair(
            "hami_gpu_memory_allocated_bytes",
            ("node", "device_uuid", "device_index", "device_cores", "device_type"),
            "GPUDeviceMemoryAllocated",
            ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicetype"),
            "memory of a card that pods hold",
            lambda row: row.held_mib * MIB,
        ),
        *_pair(
            "hami_gpu_shared_count", card, "GPUDeviceSharedNum", old_card, "how many shares of a card are held", lambda row: row.held_shares
        ),
        *_pair(
            "hami_gpu_core_allocated_ratio",
            card,
            "GPUDeviceCoreAllocated",
            old_card,
            "compute of a card that pods hold, in percent",
            lambda row: row.held_percent,
            lambda row: row.held_cores,
        ),
        *_pair(
            "hami_node_gpu_overview",
            ("node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type"),
            "nodeGPUOverview",
            ("nodeid", "deviceuuid", "deviceidx", "devicecores", "devicememorylimit", "devicetype"),
            "memory of a card that pods hold",
            lambda row: row.held_mib * MIB,
        ),
        *_pair(
            "hami_node_gpu_memory_allocated_ratio",
            card,
            "nodeGPUMemoryPercentage",
            ("nodeid", "deviceuuid", "deviceidx"),
            "part of a card's memory that pods hold, 0 to 1",
            lambda row: row.held_mib / row.memory_mib if row.memory_mib > 0 else None,
        ),
    )


def share_families() -> tuple[Family, ...]:
    """The metrics of what containers hold."""
    labels = ("namespace", "node", "pod", "container_index", "device_uuid")
    old_labels = ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid")
    return (
        *_pair(
            "hami_vgpu_memory_allocated_bytes",
            labels,
            "vGPUMemoryAllocated",
            old_labels,
            "memory that a container holds of a card",
            lambda row: row.memory_mib * MIB,
        ),
        *_pair(
            "hami_vgpu_core_allocated_ratio",
            labels,
            "vGPUCoreAllocated",
            old_labels,
            "compute that a container holds of a card",
            lambda row: row.percent,
            lambda row: row.cores,
        ),
    )


def _pair(
    name: str,
    labels: tuple[str, ...],
    old_name: str,
    old_labels: tuple[str, ...],
    meaning: str,
    value: Value,
    old_value: Value | None = None,
) -> tuple[Family, Family]:
    """A metric under both names; ``old_value`` where the earlier one shows something else."""
    earlier = f"{meaning} (earlier name of {name})"
    return Family(name, meaning, labels, value, earlier=False), Family(old_name, earlier, old_labels, old_value or value, earlier=True)


def escaped(text: str) -> str:
    """``text`` as the value of a label; anybody may have written it."""
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text

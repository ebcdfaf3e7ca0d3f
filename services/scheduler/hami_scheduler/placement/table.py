"""All devices of one vendor in the cluster, one array per attribute: ``column[place, node]``, a place for each device of the node.

A node's devices stand in the order in which ties are tried (``order.tie_key``, the last first), so that "the first of equals" here is what
the one-node function takes. Arrays grow by doubling; places beyond a node's devices hold zeros and are never accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from hami_devices import mig
from hami_devices.fit import with_mark
from hami_devices.model import Charge, DeviceState
from hami_protocol.devices import RegisteredDevice
from hami_scheduler.placement.copying import copied

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_COLUMNS: Final[dict[str, Any]] = {
    "total_memory": np.int64,
    "used_memory": np.int64,
    "total_cores": np.int64,
    "used_cores": np.int64,
    "total_shares": np.int64,
    "used_shares": np.int64,
    "numa": np.int64,
    "model": np.int32,
    "mode": np.int32,
    "kind": np.int32,
    "marked": np.int32,
    "healthy": np.bool_,
    "cordoned": np.bool_,
}
NO_LIMIT: Final = -1
_USED: Final = ("used_shares", "used_memory", "used_cores")
_TOTAL: Final = ("total_shares", "total_memory", "total_cores")


class Sums:
    """Slots, memory and cores of each node, over all vendors: what node scores are made of."""

    __slots__ = ("total_cores", "total_memory", "total_shares", "used_cores", "used_memory", "used_shares")

    def __init__(self, nodes: int = 0) -> None:
        for name in (*_USED, *_TOTAL):
            setattr(self, name, np.zeros(nodes, np.int64))

    total_shares: Ints
    used_shares: Ints
    total_memory: Ints
    used_memory: Ints
    total_cores: Ints
    used_cores: Ints

    def grow(self, nodes: int) -> None:
        """Make room for ``nodes`` nodes."""
        for name in (*_USED, *_TOTAL):
            old = getattr(self, name)
            new = np.zeros(nodes, np.int64)
            new[: len(old)] = old
            setattr(self, name, new)


class Table:
    """The columns of one vendor. Nodes are numbers, given by the caller; the same for all tables."""

    total_memory: Ints
    used_memory: Ints
    total_cores: Ints
    used_cores: Ints
    total_shares: Ints
    used_shares: Ints
    numa: Ints
    model: npt.NDArray[np.int32]
    mode: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int32]
    """Devices of one kind differ in nothing but UUID and health; kept only where the vendor has rules of its own."""
    marked: npt.NDArray[np.int32]
    """How the slots in use are used, as a place in ``mark_sets``."""
    healthy: Flags
    cordoned: Flags

    def __init__(self, vendor: str, sums: Sums, nodes: int, *, own_rules: bool = False) -> None:
        self.vendor = vendor
        self._own_rules = own_rules
        self._sums = sums
        self.count: Ints = np.zeros(nodes, np.int64)
        """Devices per node."""
        self.available: Flags = np.ones(nodes, np.bool_)
        """Whether the node still registers them."""
        self.held: Flags = np.zeros(nodes, np.bool_)
        """Whether the node takes no new pods, since its agent does not serve them."""
        self.allocatable: Ints = np.full(nodes, NO_LIMIT, np.int64)
        """How many device ids kubelet has allocatable; ``NO_LIMIT`` where that is not known or not counted in shares."""
        self.short: Flags = np.zeros(nodes, np.bool_)
        """Whether that is less than the shares of the node's healthy devices: only then it limits anything."""
        self.fenced: Flags = np.zeros(nodes, np.bool_)
        """Whether a record of this vendor alone cannot be read."""
        self.devices: list[tuple[RegisteredDevice, ...]] = [()] * nodes
        self.models: list[str] = []
        self.modes: list[str] = []
        self.mark_sets: list[tuple[tuple[str, int], ...]] = [()]
        self.places = 0
        self.unhealthy_count = self.cordoned_count = self.mig_count = self.device_count = 0
        self._model_ids: dict[str, int] = {}
        self._mode_ids: dict[str, int] = {}
        self._kind_ids: dict[str, int] = {}
        self._mark_ids: dict[tuple[tuple[str, int], ...], int] = {(): 0}
        self._by_uuid: dict[str, tuple[tuple[int, int], ...]] = {}
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros((0, nodes), kind))

    def copy(self, sums: Sums) -> Table:
        """The same, over a copy of the sums."""
        return copied(self, _sums=sums)

    def grow(self, nodes: int) -> None:
        """Make room for ``nodes`` nodes."""
        more = nodes - len(self.count)
        self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        self.available = np.concatenate([self.available, np.ones(more, np.bool_)])
        self.held = np.pad(self.held, (0, more))
        self.fenced = np.pad(self.fenced, (0, more))
        self.allocatable = np.pad(self.allocatable, (0, more), constant_values=NO_LIMIT)
        self.short = np.pad(self.short, (0, more))
        self.devices.extend([()] * more)
        self._resize(self.places, nodes)

    def _resize(self, places: int, nodes: int) -> None:
        for name, kind in _COLUMNS.items():
            old = getattr(self, name)
            new = np.zeros((places, nodes), kind)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
        self.places = places

    def set_node(self, node: int, devices: Sequence[RegisteredDevice], cordoned: frozenset[str], charges: Iterable[Charge]) -> None:
        """Make ``devices`` the node's, with ``charges`` on them; what was there before is forgotten."""
        self._clear(node)
        ordered = sorted(devices, key=lambda device: (device.index, device.uuid), reverse=True)
        if len(ordered) > self.places:
            self._resize(len(ordered), len(self.count))
        self.devices[node] = tuple(ordered)
        self.count[node] = len(ordered)
        for place, device in enumerate(ordered):
            self._set_device(place, node, device, device.uuid in cordoned)
        for charge in charges:
            self.charge(node, charge, 1)
        self.set_allocatable(node, int(self.allocatable[node]))

    def set_allocatable(self, node: int, count: int) -> None:
        """Note how many device ids kubelet has allocatable; see ``allocatable``."""
        self.allocatable[node] = count
        self.short[node] = count != NO_LIMIT and count < int((self.total_shares[:, node] * self.healthy[:, node]).sum())

    def ids_in_use(self, nodes: Any) -> Ints:
        """How many of the device ids that kubelet has allocatable are taken, on each of ``nodes`` (numbers or a slice)."""
        taken = np.minimum(self.used_shares[:, nodes], self.total_shares[:, nodes]) * self.healthy[:, nodes]
        total: Ints = taken.sum(axis=0)
        return total

    def _set_device(self, place: int, node: int, device: RegisteredDevice, cordoned: bool) -> None:
        self.total_memory[place, node] = device.memory_mib
        self.total_cores[place, node] = device.cores
        self.total_shares[place, node] = device.shares
        self.numa[place, node] = device.numa
        self.model[place, node] = _identify(device.type, self._model_ids, self.models)
        self.mode[place, node] = _identify(device.mode, self._mode_ids, self.modes)
        if self._own_rules:
            self.kind[place, node] = self._kind_ids.setdefault(_kind(device), len(self._kind_ids))
        self.healthy[place, node] = device.healthy
        self.cordoned[place, node] = cordoned
        self._count_flags(device, cordoned, 1)
        self._sums.total_memory[node] += device.memory_mib
        self._sums.total_cores[node] += device.cores
        self._sums.total_shares[node] += device.shares
        self._by_uuid[device.uuid] = (*self._by_uuid.get(device.uuid, ()), (place, node))

    def _count_flags(self, device: RegisteredDevice, cordoned: bool, sign: int) -> None:
        self.device_count += sign
        self.unhealthy_count += sign * (not device.healthy)
        self.cordoned_count += sign * cordoned
        self.mig_count += sign * (device.mode == mig.MODE)

    def _clear(self, node: int) -> None:
        for place, device in enumerate(self.devices[node]):
            self._count_flags(device, bool(self.cordoned[place, node]), -1)
            left = tuple(at for at in self._by_uuid[device.uuid] if at != (place, node))
            if left:
                self._by_uuid[device.uuid] = left
            else:
                del self._by_uuid[device.uuid]
        for name in (*_USED, *_TOTAL):
            getattr(self._sums, name)[node] -= getattr(self, name)[:, node].sum()
        for name in _COLUMNS:
            getattr(self, name)[:, node] = 0
        self.devices[node] = ()
        self.count[node] = 0

    def charge(self, node: int, charge: Charge, sign: int) -> None:
        """Put ``charge`` on the node's device, or with ``sign`` -1 take it off. A device that the node does not list is charged when it returns."""
        for place, device in enumerate(self.devices[node]):
            if device.uuid == charge.uuid:
                shares, memory, cores = sign * charge.shares, sign * charge.memory_mib, sign * charge.cores
                self.used_shares[place, node] += shares
                self.used_memory[place, node] += memory
                self.used_cores[place, node] += cores
                self._sums.used_shares[node] += shares
                self._sums.used_memory[node] += memory
                self._sums.used_cores[node] += cores
                if charge.mark:
                    self._mark(place, node, charge.mark, shares)
                for instance in charge.instances:
                    self._mark(place, node, mig.mark(instance), sign)
                return

    def _mark(self, place: int, node: int, mark: str, slots: int) -> None:
        """Mark so many more slots of a device."""
        after = with_mark(self.mark_sets[self.marked[place, node]], mark, slots)
        found = self._mark_ids.get(after)
        if found is None:
            found = self._mark_ids[after] = len(self.mark_sets)
            self.mark_sets.append(after)
        self.marked[place, node] = found

    def at(self, uuids: Iterable[str]) -> list[tuple[int, int]]:
        """Where devices with these UUIDs stand: place and node."""
        return [at for uuid in uuids for at in self._by_uuid.get(uuid, ())]

    def states(self, node: int) -> list[DeviceState]:
        """The node's devices with what is charged on them."""
        used = zip(
            self.devices[node],
            self.used_shares[:, node].tolist(),
            self.used_memory[:, node].tolist(),
            self.used_cores[:, node].tolist(),
            self.cordoned[:, node].tolist(),
            self.marked[:, node].tolist(),
            strict=False,
        )
        return [
            DeviceState(
                device=device,
                vendor=self.vendor,
                used_shares=shares,
                used_memory_mib=memory,
                used_cores=cores,
                cordoned=cordoned,
                marks=self.mark_sets[marked],
            )
            for device, shares, memory, cores, cordoned, marked in used
        ]

    def used(self, node: int) -> Mapping[str, tuple[int, int, int]]:
        """What the columns say is charged on each of the node's devices."""
        return {state.device.uuid: (state.used_shares, state.used_memory_mib, state.used_cores) for state in self.states(node)}


def _kind(device: RegisteredDevice) -> str:
    return repr(msgspec.structs.replace(device, uuid="", healthy=True))


def _identify(text: str, ids: dict[str, int], texts: list[str]) -> int:
    found = ids.get(text)
    if found is None:
        found = ids[text] = len(texts)
        texts.append(text)
    return found

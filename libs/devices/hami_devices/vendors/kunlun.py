"""Kunlunxin: whole XPUs, and shares of them (vXPU). Both are chosen by where they stand on the board: two wings of four, linked in pairs.

A card that is cut is cut in slices of one size: 24, 48 or 96 GiB.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from hami_devices.admission import Mutation, resized
from hami_devices.capacity import count_devices, equal_devices
from hami_devices.config_sections import KunlunConfig
from hami_devices.demands import whole_device
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import missing_count, read_count, read_memory, refused
from hami_devices.rules import Choice, Demand, Outcome, Picked, Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import keys
from hami_protocol.devices import RegisteredDevice
from hami_protocol.kubernetes import Node

WHOLE, SHARED = "kunlun", "XPU"
SLICES_MIB: Final = (24576, 49152, 98304)
CARD_MIB: Final = SLICES_MIB[-1]
COUNTS: Final = (1, 2, 4, 8)
INDEXES = "BAIDU_COM_DEVICE_IDX"

_WING: Final = 4
_SIZES: Final = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""Eligible devices of a wing, best first, by how many are wanted: a wing that is broken already is broken further."""
_LINKED: Final = ((0, 4), (1, 5), (2, 6), (3, 7))
_QUADS: Final = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))

_SELECTORS: Final = SelectorKeys(
    use_uuids="hami.io/use-xpu-uuid",
    avoid_uuids="hami.io/no-use-xpu-uuid",
    use_uuids_too="baidu.com/use-gpuuuid",
    avoid_uuids_too="baidu.com/nouse-gpuuuid",
)


def whole(config: KunlunConfig) -> Vendor:
    """Whole XPUs under ``config``."""
    return Vendor(
        name=WHOLE,
        device_type="kunlun",
        count_resource=config.count_resource,
        register_key=keys.register("kunlun"),
        allocated_key="hami.io/kunlun-allocated",
        selector_keys=_SELECTORS,
        read_capacity=partial(_devices, config),
        read=_read_whole,
        rules=Rules(demand=whole_device, pick=_pick, bonus=_bonus),
        written_keys=(INDEXES,),
        written=_written,
        locks_nodes=False,
    )


def shared(config: KunlunConfig) -> Vendor:
    """Shares of XPUs under ``config``."""
    return Vendor(
        name=SHARED,
        device_type="xpu",
        count_resource=config.share_resource,
        memory_resource=config.memory_resource,
        register_key="hami.io/node-register-xpu",
        registers_json=True,
        handshake_key="hami.io/node-handshake-xpu",
        allocated_key="hami.io/xpu-devices-allocated",
        to_allocate_key="hami.io/xpu-devices-to-allocate",
        selector_keys=_SELECTORS,
        read=_read_shared,
        mutate=_mutate,
        rules=Rules(demand=_slice_of, pick=_pick),
    )


def _devices(config: KunlunConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    count = count_devices(node, config.count_resource)
    alike = equal_devices(node, count, infix="kunlun", shares=100, memory_mib=CARD_MIB, cores=100, type_=WHOLE)
    return tuple(msgspec.structs.replace(device, numa=int(device.index >= count // 2)) for device in alike)


# What is asked


def _count(asking: Asking) -> int:
    count = read_count(asking)
    if count is None:
        missing_count(asking)
    if count and count not in COUNTS:
        raise refused(asking, asking.vendor.count_resource, "1, 2, 4 or 8, as devices are linked")
    return count


def _read_whole(asking: Asking) -> DeviceRequest | None:
    count = _count(asking)
    if not count:
        return None
    return DeviceRequest(vendor=asking.vendor.name, count=count, memory_percent=100, cores=100, rules=asking.vendor.rules)


def _read_shared(asking: Asking) -> DeviceRequest | None:
    """Memory is rounded up to a slice, and a slice comes with its part of the cores."""
    count, asked_mib = _count(asking), read_memory(asking)
    if not count:
        return None
    vendor = asking.vendor
    if not asked_mib:
        return DeviceRequest(vendor=vendor.name, count=count, memory_percent=100, cores=100, rules=vendor.rules)
    slice_mib = slice_for(asked_mib)
    if slice_mib is None:
        raise refused(asking, vendor.memory_resource, f"at most {CARD_MIB} MiB")
    return DeviceRequest(vendor=vendor.name, count=count, memory_mib=slice_mib, cores=slice_mib * 100 // CARD_MIB, rules=vendor.rules)


def slice_for(memory_mib: int) -> int | None:
    """The smallest slice that holds so much; None where there is none."""
    return next((slice_mib for slice_mib in SLICES_MIB if memory_mib <= slice_mib), None)


def _mutate(asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    if request.memory_mib:
        yield from resized(asking, asking.vendor.memory_resource, request.memory_mib)


# What fits


def _slice_of(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    """A slice of a device whose other slices are as large."""
    memory_mib = request.memory_on(state.device.memory_mib)
    if state.used_shares and not request.whole and state.used_memory_mib // state.used_shares != memory_mib:
        return Reason.MODE
    return Demand(memory_mib=memory_mib, cores=request.cores)


def _pick(choice: Choice) -> Picked:
    """Devices that are linked, breaking as little of the board as possible."""
    fitting = {state.device.uuid for state in choice.fitting}
    places = [place for place, state in enumerate(choice.devices) if state.device.uuid in fitting]
    chosen = places_for(choice.request.count, places)
    return {Reason.NUMA: 1} if chosen is None else tuple(choice.devices[place] for place in chosen)


def places_for(count: int, eligible: Sequence[int]) -> tuple[int, ...] | None:
    """Which ``count`` of the places ``eligible`` (ascending) to take; None where none are linked as they must be."""
    if count not in _SIZES:
        return tuple(eligible[:count]) if count in COUNTS and len(eligible) >= count else None
    wings = [[place for place in eligible if place < _WING], [place for place in eligible if place >= _WING]]
    for size in _SIZES[count]:
        for wing in wings:
            if len(wing) == size:
                return tuple(wing[:count])
    roomy = next((wing for wing in wings if len(wing) >= count), None)  # a board with more than eight
    return tuple(roomy[:count]) if roomy else _across(count, frozenset(eligible))


def _across(count: int, eligible: frozenset[int]) -> tuple[int, ...] | None:
    if count == 2:  # a pair
        return next((pair for pair in _LINKED if eligible.issuperset(pair)), None)
    whole = [quad for quad in _QUADS if eligible.issuperset(quad)]
    if len(eligible) == 6:  # the two that are left should be linked as well
        kept = (quad for quad in whole if _connected(sorted(eligible.difference(quad))))
        return next(kept, whole[-1] if whole else None)
    return whole[0] if whole else None


def _connected(pair: Sequence[int]) -> bool:
    return tuple(pair) in _LINKED or pair[0] // _WING == pair[1] // _WING


# How good a node is


def _bonus(outcome: Outcome) -> float:
    """3000 where the board is left less broken than it was, 2000 where as broken, less where more."""
    places = {state.device.uuid: place for place, state in enumerate(outcome.devices)}
    before = {places[state.device.uuid] for state in outcome.devices if state.used_shares}
    taken = {places[state.device.uuid] for state in itertools.chain.from_iterable(outcome.containers)}
    return bonus(before, before | taken)


def bonus(before: set[int], after: set[int]) -> float:
    """Points for a board on which the places ``before`` are used now, and ``after`` then."""
    return float(max(0, min(3, 2 - brokenness(after) + brokenness(before))) * 1000)


def brokenness(used: set[int]) -> int:
    """How broken a board with these places in use is."""
    left = sum(place < _WING for place in used)
    right = len(used) - left
    return _wing_brokenness(left) + _wing_brokenness(right) if used else 1


def _wing_brokenness(used: int) -> int:
    return {_WING: 0, 1: 2}.get(used, 1)


def _written(granted: Granted) -> Mapping[str, str]:
    """The plugin takes one list per pod: that of the last container with devices."""
    last = [container.shares for container in granted.assignment.containers if container.shares][-1]
    return {INDEXES: ",".join(str(granted.index(share)) for share in last)}

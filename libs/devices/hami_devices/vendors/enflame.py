"""Enflame: whole GCUs, counted from the node's capacity, and slices of them (DRS), cut by the profiles that a node offers.

A container asks either for slices (the count resource), or for memory and cores, and gets the smallest profile that has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from hami_devices.admission import Mutation, SetLimit
from hami_devices.capacity import count_devices, equal_devices
from hami_devices.config_sections import EnflameConfig
from hami_devices.demands import whole_device
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import quantity, read_cores, read_count, refused
from hami_devices.rules import Demand, Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import keys, quantities
from hami_protocol.devices import DeviceShare, RegisteredDevice
from hami_protocol.errors import QuantityError, RecordError
from hami_protocol.kubernetes import Container, Node, Quantity

WHOLE, SLICED = "GCU", "Enflame"
WHOLE_AMOUNT = 100
"""What a whole GCU has of memory and of cores: the unit is the card."""
CAPACITY = "enflame.com/gcu-drs-capacity"
ASSIGNED, ASSIGNED_TIME, CONTAINERS = "enflame.com/gcu-assigned", "enflame.com/gcu-assigned-time", "assigned-containers"
ASSIGNED_INDEX, ASSIGNED_ID = "enflame.com/gcu-assigned-index", "enflame.com/gcu-assigned-id"
ASSIGNED_MINOR, REQUEST_SIZE = "enflame.com/gcu-assigned-minor", "enflame.com/gcu-request-size"
DEFAULT_SLICES_RESOURCE = "enflame.com/drs-gcu"
GIB_IN_MIB = 1024
LARGEST_IN_GIB = 1024
"""A bare amount of memory below this is in GiB, from here on in MiB, whatever the node has."""
_PROFILE: Final = re.compile(r"(\d{1,9})g\.(\d{1,9})gb", re.ASCII)
_MAX: Final = 2**31 - 1


def whole(config: EnflameConfig) -> Vendor:
    """Whole GCUs under ``config``."""
    return Vendor(
        name=WHOLE,
        device_type="gcu",
        count_resource=config.count_resource,
        register_key=keys.register("gcu"),
        allocated_key="hami.io/enflame-gcu-devices-allocated",
        to_allocate_key="hami.io/enflame-gcu-devices-to-allocate",
        whole_device_cores=WHOLE_AMOUNT,
        read_capacity=partial(_devices, config),
        rules=Rules(demand=whole_device),
        locks_nodes=False,
    )


def sliced(config: EnflameConfig) -> Vendor:
    """Slices of GCUs under ``config``."""
    return Vendor(
        name=SLICED,
        device_type="enflame",
        count_resource=_first(config.slices_resource, config.legacy_slices_resource, DEFAULT_SLICES_RESOURCE),
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register("enflame"),
        own_key=CAPACITY,
        read_own=read_devices,
        allocated_key="hami.io/enflame-vgpu-devices-allocated",
        selector_keys=SelectorKeys(use_uuids="enflame.com/use-gpuuuid", avoid_uuids="enflame.com/nouse-gpuuuid"),
        least_cores=1,
        read=_read,
        mutate=_mutate,
        rules=Rules(demand=_demand),
        written_keys=(ASSIGNED, ASSIGNED_TIME, CONTAINERS, ASSIGNED_INDEX, ASSIGNED_ID, ASSIGNED_MINOR, REQUEST_SIZE),
        written=_written,
        recall=_recall,
        locks_nodes=False,
    )


def _first(*names: str | None) -> str:
    return next(name for name in names if name is not None)


def _devices(config: EnflameConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    count = count_devices(node, config.count_resource)
    return equal_devices(node, count, infix="GCU", shares=1, memory_mib=WHOLE_AMOUNT, cores=WHOLE_AMOUNT, type_=WHOLE)


# What a node offers


class _Capacity(Struct, frozen=True, kw_only=True):
    index: str = ""
    minor: str = ""
    capacity: Quantity = 0


class _Offer(Struct, frozen=True, kw_only=True):
    devices: tuple[_Capacity, ...] = ()
    profiles: dict[str, str] = msgspec.field(default_factory=dict)


class Profile(Struct, frozen=True, kw_only=True, order=True):
    """A way to cut a card: so many of its slices, with so much memory. The smaller first."""

    slices: int
    memory_gib: int
    name: str = ""
    id: str = ""


def read_profile(name: str, identity: str) -> Profile | None:
    """The profile that ``name`` describes, as ``3g.20gb``; None where it describes none that a card could have."""
    found = _PROFILE.fullmatch(name.strip().lower())
    if found is None:
        return None
    slices, memory_gib = int(found[1]), int(found[2])
    fits = 0 < slices <= _MAX and 0 < memory_gib * GIB_IN_MIB <= _MAX
    return Profile(slices=slices, memory_gib=memory_gib, name=name, id=identity) if fits else None


def read_devices(text: str, node: str) -> tuple[RegisteredDevice, ...]:
    """The cards that Enflame's own plugin offers slices of.

    Raises:
        RecordError: it cannot be read, or no profile of it can.
    """
    try:
        offer = msgspec.json.decode(text, type=_Offer)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RecordError(CAPACITY, 0, str(exc)) from exc
    profiles = sorted(profile for name, identity in offer.profiles.items() if (profile := read_profile(name, identity)) is not None)
    if not profiles:
        raise RecordError(CAPACITY, 0, f"no profile among {len(offer.profiles)}; accepted: names as 3g.20gb")
    most_slices = max(profile.slices for profile in profiles)
    memory_mib = max(profile.memory_gib for profile in profiles) * GIB_IN_MIB
    devices = []
    for place, card in enumerate(offer.devices):
        index = int(card.index) if card.index.isascii() and card.index.isdigit() and len(card.index) < 10 else place
        devices.append(
            RegisteredDevice(
                uuid=f"{node}-enflame-drs-{index}",
                index=index,
                shares=_slices_offered(card.capacity, place),
                memory_mib=memory_mib,
                cores=100,
                type=SLICED,
                custom_info={
                    "minor": card.minor.strip() or str(index),
                    "index": str(index),
                    "profiles": {profile.name: profile.id for profile in profiles},
                    "maxSlice": most_slices,
                },
            )
        )
    if len({device.uuid for device in devices}) != len(devices):
        raise RecordError(CAPACITY, 0, "a device appears twice")
    return tuple(devices)


def _slices_offered(capacity: Quantity, place: int) -> int:
    try:
        slices = quantities.parse_count(capacity, field=f"devices[{place}].capacity")
    except QuantityError as exc:
        raise RecordError(CAPACITY, 0, str(exc)) from exc
    if not slices:
        raise RecordError(CAPACITY, 0, f"devices[{place}].capacity is 0; accepted: 1 or more")
    return slices


def profiles_of(device: RegisteredDevice) -> list[Profile]:
    """The profiles that a card offers, the smallest first; none where what it says of them cannot be read."""
    said: Any = device.custom_info.get("profiles")
    if not isinstance(said, Mapping):
        return []
    return sorted(profile for name, identity in said.items() if (profile := read_profile(str(name), str(identity))) is not None)


# What is asked


def _read(asking: Asking) -> DeviceRequest | None:
    """Slices, or memory and cores, of one card."""
    vendor = asking.vendor
    slices = read_count(asking)
    if slices is not None:
        if not slices:
            raise refused(asking, vendor.count_resource, "1 slice or more")
        return DeviceRequest(vendor=vendor.name, count=1, parts=slices, rules=vendor.rules)
    memory_mib, cores = _memory(asking), read_cores(asking)
    if memory_mib is None and cores is None:
        return None
    return DeviceRequest(vendor=vendor.name, count=1, memory_mib=memory_mib or 0, cores=cores or 0, rules=vendor.rules)


def _memory(asking: Asking) -> int | None:
    resource = asking.vendor.memory_resource
    found = quantity(asking.container, asking.path, resource)
    if found is None:
        return None
    in_mib = found.read(quantities.parse_memory_mib)
    bare = not str(found.value).endswith("i")
    if not in_mib:
        raise refused(asking, resource, "more than 0")
    return found.read(quantities.parse_memory_mib, unit_mib=GIB_IN_MIB) if bare and in_mib < LARGEST_IN_GIB else in_mib


def _mutate(asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    """What is only in the requests is a limit too."""
    del request
    for resource in asking.vendor.resources:
        found = quantity(asking.container, asking.path, resource)
        if found is not None and resource not in (asking.container.resources.limits or {}):
            yield SetLimit(path=asking.path, resource=resource, value=str(found.value))


# What fits


def profile_for(device: RegisteredDevice, request: DeviceRequest) -> Profile | None:
    """The smallest profile of the card that gives what is asked; None where none does."""
    profiles = profiles_of(device)
    most_slices = max((profile.slices for profile in profiles), default=1)
    for profile in profiles:
        if request.parts:
            if profile.slices == request.parts:
                return profile
        elif profile.memory_gib * GIB_IN_MIB >= request.memory_mib and cores_of(profile, most_slices) >= request.cores:
            return profile
    return None


def cores_of(profile: Profile, most_slices: int) -> int:
    """Percent of a card's cores that come with a profile, rounded up."""
    return -(-profile.slices * 100 // most_slices)


def _demand(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    profile = profile_for(state.device, request)
    if profile is None:
        return Reason.MODE
    most_slices = max(each.slices for each in profiles_of(state.device))
    return Demand(memory_mib=profile.memory_gib * GIB_IN_MIB, cores=cores_of(profile, most_slices), slots=profile.slices)


# What is written


def _written(granted: Granted) -> Mapping[str, str]:
    """The plugin takes one card per pod, that of the first container with one, and each container's profile."""
    first = granted.shares[0]
    device = granted.devices.get(first.uuid)
    index = str(granted.index(first))
    containers = {
        container.container or f"container-{place}": _assigned(granted, container.shares[0])
        for place, container in enumerate(granted.assignment.containers)
        if container.shares
    }
    return {
        ASSIGNED: "false",
        ASSIGNED_TIME: str(granted.time_ns),
        CONTAINERS: msgspec.json.encode(containers).decode(),
        ASSIGNED_INDEX: index,
        ASSIGNED_ID: index,
        ASSIGNED_MINOR: str(device.custom_info.get("minor", index)) if device is not None else index,
        REQUEST_SIZE: str(first.slots),
    }


def _assigned(granted: Granted, share: DeviceShare) -> dict[str, Any]:
    device = granted.devices.get(share.uuid)
    profiles = [] if device is None else profiles_of(device)
    cut = next((each for each in profiles if (each.slices, each.memory_gib * GIB_IN_MIB) == (share.slots, share.memory_mib)), None)
    return {
        "allocated": False,
        "request": share.slots,
        "profileID": "" if cut is None else cut.id,
        "profileName": "" if cut is None else cut.name,
    }


def _recall(share: DeviceShare, container: Container, annotations: Mapping[str, str]) -> DeviceShare:
    """A share takes as many slots as it has slices, which the text does not say.

    Raises:
        RecordError: the annotation that says so cannot be read.
    """
    text = annotations.get(CONTAINERS)
    if not text:
        return share
    try:
        request = msgspec.json.decode(text)[container.name]["request"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, IndexError) as exc:
        raise RecordError(CONTAINERS, 0, f"says nothing that can be read of container {container.name}") from exc
    if isinstance(request, bool) or not isinstance(request, int) or not 0 < request <= _MAX:
        raise RecordError(CONTAINERS, 0, f"container {container.name} has {str(request)[:32]} slices; accepted: 1 to {_MAX}")
    return msgspec.structs.replace(share, slots=request)

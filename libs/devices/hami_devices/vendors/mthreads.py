"""Moore Threads. Memory is asked in units of 512 MiB, cores in sixteenths of a card; both, in the limits, for all of a container's cards together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from hami_devices.admission import Mutation, SetAnnotation
from hami_devices.capacity import amount, count_devices, equal_devices
from hami_devices.config_sections import MooreThreadsConfig
from hami_devices.model import DeviceRequest
from hami_devices.requests import missing_count, quantity, read_count, read_memory, refused
from hami_devices.rules import Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import keys, quantities
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Node

NAME = "Mthreads"
DEVICE_TYPE = "mthreads"
UNIT_MIB = 512
CARD_CORES = 16
SIZES_MIB: Final = tuple(UNIT_MIB * units for units in (2, 4, 8, 16, 32, 64, 96))
"""In which a card can be cut."""
REQUESTED = "mthreads.com/request-gpu-num"
INDEX, TIME, NODE = "mthreads.com/gpu-index", "mthreads.com/predicate-time", "mthreads.com/predicate-node"


def vendor(config: MooreThreadsConfig) -> Vendor:
    """Moore Threads' spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        allocated_key="hami.io/mthreads-vgpu-devices-allocated",
        selector_keys=SelectorKeys(use_uuids="mthreads.ai/use-gpuuuid", avoid_uuids="mthreads.ai/nouse-gpuuuid"),
        memory_unit_mib=UNIT_MIB,
        whole_device_cores=CARD_CORES,
        read_capacity=partial(_devices, config),
        read=_read,
        mutate=_mutate,
        rules=Rules(apart=True),
        written_keys=(INDEX, TIME, NODE),
        written=_written,
        locks_nodes=False,
    )


def _devices(config: MooreThreadsConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    cores, memory = amount(node, config.cores_resource), amount(node, config.memory_resource)
    if not cores:
        return ()
    memory_mib = memory * UNIT_MIB * CARD_CORES // cores
    if memory_mib >= 2**31:
        raise RecordError("node capacity", 0, f"{memory} of {config.memory_resource} on {cores} cores is {memory_mib} MiB a device")
    count = count_devices(node, config.cores_resource, parts=CARD_CORES)
    return equal_devices(node, count, infix="mthreads", shares=100, memory_mib=memory_mib, cores=CARD_CORES, type_=NAME)


def _read(asking: Asking) -> DeviceRequest | None:
    """A card of its own size where nothing is said of memory; else an equal part of each card, in one of the sizes."""
    vendor = asking.vendor
    count, memory_mib = read_count(asking), read_memory(asking)
    cores = quantity(asking.container, asking.path, vendor.cores_resource)
    if count is None:
        missing_count(asking)
    if count < 1:
        raise refused(asking, vendor.count_resource, "1 or more")
    per_card_mib, rest = divmod(memory_mib or 0, count)
    if memory_mib is not None and (rest or per_card_mib not in SIZES_MIB):
        sizes = ", ".join(str(size // UNIT_MIB) for size in SIZES_MIB)
        raise refused(
            asking, vendor.memory_resource, f"{sizes} units of {UNIT_MIB} MiB" + (f" for each of {count} cards" if count > 1 else "")
        )
    whole = memory_mib is None
    all_cores = (CARD_CORES * count if whole else 0) if cores is None else cores.read(quantities.parse_count)
    per_card_cores, rest = divmod(all_cores, count)
    if rest or per_card_cores > CARD_CORES:
        raise refused(asking, vendor.cores_resource, f"0 to {CARD_CORES} for each of {count} cards")
    return DeviceRequest(
        vendor=vendor.name,
        count=count,
        memory_mib=per_card_mib,
        memory_percent=100 if whole else 0,
        cores=per_card_cores,
        rules=vendor.rules,
    )


def _mutate(asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    """One number per pod: that of the last container with several cards, unless the pod says one itself."""
    if request.count > 1 and not asking.annotations.get(REQUESTED, "").isdecimal():
        yield SetAnnotation(name=REQUESTED, value=str(request.count))


def _written(granted: Granted) -> Mapping[str, str]:
    """The plugin takes one list per pod: that of the last container with devices."""
    last = [container.shares for container in granted.assignment.containers if container.shares][-1]
    return {INDEX: ",".join(str(granted.index(share)) for share in last), TIME: str(granted.time_ns), NODE: granted.node}

"""AWS Neuron: whole devices, or one or two cores of a device. A device's cores are bits: its text and its charge are masks, lowest bit first.

Several devices are a block of neighbours that nobody uses. On Inferentia a block starts anywhere, on Trainium at a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from hami_devices.capacity import amount, count_devices, equal_devices
from hami_devices.config_sections import NeuronConfig
from hami_devices.groups import info_text
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import quantity, read_count, refused
from hami_devices.rules import Choice, Demand, Picked, Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import keys, quantities
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import containers_in_order

NAME = "AWSNeuron"
DEVICE_TYPE = "awsneuron"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
NODE_TYPE = "AWSNodeType"
IDS, RESOURCE_TYPE, TIME, ALLOCATED = "AWS_NEURON_IDS", "NEURON_RESOURCE_TYPE", "NEURON_ALLOC_TIME", "NEURON_ALLOCATED"
PREDICATE_NODE = "aws.amazon.com/predicate-node"
CORES_TOGETHER: Final = 2
"""So many cores of one device are asked at once; more are as many devices."""
MOST_CORES: Final = 31
_TRAINIUM_BLOCKS: Final = (1, 4, 8, 16)


def vendor(config: NeuronConfig) -> Vendor:
    """AWS Neuron's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        allocated_key="hami.io/aws-neuron-devices-allocated",
        selector_keys=SelectorKeys(use_uuids="aws.amazon.com/use-neuron-uuid", avoid_uuids="aws.amazon.com/nouse-neuron-uuid"),
        read_capacity=partial(_devices, config),
        on_node=_typed,
        read=_read,
        mutate=lambda _asking, _request: (),
        cores_are_bits=True,
        rules=Rules(demand=_demand, pick=_pick),
        written_keys=(IDS, RESOURCE_TYPE, TIME, ALLOCATED, PREDICATE_NODE),
        written=partial(_written, config),
        locks_nodes=False,
    )


def _devices(config: NeuronConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    """As many cores on each device as this node has; one, where it does not count them."""
    count = count_devices(node, config.count_resource)
    if not count:
        return ()
    cores = max(amount(node, config.cores_resource) // count, 1)
    if cores > MOST_CORES:
        raise RecordError("node capacity", 0, f"{cores} cores on each of {count} devices; accepted: at most {MOST_CORES}")
    return equal_devices(node, count, infix=NAME, shares=cores, memory_mib=0, cores=(1 << cores) - 1, type_=NAME)


def _typed(device: RegisteredDevice, annotations: Mapping[str, str], labels: Mapping[str, str]) -> RegisteredDevice:
    del annotations
    node_type = labels.get(INSTANCE_TYPE)
    return msgspec.structs.replace(device, custom_info={**device.custom_info, NODE_TYPE: node_type}) if node_type else device


def _read(asking: Asking) -> DeviceRequest | None:
    """Devices, or cores: one or two of one device, or two of each of several."""
    vendor = asking.vendor
    count = read_count(asking)
    if count is not None:
        if not count:
            raise refused(asking, vendor.count_resource, "1 device or more")
        return DeviceRequest(vendor=vendor.name, count=count, rules=vendor.rules)
    found = quantity(asking.container, asking.path, vendor.cores_resource)
    if found is None:
        return None
    cores = found.read(quantities.parse_count)
    split = split_cores(cores)
    if split is None:
        raise refused(asking, vendor.cores_resource, f"1, or a multiple of {CORES_TOGETHER}")
    return DeviceRequest(vendor=vendor.name, count=split[0], parts=split[1], rules=vendor.rules)


def split_cores(cores: int) -> tuple[int, int] | None:
    """So many devices with so many cores each; None where ``cores`` cannot be split."""
    if 0 < cores <= CORES_TOGETHER:
        return 1, cores
    return (cores // CORES_TOGETHER, CORES_TOGETHER) if cores > 0 and cores % CORES_TOGETHER == 0 else None


def _demand(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    """The lowest free cores: what a pod's containers take one after the other is then always one mask in another."""
    free = [bit for bit in bits(state.device.cores) if not state.used_cores & bit]
    wanted = request.parts or state.device.cores.bit_count()
    if not wanted or len(free) < wanted:
        return Reason.CORES
    return Demand(memory_mib=state.device.memory_mib if not request.parts else 0, cores=sum(free[:wanted]))


def bits(mask: int) -> list[int]:
    """The bits of ``mask``, lowest first."""
    return [1 << place for place in range(mask.bit_length()) if mask >> place & 1]


def _pick(choice: Choice) -> Picked:
    count = choice.request.count
    if count == 1:
        return choice.fitting[:1]
    free = {state.device.uuid for state in choice.fitting if not state.used_shares}
    node_type = info_text(choice.devices[0], NODE_TYPE)
    step = 1 if "inf" in node_type.lower() else count if count in _TRAINIUM_BLOCKS and node_type else 0
    for start in range(0, len(choice.devices) - count + 1, step) if step else ():
        block = choice.devices[start : start + count]
        if all(state.device.uuid in free for state in block):
            return block
    return {Reason.NUMA: 1}


def _written(config: NeuronConfig, granted: Granted) -> Mapping[str, str]:
    ids: list[int] = []
    by_cores = False
    for container in granted.assignment.containers:
        whole = _asks_devices(granted.pod, container.container, config.count_resource)
        by_cores |= bool(container.shares) and not whole
        for share in container.shares:
            device = granted.devices.get(share.uuid)
            if device is not None:
                ids.extend([device.index] if whole else core_numbers(device.index, share.cores, device.cores))
    written = {IDS: ",".join(map(str, ids)), TIME: str(granted.time_ns), ALLOCATED: "false", PREDICATE_NODE: granted.node}
    return {**written, RESOURCE_TYPE: config.cores_resource} if by_cores else written


def _asks_devices(pod: Pod, name: str, resource: str) -> bool:
    """Whether the container asks for devices, not cores; its quantities have been read before."""
    found: Iterable[object] = (
        (each.container.resources.limits or {}).get(resource) or (each.container.resources.requests or {}).get(resource)
        for each in containers_in_order(pod)
        if each.container.name == name
    )
    return any(found)


def core_numbers(index: int, mask: int, total: int) -> list[int]:
    """The numbers on the node of the cores in ``mask``, on the device with this index."""
    per_device = total.bit_count()
    return [per_device * index + bit.bit_length() - 1 for bit in bits(mask)]

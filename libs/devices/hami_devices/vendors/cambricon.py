"""Cambricon MLU. Memory is asked in units of 256 MiB; devices are counted from the node's capacity where nothing lists them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hami_devices.capacity import amount, count_devices, equal_devices
from hami_devices.config_sections import CambriconConfig
from hami_devices.vendor import Granted, OwnLock, SelectorKeys, Vendor
from hami_protocol import keys
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Node

NAME = "MLU"
DEVICE_TYPE = "mlu"
UNIT_MIB = 256
LOCK = OwnLock(key="cambricon.com/dsmlu.lock", expiry_seconds=120.0)
ASSIGNED, PROFILE = "CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_PROFILE"


def vendor(config: CambriconConfig) -> Vendor:
    """Cambricon's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        handshake_key=keys.handshake(DEVICE_TYPE),
        allocated_key="hami.io/cambricon-mlu-devices-allocated",
        to_allocate_key="hami.io/cambricon-mlu-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids="cambricon.com/use-gpuuuid", avoid_uuids="cambricon.com/nouse-gpuuuid"),
        memory_unit_mib=UNIT_MIB,
        default_cores=100,
        whole_device_cores=100,
        read_capacity=partial(_devices, config),
        written_keys=(ASSIGNED, PROFILE),
        written=_written,
        own_lock=LOCK,
    )


def _devices(config: CambriconConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    cores, memory = amount(node, config.cores_resource), amount(node, config.memory_resource)
    if not cores:
        return ()
    memory_mib = memory * UNIT_MIB * 100 // cores
    if memory_mib >= 2**31:
        raise RecordError("node capacity", 0, f"{memory} of {config.memory_resource} on {cores} cores is {memory_mib} MiB a device")
    count = count_devices(node, config.cores_resource, parts=100)
    return equal_devices(node, count, infix="cambricon-mlu", shares=100, memory_mib=memory_mib, cores=100, type_=NAME)


def _written(granted: Granted) -> Mapping[str, str]:
    """The plugin takes one profile per pod: that of the first device."""
    first = granted.shares[0]
    return {ASSIGNED: "false", PROFILE: f"{granted.index(first)}_{first.cores}_{first.memory_mib // UNIT_MIB}"}

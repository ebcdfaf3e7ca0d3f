"""Hygon DCU. Devices are registered in the protocol's text form."""

from __future__ import annotations

from hami_devices.config_sections import HygonConfig
from hami_devices.vendor import SelectorKeys, Vendor
from hami_protocol import keys

NAME = "DCU"
DEVICE_TYPE = "dcu"


def vendor(config: HygonConfig) -> Vendor:
    """Hygon's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        handshake_key=keys.handshake(DEVICE_TYPE),
        allocated_key="hami.io/dcu-devices-allocated",
        to_allocate_key="hami.io/dcu-devices-to-allocate",
        selector_keys=SelectorKeys(
            use_types="hygon.com/use-dcutype",
            avoid_types="hygon.com/nouse-dcutype",
            use_uuids="hygon.com/use-gpuuuid",
            avoid_uuids="hygon.com/nouse-gpuuuid",
        ),
        memory_unit_mib=max(config.memory_factor, 1),
        default_cores=100,
        whole_device_cores=100,
    )

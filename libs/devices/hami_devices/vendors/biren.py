"""Biren: whole cards by count. Neither memory nor cores are asked, booked or looked at."""

from __future__ import annotations

from hami_devices.config_sections import BirenConfig
from hami_devices.demands import slot_only
from hami_devices.rules import Rules
from hami_devices.vendor import SelectorKeys, Vendor
from hami_protocol import keys

NAME = "Biren"
DEVICE_TYPE = "biren"


def vendor(config: BirenConfig) -> Vendor:
    """Biren's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        register_key=keys.register(DEVICE_TYPE),
        registers_json=True,
        handshake_key=keys.handshake(DEVICE_TYPE),
        allocated_key="hami.io/Biren-devices-allocated",
        to_allocate_key="hami.io/Biren-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids="birentech.com/use-gpuuuid", avoid_uuids="birentech.com/nouse-gpuuuid"),
        registered_cores=100,
        rules=Rules(demand=slot_only),
    )

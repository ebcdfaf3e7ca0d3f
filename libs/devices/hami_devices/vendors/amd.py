"""AMD. Cores are asked in percent, as quotas count them, and booked as compute units; the text names the model, as AMD's plugin expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from hami_devices.config_sections import AmdConfig
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import RequestError, quantity
from hami_devices.rules import Demand, Rules
from hami_devices.vendor import SelectorKeys, Vendor
from hami_protocol import keys, quantities
from hami_protocol.devices import DeviceShare, RegisteredDevice
from hami_protocol.kubernetes import Container

NAME = "AMD"
DEVICE_TYPE = "amd"
WHOLE = 100


def vendor(config: AmdConfig) -> Vendor:
    """AMD's spec under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        registers_json=True,
        allocated_key="hami.io/amd-devices-allocated",
        to_allocate_key="hami.io/amd-devices-to-allocate",
        selector_keys=SelectorKeys(
            use_types="amd.com/use-gputype",
            avoid_types="amd.com/nouse-gputype",
            use_uuids="amd.com/use-gpu-uuid",
            avoid_uuids="amd.com/nouse-gpu-uuid",
        ),
        default_cores=WHOLE,
        whole_device_cores=WHOLE,
        least_cores=1,
        books_own_units=True,
        rules=Rules(demand=_demand, names_model=True),
        recall=partial(_recall, config),
        visible_env="ROCR_VISIBLE_DEVICES",
        environment=_environment,
    )


def compute_units(percent: int, total: int) -> int:
    """How many of a card's compute units a percentage is: rounded down, but never none."""
    return min(max(total * percent // 100, 1), total)


def _demand(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    total = state.device.cores
    if request.cores and not total:
        return Reason.CORES
    percent = WHOLE if request.whole and not request.cores else request.cores
    cores = compute_units(percent, total) if percent else 0
    return Demand(memory_mib=request.memory_on(state.device.memory_mib), cores=cores, cores_percent=percent)


def _recall(config: AmdConfig, share: DeviceShare, container: Container, annotations: Mapping[str, str]) -> DeviceShare:
    """The text has compute units; what was asked is in the container's limits. What cannot be read there counts as a whole card."""
    del annotations
    try:
        asked = quantity(container, "", config.cores_resource) if config.cores_resource else None
        percent = WHOLE if asked is None else asked.read(quantities.parse_count)
    except RequestError:
        percent = WHOLE
    return msgspec.structs.replace(share, cores_percent=percent if 0 < percent < WHOLE else WHOLE)


def _environment(shares: Sequence[DeviceShare], devices: Mapping[str, RegisteredDevice]) -> dict[str, str]:
    """Which cards, which compute units of each by its place in the container, and how much memory."""
    return {
        "ROCR_VISIBLE_DEVICES": ",".join(str(devices[share.uuid].index) for share in shares if share.uuid in devices),
        "HSA_CU_MASK": ";".join(f"{place}:0-{share.cores - 1}" for place, share in enumerate(shares) if share.cores),
        "HIP_DEVICE_MEMORY_LIMIT": f"{shares[0].memory_mib}m",
    }

"""MetaX whole GPUs, counted from the node's capacity. Nodes say how much their links suffer from, or gain by, a pod of so many."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from hami_devices.capacity import count_devices, equal_devices
from hami_devices.config_sections import MetaxConfig
from hami_devices.rules import Outcome, Rules
from hami_devices.vendor import Vendor
from hami_protocol import keys
from hami_protocol.devices import RegisteredDevice
from hami_protocol.kubernetes import Node

NAME = "Metax-GPU"
DEVICE_TYPE = "metax-gpu"
CARD_MIB = 65536
LOSSES, SCORES = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
BEST: Final = 2000
_MOST: Final = 2**31 - 1


def vendor(config: MetaxConfig) -> Vendor:
    """MetaX's whole GPUs under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.count_resource,
        register_key=keys.register(DEVICE_TYPE),
        allocated_key="hami.io/metax-gpu-devices-allocated",
        to_allocate_key="hami.io/metax-gpu-devices-to-allocate",
        whole_device_cores=100,
        read_capacity=partial(_devices, config),
        on_node=_with_links,
        rules=Rules(bonus=_bonus),
        locks_nodes=False,
    )


def _devices(config: MetaxConfig, node: Node) -> tuple[RegisteredDevice, ...]:
    count = count_devices(node, config.count_resource)
    return equal_devices(node, count, infix="metax", shares=1, memory_mib=CARD_MIB, cores=100, type_=NAME)


def _with_links(device: RegisteredDevice, annotations: Mapping[str, str], labels: Mapping[str, str]) -> RegisteredDevice:
    del labels
    said = {key: read_points(text) for key in (LOSSES, SCORES) if (text := annotations.get(key)) is not None}
    return msgspec.structs.replace(device, custom_info={**device.custom_info, **said}) if said else device


def read_points(text: str) -> dict[str, int]:
    """How many points a pod of so many devices costs or brings; a text that cannot be read costs and brings nothing."""
    try:
        return {size: min(max(points, 0), _MOST) for size, points in msgspec.json.decode(text, type=dict[str, int]).items()}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _bonus(outcome: Outcome) -> float:
    """Losses decide under ``binpack``, scores under ``spread``. A node that says nothing is never preferred to one that does."""
    spread = outcome.pod.node_policy == "spread"
    said: dict[str, Any] = outcome.devices[0].device.custom_info
    points = said.get(SCORES if spread else LOSSES)
    if not isinstance(points, Mapping):
        return float(-BEST if spread else 0)
    size = str(sum(map(len, outcome.containers)))
    return float(points.get(size, 0) - BEST if spread else BEST - points.get(size, 0))

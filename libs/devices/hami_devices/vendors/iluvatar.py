"""Iluvatar, one vendor per chip of the configuration. Memory is asked in units of 256 MiB."""

from __future__ import annotations

from collections.abc import Iterator

from hami_devices.admission import AddEnv, Mutation, resized
from hami_devices.config_sections import IluvatarConfig
from hami_devices.model import DeviceRequest
from hami_devices.requests import quantity, read_count, read_plainly
from hami_devices.vendor import Asking, SelectorKeys, Vendor
from hami_protocol import keys, quantities

UNIT_MIB = 256
CONTAINER_NAME_ENV = "SOL_CONTINER_NAME"
"""Spelt as its plugin reads it."""
_WHOLE = 100


def vendor(config: IluvatarConfig) -> Vendor:
    """The spec of one chip."""
    word = config.common_word
    return Vendor(
        name=word,
        device_type=word,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(word),
        handshake_key=keys.handshake(word),
        allocated_key=f"hami.io/{word}-devices-allocated",
        to_allocate_key=f"hami.io/{word}-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids=f"hami.io/use-{word}-uuid", avoid_uuids=f"hami.io/no-use-{word}-uuid"),
        memory_unit_mib=UNIT_MIB,
        read=_read,
        mutate=_mutate,
    )


def _read(asking: Asking) -> DeviceRequest | None:
    """Several devices come with all their cores: what then stands in the cores resource is the sum, which the webhook writes."""
    count = read_count(asking)
    if count is None or count < 2:  # one alone says itself how many
        return read_plainly(asking)
    if (cores := quantity(asking.container, asking.path, asking.vendor.cores_resource)) is not None:
        cores.read(quantities.parse_count)
    return read_plainly(asking, cores=_WHOLE)


def _mutate(asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    if request.count > 1 and asking.vendor.cores_resource:
        yield from resized(asking, asking.vendor.cores_resource, _WHOLE * request.count)
    name = asking.container.name
    if name and all(variable.name != CONTAINER_NAME_ENV for variable in asking.container.env or ()):
        yield AddEnv(path=asking.path, name=CONTAINER_NAME_ENV, value=name)

"""Huawei Ascend, one vendor per chip of the configuration. A card is cut by templates; on nodes with HAMi-vNPU core, by memory and cores.

The two do not mix: a pod that asks for the one way of cutting never lands on a node of the other. AI cores follow memory in every template,
so that a template's cores need no account of their own. On 910C two devices are one card, and are taken together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from hami_devices.admission import Mutation, SetLimit, resized
from hami_devices.config_sections import AscendConfig
from hami_devices.groups import concentration, info_text, largest_first
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import quantity, read_cores, read_count, read_memory, refused
from hami_devices.rules import Choice, Outcome, Picked, Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import quantities
from hami_protocol.devices import SHARED_MODE, DeviceShare, RegisteredDevice

SOFT_SPLIT = SHARED_MODE
"""Of a pod, in annotation ``huawei.com/vnpu-mode``; and the mode of devices that are cut so."""
HARD_SPLIT = "template"
MODE = "huawei.com/vnpu-mode"
NODE_MODE = "hami-vnpu-core"
TIME = "predicate-time"
VISIBLE = "ASCEND_VISIBLE_DEVICES"
NETWORK = "NetworkID"
PAIRED: Final = "Ascend910C"
"""The chip of which two make a card."""
_WITH_NETWORK: Final = "Ascend910"
_CONCENTRATION_POINTS: Final = 10


def vendor(config: AscendConfig, *, soft_split: bool) -> Vendor:
    """The spec of one chip; ``soft_split`` says how nodes are cut that do not say so themselves."""
    word = config.common_word
    networked = word.startswith(_WITH_NETWORK)
    return Vendor(
        name=word,
        device_type=word,
        count_resource=config.count_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=f"hami.io/node-register-{word}",
        registers_json=True,
        handshake_key=f"hami.io/node-handshake-{word}",
        allocated_key=f"hami.io/{word}-devices-allocated",
        to_allocate_key=f"hami.io/{word}-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids=f"hami.io/use-{word}-uuid", avoid_uuids=f"hami.io/no-use-{word}-uuid"),
        memory_unit_mib=max(config.memory_factor, 1),
        on_node=partial(_cut, soft_split),
        read=partial(_read, config),
        mutate=partial(_mutate, config),
        rules=Rules(pick=_pick_paired if word == PAIRED else _pick, bonus=_bonus, single_matters=False) if networked else Rules(),
        runtime_class=config.runtime_class,
        visible_env=VISIBLE,
        idle_env=((VISIBLE, ""),) if config.overwrite_env else (),
        written_keys=(TIME, runtime_key(config)),
        written=partial(_written, config),
    )


def runtime_key(config: AscendConfig) -> str:
    """The annotation that the chip's runtime reads."""
    return f"huawei.com/{config.common_word}"


def _cut(soft_split: bool, device: RegisteredDevice, annotations: Mapping[str, str], labels: Mapping[str, str]) -> RegisteredDevice:
    del labels
    said = annotations.get(NODE_MODE)
    soft = soft_split if said is None else said == "true"
    if not soft:
        return msgspec.structs.replace(device, mode=HARD_SPLIT)
    return msgspec.structs.replace(device, mode=SOFT_SPLIT, cores=100)


# What is asked


def round_up(config: AscendConfig, memory_mib: int) -> int | None:
    """The smallest size of the chip that holds so much: a template's, or the whole card's; None where none does."""
    sizes = sorted(template.memory_mib for template in config.templates)
    found = next((size for size in sizes if memory_mib <= size), None)
    return config.memory_allocatable_mib if found is None and memory_mib <= config.memory_capacity_mib else found


def _read(config: AscendConfig, asking: Asking) -> DeviceRequest | None:
    vendor = asking.vendor
    count = read_count(asking)
    if count is None:
        _refuse_without_count(asking)
    if not count:
        return None
    if vendor.name == PAIRED:
        count = 2 if config.super_pod and count == 1 else count
        if count > 1 and count % 2:
            raise refused(asking, vendor.count_resource, "1, or an even number: two devices are one card")
    soft = asking.annotations.get(MODE) == SOFT_SPLIT
    cores = read_cores(asking) or 0
    if cores and not soft:
        raise refused(asking, vendor.cores_resource, f"nothing, unless metadata.annotations[{MODE}] is {SOFT_SPLIT}")
    memory_mib = read_memory(asking)
    if memory_mib is None:
        memory_mib = config.memory_allocatable_mib
    elif not soft:
        memory_mib = _templated(config, asking, memory_mib)
    elif not memory_mib:
        raise refused(asking, vendor.memory_resource, "more than 0 MiB")
    if count > 1 and not soft and memory_mib != config.memory_allocatable_mib:
        raise refused(asking, vendor.memory_resource, f"whole devices ({config.memory_allocatable_mib} MiB) where several are asked for")
    return DeviceRequest(
        vendor=vendor.name,
        count=count,
        memory_mib=memory_mib,
        cores=cores,
        device_mode=SOFT_SPLIT if soft else HARD_SPLIT,
        rules=vendor.rules,
    )


def _refuse_without_count(asking: Asking) -> None:
    for resource in (asking.vendor.memory_resource, asking.vendor.cores_resource):
        if quantity(asking.container, asking.path, resource) is not None:
            raise refused(asking, asking.vendor.count_resource, "how many devices the rest is asked of")


def _templated(config: AscendConfig, asking: Asking, memory_mib: int) -> int:
    size = round_up(config, memory_mib) if memory_mib else None
    if size is None:
        raise refused(asking, config.memory_resource, f"more than 0, at most {config.memory_capacity_mib} MiB")
    return size


def _mutate(config: AscendConfig, asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    """Limits say what is booked: the number of devices, and the size that they are cut in."""
    yield from resized(asking, config.count_resource, request.count)
    if not config.memory_resource:
        return
    if asking.vendor.memory_unit_mib == 1:
        yield from resized(asking, config.memory_resource, request.memory_mib)
        return
    found = quantity(asking.container, asking.path, config.memory_resource)
    wanted = f"{request.memory_mib}Mi"  # the unit may not divide it
    if found is None or quantities.exact(found.value) != quantities.exact(wanted):
        yield SetLimit(path=asking.path, resource=config.memory_resource, value=wanted)


# What fits


def _network(state: DeviceState) -> str:
    return info_text(state, NETWORK)


def _pick(choice: Choice) -> Picked:
    """Several devices come from as few networks as possible, where every device says in which it is."""
    count, fitting = choice.request.count, choice.fitting
    if count == 1 or len(fitting) == count or not all(_network(state) for state in choice.devices):
        return fitting[:count]
    return largest_first(fitting, count, _network)


def _pick_paired(choice: Choice) -> Picked:
    """Several devices are whole cards: those of which both devices would do."""
    count = choice.request.count
    if count == 1:
        return choice.fitting[:1]
    cards: dict[int, list[DeviceState]] = {}
    for state in choice.fitting:
        cards.setdefault(state.device.index // 2, []).append(state)
    pairs = [state for card in cards.values() if len(card) > 1 for state in card]
    if len(pairs) >= count:
        return pairs[:count]
    return {Reason.PARTIAL: len(pairs)} if pairs else {Reason.NUMA: len(choice.fitting)}


def _bonus(outcome: Outcome) -> float:
    """One device alone is of one network wherever it is."""
    return _CONCENTRATION_POINTS * concentration([states for states in outcome.containers if len(states) > 1], _network)


# What is written


class _Cut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    uuid: str = msgspec.field(name="UUID")
    temp: str = ""
    memory: int = 0
    core: int = 0


def _written(config: AscendConfig, granted: Granted) -> Mapping[str, str]:
    soft = granted.pod.metadata.annotations.get(MODE) == SOFT_SPLIT
    cuts = [
        _Cut(uuid=share.uuid, temp="" if soft else template_of(config, share), memory=share.memory_mib, core=share.cores)
        for share in granted.shares
    ]
    return {TIME: str(granted.time_ns // 10**9), runtime_key(config): msgspec.json.encode(cuts).decode()}


def template_of(config: AscendConfig, share: DeviceShare) -> str:
    """The name of the template that a share is; empty for a whole card."""
    return next((template.name for template in config.templates if template.memory_mib == share.memory_mib), "")

"""MetaX sGPU: shares of GPUs, under a policy of quality of service or an application class that all pods on a device agree on.

A device's QoS is what the pods on it were given, as their marks say; only where a share was placed by somebody who left no mark, what the node
reports. So it needs no memory of its own, and is the same after a restart. A mark is ``<application class>/<QoS>``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from hami_devices.admission import Mutation, SetAnnotation
from hami_devices.config_sections import MetaxConfig
from hami_devices.groups import grouped, info_text
from hami_devices.model import DeviceRequest, DeviceState, Reason
from hami_devices.requests import RequestError, annotation_field, read_plainly, refused
from hami_devices.rules import Choice, Demand, Outcome, Picked, Rules
from hami_devices.vendor import Asking, Granted, SelectorKeys, Vendor
from hami_protocol import keys
from hami_protocol.devices import Count, DeviceShare, RegisteredDevice
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Container

NAME = "Metax-SGPU"
DEVICE_TYPE = "metax-sgpu"
UNIT_MIB = 1024
WHOLE_CORES = 100
DEVICES = "metax-tech.com/node-gpu-devices"
QOS, APP_CLASS, TOPOLOGY = "metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-topology-aware"
ALLOCATED, TIME = "metax-tech.com/gpu-devices-allocated", "metax-tech.com/predicate-time"
ONLINE, OFFLINE = "online", "offline"
BEST_EFFORT = "best-effort"
POLICIES: Final = (BEST_EFFORT, "fixed-share", "burst-share")
ZONE, CURRENT_QOS = "LinkZone", "QosPolicy"
PAIR_POINTS: Final = 10
SCALE: Final = 10_000
_LINKED: Final = "linked"
_TRUE: Final = frozenset({"1", "t", "true"})


def vendor(config: MetaxConfig) -> Vendor:
    """MetaX's shared GPUs under ``config``."""
    return Vendor(
        name=NAME,
        device_type=DEVICE_TYPE,
        count_resource=config.share_resource,
        memory_resource=config.memory_resource,
        cores_resource=config.cores_resource,
        register_key=keys.register(DEVICE_TYPE),
        own_key=DEVICES,
        read_own=read_devices,
        allocated_key="hami.io/metax-sgpu-devices-allocated",
        to_allocate_key="hami.io/metax-sgpu-devices-to-allocate",
        selector_keys=SelectorKeys(use_uuids="metax-tech.com/use-gpuuuid", avoid_uuids="metax-tech.com/nouse-gpuuuid"),
        memory_unit_mib=UNIT_MIB,
        default_cores=WHOLE_CORES,
        whole_device_cores=WHOLE_CORES,
        read=partial(_read, config),
        mutate=_mutate,
        rules=Rules(demand=_demand, pick=_pick, bonus=_bonus, unhealthy=Reason.UNHEALTHY),
        written_keys=(ALLOCATED, TIME),
        written=_written,
        recall=_recall,
    )


class _Listed(Struct, frozen=True, kw_only=True, rename="camel"):
    uuid: Annotated[str, Meta(min_length=1)]
    model: str = ""
    total_dev_count: Count = 0
    total_compute: Count = 0
    total_v_ram: Count = msgspec.field(default=0, name="totalVRam")
    numa: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = 0
    healthy: bool = False
    qos_policy: str = ""
    link_zone: int = 0


def read_devices(text: str, node: str) -> tuple[RegisteredDevice, ...]:
    """The devices that MetaX's own plugin lists.

    Raises:
        RecordError: it cannot be read.
    """
    del node
    try:
        listed = msgspec.json.decode(text, type=list[_Listed])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RecordError(DEVICES, 0, str(exc)) from exc
    if len({each.uuid for each in listed}) != len(listed):
        raise RecordError(DEVICES, 0, "a device appears twice")
    return tuple(
        RegisteredDevice(
            uuid=each.uuid,
            index=place,
            shares=each.total_dev_count,
            memory_mib=each.total_v_ram,
            cores=each.total_compute,
            type=NAME,
            numa=each.numa,
            healthy=each.healthy,
            custom_info={CURRENT_QOS: each.qos_policy, "Model": each.model, ZONE: each.link_zone},
        )
        for place, each in enumerate(listed)
    )


# What is asked


def _read(config: MetaxConfig, asking: Asking) -> DeviceRequest | None:
    request = read_plainly(asking)
    if request is None:
        return None
    app_class = asking.annotations.get(APP_CLASS, "")
    if app_class not in ("", ONLINE, OFFLINE):
        raise RequestError(annotation_field(APP_CLASS), f"{app_class[:64]!r} is not accepted; accepted: {ONLINE} or {OFFLINE}")
    if app_class and request.count != 1:
        raise refused(asking, asking.vendor.count_resource, f"1 in a pod with {APP_CLASS}")
    qos = "" if app_class == ONLINE else asking.annotations.get(QOS, BEST_EFFORT)
    if qos not in ("", *POLICIES) or (not qos and app_class != ONLINE):
        raise RequestError(annotation_field(QOS), f"{qos[:64]!r} is not accepted; accepted: {', '.join(POLICIES)}")
    wanted = asking.annotations.get(TOPOLOGY)
    linked = config.topology_aware if wanted is None else wanted.strip().lower() in _TRUE
    return dataclasses.replace(request, mode=f"{app_class}/{qos}/{_LINKED if linked else ''}")


def _mutate(asking: Asking, request: DeviceRequest) -> Iterator[Mutation]:
    app_class, qos, _ = _mode(request)
    if app_class != ONLINE and QOS not in asking.annotations:
        yield SetAnnotation(name=QOS, value=qos)


def _mode(request: DeviceRequest) -> tuple[str, str, bool]:
    """Application class, QoS, and whether whole devices are chosen by their links."""
    app_class, qos, linked = (*request.mode.split("/"), "", "")[:3]
    return app_class, qos, bool(linked)


# What fits


def _demand(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    app_class, qos, _ = _mode(request)
    if not _same_class(state, app_class):
        return Reason.APP_CLASS
    memory_mib = request.memory_on(state.device.memory_mib)
    if app_class == ONLINE:
        return Demand(memory_mib=memory_mib, cores=0, mark=f"{ONLINE}/", ignores_cores=True)
    if request.cores == WHOLE_CORES:
        qos = ""
    elif state.used_shares and (current := _qos(state)) and current != qos:
        return Reason.QOS
    return Demand(memory_mib=memory_mib, cores=request.cores, mark=f"{app_class}/{qos}")


def _classes(state: DeviceState) -> tuple[int, int]:
    """How many online and offline pods use the device."""
    online = sum(count for mark, count in state.marks if mark.startswith(f"{ONLINE}/"))
    offline = sum(count for mark, count in state.marks if mark.startswith(f"{OFFLINE}/"))
    return online, offline


def _same_class(state: DeviceState, app_class: str) -> bool:
    """Pods with an application class share with such alone, and an offline one comes to no online one."""
    online, offline = _classes(state)
    if not state.used_shares:
        return True
    return bool(online or offline) == bool(app_class) and not (app_class == OFFLINE and online)


def _qos(state: DeviceState) -> str:
    """The policy that the device is shared under; empty where the pods on it have none."""
    if sum(count for _, count in state.marks) < state.used_shares:
        return info_text(state, CURRENT_QOS)
    return next((qos for mark, _ in state.marks if (qos := mark.partition("/")[2])), "")


def _pick(choice: Choice) -> Picked:
    request, fitting = choice.request, choice.fitting
    app_class, _, _ = _mode(request)
    if app_class == ONLINE:
        return sorted(fitting, key=_beside_online)[: request.count]
    if app_class or request.cores != WHOLE_CORES or len(fitting) == request.count:
        return fitting[: request.count]
    return by_zones(fitting, request.count)


def _beside_online(state: DeviceState) -> tuple[bool, int, int]:
    """Where an online pod disturbs least: devices of offline pods alone come last."""
    online, offline = _classes(state)
    return bool(offline and not online), online, offline


def by_zones(fitting: Sequence[DeviceState], count: int) -> tuple[DeviceState, ...]:
    """Whole devices from the smallest link zone that has enough; else from zone after zone, the smallest first, then those in none."""
    zones = sorted(grouped([state for state in fitting if _zone(state)], _zone), key=len)
    for zone in zones:
        if len(zone) >= count:
            return tuple(zone[:count])
    rest = [state for state in fitting if not _zone(state)]
    return tuple(itertools.chain(*zones, rest))[:count]


def _zone(state: DeviceState) -> str:
    zone = info_text(state, ZONE)
    return "" if zone == "0" else zone


# How good a node is


def _bonus(outcome: Outcome) -> float:
    requests = [asked for each in outcome.pod.containers for asked in each.requests if asked.vendor == NAME]
    taken = list(itertools.chain.from_iterable(outcome.containers))
    if any(_mode(request)[0] == ONLINE for request in requests):
        return SCALE * float(sum(disturbance(*_classes(state)) for state in taken))
    if requests[0].cores != WHOLE_CORES or not _mode(requests[0])[2]:
        return 0.0
    free = [state for state in outcome.devices if not state.used_shares]
    gone = {state.device.uuid for state in taken}
    before, after = linked_pairs(free), linked_pairs([state for state in free if state.device.uuid not in gone])
    among = linked_pairs(taken)
    return float(SCALE * PAIR_POINTS * (PAIR_POINTS * among - (before - among - after)))


def disturbance(online: int, offline: int) -> int:
    """Points for a device with so many online and offline pods on it."""
    return -100 * offline if offline and not online else -20 * online - 2 * offline


def linked_pairs(states: Sequence[DeviceState]) -> int:
    """How many pairs of the devices are in one link zone."""
    return sum(_zone(one) == _zone(other) != "" for one, other in itertools.combinations(states, 2))


# What is written


class _Written(Struct, frozen=True, kw_only=True, omit_defaults=True):
    uuid: str
    compute: int = 0
    vram: int = msgspec.field(default=0, name="vRam")


def _written(granted: Granted) -> Mapping[str, str]:
    listed = [
        [_Written(uuid=share.uuid, compute=share.cores, vram=share.memory_mib) for share in container.shares]
        for container in granted.assignment.containers
    ]
    return {ALLOCATED: msgspec.json.encode(listed).decode(), TIME: str(granted.time_ns)}


def _recall(share: DeviceShare, container: Container, annotations: Mapping[str, str]) -> DeviceShare:
    del container
    app_class, qos = annotations.get(APP_CLASS, ""), annotations.get(QOS, BEST_EFFORT)
    if app_class == ONLINE:
        return msgspec.structs.replace(share, mark=f"{ONLINE}/")
    known = qos if qos in POLICIES and share.cores != WHOLE_CORES else ""
    return msgspec.structs.replace(share, mark=f"{OFFLINE if app_class == OFFLINE else ''}/{known}")

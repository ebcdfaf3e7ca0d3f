"""Builders of test values: a valid one by default, with what a test is about as keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_devices.model import ContainerRequest, DeviceRequest, DeviceState, PodRequest
from hami_protocol.devices import ContainerKind, PodRef, RegisteredDevice
from hami_protocol.kubernetes import Container, Node, ObjectMeta, Pod, PodSpec, ResourceRequirements

COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"

SHORT_NAMES = {"gpu": COUNT, "mem": MEMORY, "percent": PERCENT, "cores": CORES, "priority": PRIORITY}


def example(name: str, *values: object, departs: str = "") -> Any:
    """A worked example of HAMi's behaviour as a parameter set. Its id is its topic and a number: ``device score 3``.

    ``departs`` says why our result differs from HAMi's.
    """
    marks = [pytest.mark.example(name)]
    if departs:
        marks.append(pytest.mark.departs(departs))
    return pytest.param(*values, id=name, marks=marks)


def a_device(uuid: str = "GPU-A", **fields: Any) -> RegisteredDevice:
    """A healthy card of 24576 MiB with 10 shares."""
    return RegisteredDevice(**{"uuid": uuid, "shares": 10, "memory_mib": 24576, "cores": 100, "type": "NVIDIA A10", **fields})


def a_state(device: RegisteredDevice | None = None, *, vendor: str = "NVIDIA", uuid: str = "GPU-A", **fields: Any) -> DeviceState:
    """The same with what is charged on it: ``used_shares``, ``used_memory_mib``, ``used_cores``, ``cordoned``; the rest goes to ``a_device``."""
    used = {name: fields.pop(name) for name in ("used_shares", "used_memory_mib", "used_cores", "cordoned") if name in fields}
    return DeviceState(device=device or a_device(uuid, **fields), vendor=vendor, **used)


def a_request(
    *containers: DeviceRequest | tuple[ContainerKind, DeviceRequest | None] | None,
    count: int = 1,
    memory_mib: int = 0,
    memory_percent: int = 0,
    cores: int = 0,
    vendor: str = "NVIDIA",
    **fields: Any,
) -> PodRequest:
    """What a pod asks: one application container with the keywords' share, or the containers given (kind and share, None for none)."""
    given = containers or (a_share(count=count, memory_mib=memory_mib, memory_percent=memory_percent, cores=cores, vendor=vendor),)
    asked = []
    for place, container in enumerate(given):
        kind, request = container if isinstance(container, tuple) else (ContainerKind.APP, container)
        asked.append(ContainerRequest(name=f"c{place}", kind=kind, requests=(request,) if request else ()))
    return PodRequest(containers=tuple(asked), **fields)


def a_share(count: int = 1, *, memory_mib: int = 0, memory_percent: int = 0, cores: int = 0, vendor: str = "NVIDIA") -> DeviceRequest:
    """What one container asks of one vendor: whole devices where nothing is said of memory."""
    percent = memory_percent or (0 if memory_mib else 100)
    return DeviceRequest(vendor=vendor, count=count, memory_mib=memory_mib, memory_percent=percent, cores=cores)


def limits(**amounts: object) -> ResourceRequirements:
    """Limits by short names: ``gpu``, ``mem``, ``percent``, ``cores``, ``priority``."""
    return ResourceRequirements(limits={SHORT_NAMES.get(name, name): amount for name, amount in amounts.items()})  # type: ignore[misc]


def a_container(name: str = "main", *, sidecar: bool = False, requests: Mapping[str, Any] | None = None, **amounts: Any) -> Container:
    """A container with limits by short names; ``requests`` by full names."""
    resources = limits(**amounts)
    if requests is not None:
        resources = ResourceRequirements(limits=resources.limits, requests=dict(requests))
    return Container(name=name, image="registry.k8s.io/pause:3.10", resources=resources, restart_policy="Always" if sidecar else None)


def a_pod(
    name: str = "p1",
    *containers: Container,
    inits: Sequence[Container] = (),
    namespace: str = "default",
    uid: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **amounts: Any,
) -> Pod:
    """A pod with one container of the limits given by short names, or with the containers given."""
    spec = {key: amounts.pop(key) for key in list(amounts) if key in PodSpec.__struct_fields__}
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=uid or f"uid-{name}", annotations=dict(annotations or {}), labels=dict(labels or {})
        ),
        spec=PodSpec(containers=containers or (a_container(**amounts),), init_containers=tuple(inits) or None, **spec),
    )


def a_node(name: str = "n1", *, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> Node:
    """A node object."""
    return Node(metadata=ObjectMeta(name=name, uid=f"uid-{name}", annotations=dict(annotations or {}), labels=dict(labels or {})))


def a_ref(name: str = "p1", *, namespace: str = "default", uid: str = "") -> PodRef:
    """Which pod."""
    return PodRef(namespace=namespace, name=name, uid=uid or f"uid-{name}")

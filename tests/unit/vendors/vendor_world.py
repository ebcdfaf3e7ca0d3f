"""What tests of vendors share: asking as a container does, fitting on given devices, and what is written on a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hami_devices import registrations
from hami_devices.admission import Mutation
from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, load
from hami_devices.fit import fit_container
from hami_devices.model import DeviceRequest, DeviceState, Selectors
from hami_devices.order import read_order
from hami_devices.reasons import Misfit
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, RegisteredDevice, VendorAssignment
from hami_protocol.kubernetes import Container, Node, NodeStatus, ObjectMeta, Pod, ResourceRequirements
from tests.builders import a_pod

CATALOG = Catalog()
FREE = Selectors()
BINARY_SUFFIX = "16Gi and 16.0Gi are 16384 MiB, for every vendor (HAMi#2336)"
REFUSED = "what cannot be read is refused with its field's path; it never becomes an empty request"
NO_MIX = "a limit and a request that differ are refused; one that is only in the requests counts"


def configured(text: str) -> Catalog:
    """The catalogue under a device-config file."""
    return Catalog(load(text)[0]) if text else Catalog(DeviceConfig())


def a_pod_asking(
    limits: Mapping[str, Any] | None = None,
    *,
    requests: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A pod with one container of these resources."""
    resources = ResourceRequirements(
        limits=dict(limits) if limits is not None else None, requests=dict(requests) if requests is not None else None
    )
    return a_pod("p1", Container(name="main", resources=resources), annotations=annotations)


def asked(
    limits: Mapping[str, Any] | None = None,
    *,
    requests: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    catalog: Catalog = CATALOG,
) -> DeviceRequest | None:
    """What the one container asks; None where it asks for nothing."""
    pod = catalog.read_pod(a_pod_asking(limits, requests=requests, annotations=annotations))
    found = pod.containers[0].requests
    assert len(found) < 2
    return found[0] if found else None


def figures(request: DeviceRequest | None) -> tuple[int, int, int, int] | None:
    """Count, MiB, percent and cores, as HAMi's tests write them; without a sentinel."""
    return None if request is None else (request.count, request.memory_mib, request.memory_percent, request.cores)


def changes(
    limits: Mapping[str, Any] | None = None,
    *,
    requests: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    catalog: Catalog = CATALOG,
) -> tuple[Mutation, ...]:
    """What the webhook changes on the pod."""
    return catalog.mutations(a_pod_asking(limits, requests=requests, annotations=annotations))


def fit(states: Sequence[DeviceState], request: DeviceRequest, *, policy: str = "spread", selectors: Selectors = FREE) -> list[str] | str:
    """UUIDs taken, or the reason."""
    chosen = fit_container(states, request, order=read_order(policy, selectors.numa_bind), selectors=selectors)
    return chosen.text if isinstance(chosen, Misfit) else [state.device.uuid for state in chosen]


def selectors_of(request: DeviceRequest, annotations: Mapping[str, str], limits: Mapping[str, Any]) -> Selectors:
    """What a pod with these annotations accepts."""
    return CATALOG.read_pod(a_pod_asking(limits, annotations=annotations)).selectors.get(request.vendor, FREE)


def a_node_with(
    capacity: Mapping[str, Any] | None = None,
    *,
    name: str = "test",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Node:
    """A node that says this of its devices."""
    meta = ObjectMeta(name=name, uid=f"uid-{name}", annotations=dict(annotations or {}), labels=dict(labels or {}))
    return Node(metadata=meta, status=NodeStatus(capacity=dict(capacity or {})))


def devices(vendor: str, node: Node, catalog: Catalog = CATALOG) -> tuple[RegisteredDevice, ...]:
    """The devices of one vendor that the node has, by whatever it says."""
    spec = catalog.vendor(vendor)
    said = registrations.device_record(spec, node)
    return () if said is None else registrations.on_node(spec, said.read(), node)


def held(vendor: str, *containers: Sequence[DeviceShare]) -> VendorAssignment:
    """What a pod holds, container by container."""
    names = ("main", "second", "third")
    return VendorAssignment(
        vendor=vendor,
        containers=tuple(
            ContainerShares(container=name, kind=ContainerKind.APP, shares=tuple(shares))
            for name, shares in zip(names, containers, strict=False)
        ),
    )


def share(uuid: str, vendor: str, memory_mib: int, cores: int, **more: Any) -> DeviceShare:
    """A share of one device."""
    return DeviceShare(uuid=uuid, type=vendor, memory_mib=memory_mib, cores=cores, **more)


def written(
    assignment: VendorAssignment,
    *registered: RegisteredDevice,
    pod: Pod | None = None,
    catalog: Catalog = CATALOG,
    time_ns: int = 17 * 10**17,
) -> dict[str, str]:
    """What the Binding has for device plugins beside the assignment."""
    by_uuid = {device.uuid: device for device in registered}
    return catalog.plugin_annotations(pod or a_pod_asking(), "n1", [assignment], by_uuid, time_ns=time_ns)

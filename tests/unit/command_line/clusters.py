"""Clusters as the command line reads them: nodes that have registered, and pods that hold shares by their annotations."""

from __future__ import annotations

from typing import Any

import msgspec

from hami_cli.snapshot import Heard, Snapshot, take
from hami_devices.catalog import Catalog
from hami_protocol import keys, registration
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.kubernetes import Condition, Node, NodeStatus, Pod, PodStatus
from hami_protocol.pods import containers_in_order
from tests.builders import a_device, a_node, a_pod

CATALOG = Catalog()
TIME = "2026-01-02T03:04:05Z"
CARD_MIB = 24576


def a_gpu_node(name: str = "n1", *uuids: str, annotations: dict[str, str] | None = None, ready: bool = True, **device: Any) -> Node:
    """A node with cards of 24576 MiB."""
    text = registration.encode_text([a_device(uuid, index=index, **device) for index, uuid in enumerate(uuids)])
    node = a_node(name, annotations={keys.register("nvidia"): text, **(annotations or {})})
    conditions = (Condition(type="Ready", status="True" if ready else "False"),)
    return msgspec.structs.replace(node, status=NodeStatus(conditions=conditions))


def a_holder(name: str, node: str, *shares: DeviceShare | None, pod: Pod | None = None, **pod_fields: Any) -> Pod:
    """A running pod on ``node`` whose containers, init containers first, hold ``shares``."""
    pod = pod or a_pod(name, node_name=node, **pod_fields)
    containers = tuple(
        ContainerShares(container=placed.container.name, kind=ContainerKind(placed.kind), shares=(share,) if share else ())
        for placed, share in zip(containers_in_order(pod), shares, strict=True)
    )
    annotations = CATALOG.assignment_annotations([VendorAssignment(vendor="NVIDIA", containers=containers)])
    metadata = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations, keys.BIND_PHASE: "success"})
    return msgspec.structs.replace(pod, metadata=metadata, status=PodStatus(phase="Running"))


def a_held(uuid: str, mib: int, cores: int = 0) -> DeviceShare:
    """A share of one card."""
    return DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=mib, cores=cores)


def seen(nodes: list[Node], pods: list[Pod], heard: Heard | None = None) -> Snapshot:
    """The snapshot of them."""
    return take(nodes, pods, heard or Heard(), CATALOG, time=TIME)


def a_large_cluster(nodes: int, pods: int) -> Snapshot:
    """Nodes of eight cards, and pods spread over them."""
    cluster = [a_gpu_node(f"node-{number:03}", *(f"GPU-{number:03}-{card}" for card in range(8))) for number in range(nodes)]
    holders = [
        a_holder(
            f"pod-{number:04}",
            f"node-{number % nodes:03}",
            a_held(f"GPU-{number % nodes:03}-{number // nodes % 8}", 2000 + number % 7 * 100, number % 3 * 10),
            namespace=f"team-{number % 9}",
        )
        for number in range(pods)
    ]
    return seen(cluster, holders)

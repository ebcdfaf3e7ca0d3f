"""Clusters to measure on: nodes full of cards, and pods placed evenly on them. Used by the benchmarks of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from hami_protocol import keys, kubernetes, registration
from hami_protocol.devices import RegisteredDevice

ALLOCATED = "hami.io/vgpu-devices-allocated"
RARE_TYPE = "NVIDIA H100"
COMMON_TYPE = "NVIDIA A100"
MEMORY_MIB = 81_920


def nodes(count: int, cards: int) -> Iterator[kubernetes.Node]:
    """Nodes ``node-00000`` and so on; one in a hundred has cards of the rare type."""
    for place in range(count):
        name = node_name(place)
        devices = tuple(
            RegisteredDevice(
                uuid=uuid(place, card),
                index=card,
                shares=10,
                memory_mib=MEMORY_MIB,
                cores=100,
                type=RARE_TYPE if place % 100 == 0 else COMMON_TYPE,
                numa=card * 2 // cards,
            )
            for card in range(cards)
        )
        annotations = {keys.register("nvidia"): registration.encode_text(devices), keys.ALLOCATION_MODE: "cdi"}
        yield kubernetes.Node(metadata=kubernetes.ObjectMeta(name=name, uid=f"uid-{name}", resource_version="1", annotations=annotations))


def placed_pods(count: int, node_count: int, cards: int) -> Iterator[kubernetes.Pod]:
    """Pods that hold 10,000 MiB of one card each, spread over all nodes and cards."""
    for number in range(count):
        place, card = number % node_count, number // node_count % cards
        name = f"placed-{number:06d}"
        annotations = {
            ALLOCATED: f"{uuid(place, card)},NVIDIA,10000,10:;",
            keys.ASSIGNED_NODE: node_name(place),
            keys.BIND_PHASE: "success",
        }
        limits: dict[str, kubernetes.Quantity] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10k", "nvidia.com/gpucores": "10"}
        yield kubernetes.Pod(
            metadata=kubernetes.ObjectMeta(
                name=name, namespace="default", uid=f"uid-{name}", resource_version="1", annotations=annotations
            ),
            spec=kubernetes.PodSpec(
                node_name=node_name(place),
                containers=(kubernetes.Container(name="main", resources=kubernetes.ResourceRequirements(limits=limits)),),
            ),
            status=kubernetes.PodStatus(phase="Running"),
        )


def node_name(place: int) -> str:
    """Name of the node at ``place``."""
    return f"node-{place:05d}.cluster.example.com"


def uuid(place: int, card: int) -> str:
    """UUID of a card of that node."""
    return f"GPU-{place:08x}-0000-0000-0000-{card:012x}"

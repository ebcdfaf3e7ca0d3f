"""What every service needs to know of a pod: its containers in the protocol's order, who it is, and whether it is over. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from hami_protocol.devices import ContainerKind, PodRef
from hami_protocol.kubernetes import Container, Pod

_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


class PlacedContainer(NamedTuple):
    """One container of a pod."""

    container: Container
    kind: ContainerKind
    path: str
    """Field path, as ``spec.initContainers[0]``."""


def containers_in_order(pod: Pod) -> tuple[PlacedContainer, ...]:
    """The pod's containers as the protocol's annotations list them: init containers (sidecars among them) first, each list in its order."""
    inits = (
        PlacedContainer(
            container,
            ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT,
            f"spec.initContainers[{place}]",
        )
        for place, container in enumerate(pod.spec.init_containers or ())
    )
    apps = (
        PlacedContainer(container, ContainerKind.APP, f"spec.containers[{place}]") for place, container in enumerate(pod.spec.containers)
    )
    return (*inits, *apps)


def pod_ref(pod: Pod) -> PodRef:
    """Which pod this is."""
    return PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid)


def is_terminal(pod: Pod) -> bool:
    """Whether it has ended for good, so that it holds nothing any more."""
    return pod.status.phase in _TERMINAL

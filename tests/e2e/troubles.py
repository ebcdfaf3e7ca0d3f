"""What can go wrong with a pod, brought about by real means, and what ``hami diagnose`` is to find. Run on the rig and on a real cluster."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

Manifest = dict[str, Any]
NO_SUCH_IMAGE: Final = "there is no such image"
NO_NODE: Final = "node selector or affinity matches no node"
IMAGES: Final = {
    "unknown": NO_SUCH_IMAGE,
    "private": "the registry does not let the node pull the image",
    "busy": "the registry limits how often images are pulled",
    "foreign": "the image is for another platform",
    "distrusted": "the registry's certificate is not trusted by the node",
    "unreachable": "the node does not reach the registry",
}
"""By what is wrong with it, as ``registry_of_images`` names it, what is found of a pod with such an image."""


class Trouble(Struct, frozen=True, kw_only=True):
    """One pod that comes to nothing."""

    name: str
    pod: Manifest
    cause: str
    read_from: str


def a_share(name: str, *, mib: int | None = 100, cores: int = 0, count: int = 1, image: str = "", **spec: Any) -> Manifest:
    """A pod of one container with a share; ``annotations`` in ``spec`` are the pod's."""
    limits: Manifest = (
        {"nvidia.com/gpu": count} | ({"nvidia.com/gpumem": mib} if mib else {}) | ({"nvidia.com/gpucores": cores} if cores else {})
    )
    annotations = spec.pop("annotations", {})
    resources = spec.pop("resources", {})
    container = {"name": "main", "image": image or "docker.io/local/pause:1", "resources": {"limits": limits | resources}}
    body = {"containers": [container | spec.pop("container", {})], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": body}


def unplaceable(card_mib: int, cards: int) -> list[Trouble]:
    """Pods for which no node of a cluster, all of whose nodes have so many cards of that size, will do."""

    def trouble(name: str, cause: str, read_from: str = "the scheduler's verdict", **share: Any) -> Trouble:
        return Trouble(name=name, pod=a_share(name, **share), cause=cause, read_from=read_from)

    return [
        trouble("too-big", "no card has so much memory free", mib=card_mib + 1),
        trouble("too-many", "no node has so many cards", count=cards + 1),
        trouble("other-model", "the pod's annotations accept none of the cards' models", annotations={"nvidia.com/use-gputype": "H100"}),
        trouble("other-card", "the pod's annotations accept none of the cards' UUIDs", annotations={"nvidia.com/use-gpuuuid": "GPU-none"}),
        trouble("astray", NO_NODE, "condition PodScheduled", nodeSelector={"pool": "nowhere"}),
        trouble("much-cpu", "nodes have too little CPU, memory or devices left", "condition PodScheduled", resources={"cpu": "100000"}),
        trouble(
            "held-back",
            "the pod is held back by its scheduling gates",
            "spec.schedulingGates",
            schedulingGates=[{"name": "example.com/wait"}],
        ),
    ]


def by_the_back_door(name: str, node: str) -> Manifest:
    """A pod of another scheduler that goes to a node past ours, and wants a card there."""
    return a_share(name, nodeName=node, hostNetwork=True, schedulerName="another")


def a_controller(name: str, pod: Manifest) -> Manifest:
    """A ReplicaSet that wants one such pod."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def a_quota(name: str, mib: int) -> Manifest:
    """A ResourceQuota of so much memory of devices."""
    spec = {"hard": {"limits.nvidia.com/gpumem": str(mib)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def causes(findings: list[dict[str, Any]]) -> dict[str, str]:
    """Cause to where it was read."""
    return {finding["cause"]: finding["readFrom"] for finding in findings}

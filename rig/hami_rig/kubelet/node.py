"""A node as kubelet describes it to the API server. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, field

from hami_rig.kubelet.status import STAMP

IP = "127.0.0.1"
"""Of every node, and of every pod on it."""
HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


class NodeDescription(Struct, frozen=True, kw_only=True):
    """What a node is, besides its devices."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110
    kubelet_version: str = "v1.34.0"


def node_body(node: NodeDescription, now: datetime) -> dict[str, Any]:
    """The Node object of a node that is ready."""
    stamp = now.strftime(STAMP)
    resources = {"cpu": node.cpu, "memory": node.memory, "pods": str(node.pods), "ephemeral-storage": "100Gi"}
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **node.labels}
    conditions = [
        {"type": type_, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp}
        for type_, (status, reason, message) in HEALTHY.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": IP}, {"type": "Hostname", "address": node.name}],
            "nodeInfo": {
                "kubeletVersion": node.kubelet_version,
                "containerRuntimeVersion": "containerd://2.1.0",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "osImage": "HAMi rig",
                "kernelVersion": "0.0.0-rig",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kubeProxyVersion": "",
            },
        },
    }

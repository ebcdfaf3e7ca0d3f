"""The pods of this node and the node itself, as its own informers see them. Reads annotations; decides nothing about grants.

Invariant: a pod is looked up by UID, never by name, and a namesake is another pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hami_devices import records
from hami_devices.vendor import Vendor
from hami_node_agent.bell import Bell
from hami_node_agent.matching import PendingPod
from hami_protocol import assignment, keys, nodelock
from hami_protocol.devices import VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import NODES, PODS, Cluster
from hami_runtime.kube.informer import Informer
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
_MAX_BIND_TIME_DIGITS = 15


def annotated(pod: Pod, vendor: Vendor) -> VendorAssignment | None:
    """What the pod's annotation says it holds of ``vendor``; None where it has none.

    Raises:
        RecordError: it cannot be read.
    """
    return records.read_assignment(pod, vendor)


def pending(pod: Pod, vendor: Vendor, node: str, served: frozenset[int]) -> PendingPod | None:
    """The pod as one that may wait for Allocate; None where it does not.

    Args:
        pod: bound to this node.
        vendor: ours.
        node: this one.
        served: places of its containers that this agent has served, whether or not the annotation says so already.

    Raises:
        RecordError: its records cannot be read, or what is left to allocate is not what was assigned.
    """
    annotations = pod.metadata.annotations
    waiting = (
        pod.status.phase in {"", "Pending"}
        and pod.metadata.deletion_timestamp is None
        and annotations.get(keys.ASSIGNED_NODE) == node
        and annotations.get(keys.BIND_PHASE) == "allocating"
        and keys.BIND_TIME in annotations
    )
    if not waiting:
        return None
    held, left = annotated(pod, vendor), records.read_left(pod, vendor)
    if held is None or left is None:
        return None
    done = set(served)
    for place, (container, entry) in enumerate(zip(held.containers, left, strict=True)):
        if not entry:
            done.add(place)
        elif assignment.encode_entries((entry,)) != assignment.encode_entries((container.shares,)):
            raise RecordError("pod assignment", 0, f"what is left for container {container.container} is not what it was assigned")
    return PendingPod(pod=pod_ref(pod), bind_time_seconds=_bind_time(annotations[keys.BIND_TIME]), assignment=held, served=frozenset(done))


def _bind_time(text: str) -> int:
    """Only an order of binding, never compared with a clock; one that cannot be read comes last."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_BIND_TIME_DIGITS else 10**_MAX_BIND_TIME_DIGITS


class NodePods:
    """Informers of this node's pods and of the node."""

    def __init__(self, cluster: Cluster, clock: Clock, *, node: str, telemetry: Telemetry = OFF) -> None:
        self._cluster = cluster
        self._node = node
        self._pods: Informer[Pod] = Informer(cluster, PODS, fields=f"spec.nodeName={node}", clock=clock, telemetry=telemetry)
        self._nodes: Informer[Node] = Informer(cluster, NODES, fields=f"metadata.name={node}", clock=clock, telemetry=telemetry)
        self._by_uid: dict[str, Pod] = {}
        self.changed = Bell()
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(lambda _old, _new: self.changed.ring())

    @property
    def synced(self) -> bool:
        """Whether both have been listed."""
        return self._pods.synced.is_set() and self._nodes.synced.is_set()

    @property
    def connected(self) -> bool:
        """Whether changes of both are being received now: else what is seen may be over long since."""
        return self._pods.connected and self._nodes.connected

    def look_again(self) -> None:
        """Where they are not, ask the API server now instead of after a pause."""
        for informer in (self._pods, self._nodes):
            if not informer.connected:
                informer.look_again()

    async def wait_synced(self) -> None:
        """Return once both have been listed."""
        await self._pods.synced.wait()
        await self._nodes.synced.wait()

    def subscribe(self, handler: Callable[[Pod | None, Pod | None], None]) -> None:
        """Call ``handler(old, new)`` at every change of a pod of this node."""
        self._pods.subscribe(handler)

    @property
    def live(self) -> dict[str, Pod]:
        """Pods that have not ended, by UID."""
        return {uid: pod for uid, pod in self._by_uid.items() if not is_terminal(pod)}

    def lives(self, uid: str) -> bool:
        """Whether a pod is known here and has not ended."""
        pod = self._by_uid.get(uid)
        return pod is not None and not is_terminal(pod)

    def get(self, uid: str) -> Pod | None:
        """One pod, ended or not."""
        return self._by_uid.get(uid)

    def named(self, namespace: str, name: str) -> bool:
        """Whether a pod of that name, ended or not, is known on this node."""
        return any(pod.metadata.name == name and pod.metadata.namespace == namespace for pod in self._by_uid.values())

    def all(self) -> tuple[Pod, ...]:
        """All pods of this node, by UID."""
        return tuple(self._by_uid[uid] for uid in sorted(self._by_uid))

    @property
    def node(self) -> Node | None:
        """The node itself."""
        return self._nodes.objects.get(("", self._node))

    @property
    def lock(self) -> nodelock.NodeLock | None:
        """The node's lock; None where there is none, or one that nobody can read."""
        text = self.node.metadata.annotations.get(keys.NODE_LOCK) if self.node else None
        try:
            return nodelock.decode(text) if text else None
        except RecordError as exc:
            log.warning("node lock cannot be read", reason=str(exc))
            return None

    async def listed_uids(self) -> frozenset[str]:
        """UIDs of this node's pods, from the API server itself.

        Raises:
            ClusterError: it could not be asked.
        """
        found = await self._cluster.list(PODS, fields=f"spec.nodeName={self._node}")
        return frozenset(pod.metadata.uid for pod in found.items)

    async def run_pods(self, stop: asyncio.Event) -> None:
        """Follow the pods."""
        await self._pods.run(stop)

    async def run_node(self, stop: asyncio.Event) -> None:
        """Follow the node."""
        await self._nodes.run(stop)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._by_uid.pop(old.metadata.uid, None)
        if new is not None:
            self._by_uid[new.metadata.uid] = new
        self.changed.ring()

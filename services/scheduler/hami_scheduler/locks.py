"""All the locks that a pod may have to take on a node: the protocol's, and those that a vendor's device plugin keeps beside it.

Each is a ``NodeLocks`` of its own. Invariant: whoever takes several takes them in the same order, so that no two pods wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from hami_devices.vendor import OwnLock
from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Node, Pod
from hami_runtime.clock import Clock
from hami_runtime.kube import cluster as api
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.nodelock import NodeLocks


class Locks:
    """The locks of all nodes, by the annotation that each is."""

    def __init__(
        self,
        cluster: api.Cluster,
        clock: Clock,
        *,
        find_pod: Callable[[str, str], Pod | None],
        leading: Callable[[], bool],
        expiry_seconds: float,
        own: Iterable[OwnLock] = (),
        telemetry: Telemetry = OFF,
    ) -> None:
        """Nothing is known yet. ``own``: of vendors; the rest as for ``NodeLocks``."""
        self._shared = NodeLocks(cluster, clock, find_pod=find_pod, leading=leading, expiry_seconds=expiry_seconds, telemetry=telemetry)
        self._own = {
            lock.key: NodeLocks(
                cluster,
                clock,
                find_pod=find_pod,
                leading=leading,
                expiry_seconds=lock.expiry_seconds,
                key=lock.key,
                names_pods=False,
                telemetry=telemetry,
            )
            for lock in own
        }
        self._on_nodes: dict[str, set[str]] = {key: set() for key in self._own}
        """Nodes on which a vendor's lock has been seen or taken: of the others nothing is kept."""

    async def acquire(self, node: str, pod: PodRef, *, deadline: float, key: str = keys.NODE_LOCK) -> None:
        """Return once ``node`` is locked for ``pod`` by the annotation ``key``; see ``NodeLocks.acquire``."""
        if key != keys.NODE_LOCK:
            self._on_nodes[key].add(node)
        await self._own.get(key, self._shared).acquire(node, pod, deadline=deadline)

    def release(self, node: str, pod: PodRef) -> None:
        """``pod`` is done with ``node``: what it holds there passes on."""
        for locks in (self._shared, *self._own.values()):
            locks.release(node, pod)

    def node_changed(self, name: str, node: Node | None) -> None:
        """Take a node as the watch shows it."""
        self._shared.node_changed(name, node)
        for key, locks in self._own.items():
            known = self._on_nodes[key]
            if node is not None and key in node.metadata.annotations:
                known.add(name)
            if name in known:
                locks.node_changed(name, node)
            if node is None:
                known.discard(name)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take a pod as the watch shows it."""
        for locks in (self._shared, *self._own.values()):
            locks.pod_changed(old, new)

    async def run(self, stop: asyncio.Event) -> None:
        """Remove the locks of pods that are done where nobody waits for the node, until ``stop``."""
        async with asyncio.TaskGroup() as group:
            for locks in (self._shared, *self._own.values()):
                group.create_task(locks.run(stop))

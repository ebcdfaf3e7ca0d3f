"""Who may bind to a node whose agent works in ``envvar`` mode: one pod at a time, from bind until its containers have their devices.

``lock_rules`` decides; ``NodeLocks`` carries that out. Waiters stand in line per node, in order of arrival, and are woken by events (an outcome on
the bus, the holder's phase or end, a change of the node), never by polling. The lock is written by compare-and-set on the node's resourceVersion; it
passes from a holder that is done straight to the next in line, in one write. A lock in the legacy form, a bare time, names nobody: it is a pod of
ours while it reads as we wrote it, else somebody's until it has not changed for as long as it is valid.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from msgspec import Struct

from hami_protocol import keys, nodelock
from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.nodelock import NodeLock
from hami_protocol.pods import pod_ref
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import cluster as api
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.lock_rules import Holder, Standing, holder_state, judge, patience_seconds, read

log = structlog.get_logger()

RETRY_SECONDS = 0.5
SWEEP_SECONDS = 10.0
"""How often is looked for locks that have outlived their pods."""


class LockUnavailable(Exception):  # noqa: N818 - reads as the condition it names
    """The node could not be locked in time; the text names who holds it, or what failed."""


class _Seen(Struct, frozen=True, kw_only=True):
    """A lock's text, as last seen on a node."""

    text: str
    resource_version: str
    since_seconds: float


@dataclass(slots=True)
class _Line:
    """Who waits for one node. The lock is asyncio's, which serves in order of arrival."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    held_by: PodRef | None = None
    """The pod of ours that the lock was last written for."""
    text: str = ""
    """What was written."""
    done: bool = False
    """It is done, and the lock is still written, or may be."""
    writing: PodRef | None = None
    """The lock is being written for this pod: if that is interrupted, it may have been."""
    waiting: int = 0


class NodeLocks:
    """The locks of all nodes, as this process sees and writes them."""

    def __init__(
        self,
        cluster: api.Cluster,
        clock: Clock,
        *,
        find_pod: Callable[[str, str], Pod | None],
        leading: Callable[[], bool],
        expiry_seconds: float = 300.0,
        key: str = keys.NODE_LOCK,
        names_pods: bool = True,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Nothing is known yet.

        Args:
            cluster: where nodes are patched.
            clock: where durations are measured.
            find_pod: by namespace and name, the pod as the watch last showed it.
            leading: whether this replica leads; a follower removes no lock.
            expiry_seconds: see ``judge``.
            key: the node annotation that is the lock.
            names_pods: whether the lock is written with the pod that holds it, or as a bare time.
            telemetry: where failures are counted.
        """
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation(f"node locks {key}", clock, telemetry)
        self._find_pod = find_pod
        self._leading = leading
        self._expiry_seconds = expiry_seconds
        self._key = key
        self._names_pods = names_pods
        self._lines: dict[str, _Line] = {}
        self._seen: dict[str, _Seen] = {}
        self._locked: dict[str, None] = {}
        """Nodes with a lock, as last seen."""
        self._to_release: set[str] = set()
        self._release_wanted = asyncio.Event()

    async def acquire(self, node: str, pod: PodRef, *, deadline: float) -> None:
        """Return once ``node`` is locked for ``pod``; one that is locked for it already is fine.

        Args:
            node: which node.
            pod: for which pod.
            deadline: on the monotonic clock.

        Raises:
            LockUnavailable: not in time.
        """
        line = self._lines.setdefault(node, _Line())
        line.waiting += 1
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()), line.turn:
                await self._take(node, pod, line)
        except TimeoutError:
            raise LockUnavailable(f"node {node} is locked by {self._holder_text(node)}: timed out waiting for its turn") from None
        finally:
            line.waiting -= 1
            if line.writing is not None and line.writing.uid == pod.uid:
                line.held_by, line.done, line.writing = pod, True, None
            if line.done:  # whoever is next, or the remover where nobody is, sees to it
                self._wake(node, line)

    def release(self, node: str, pod: PodRef) -> None:
        """``pod`` is done with ``node``: the next in line takes it, or the lock is removed soon. Nothing happens where it does not hold it."""
        line = self._lines.get(node)
        holder = None if line is None else line.held_by
        if line is not None and holder is not None and holder.uid == pod.uid:
            line.done = True
            self._wake(node, line)
        elif holder is not None and (holder.namespace, holder.name) == (pod.namespace, pod.name):
            pass  # an earlier pod of the name has ended: the lock, which says no more than the name, is the later one's
        elif self._names(node, pod):  # locked by an earlier process of ours
            line = self._lines.setdefault(node, _Line())
            line.held_by, line.done = pod, True
            self._wake(node, line)

    def node_changed(self, name: str, node: Node | None) -> None:
        """Take a node as the watch shows it."""
        if node is None:
            self._seen.pop(name, None)
            self._locked.pop(name, None)
            if (line := self._lines.get(name)) is not None:
                line.changed.set()
            return
        text = node.metadata.annotations.get(self._key, "")
        earlier = self._seen.get(name)
        if self._see(name, text, node.metadata.resource_version) and (line := self._lines.get(name)) is not None:
            if earlier is not None and not text:
                line.held_by, line.done = None, False
            line.changed.set()
        if text and earlier is None:
            self._release_if_over(name, text)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take a pod as the watch shows it: its phase, end or deletion may free the node that it holds."""
        pod = new or old
        if pod is None or not (node := pod.spec.node_name or pod.metadata.annotations.get(keys.ASSIGNED_NODE, "")):
            return
        if holder_state(new, node, uid=pod.metadata.uid) is Holder.DONE:
            self.release(node, pod_ref(pod))
            if (line := self._lines.get(node)) is not None:
                line.changed.set()
        if new is not None and new.spec.node_name and (old is None or not old.spec.node_name):
            for other in [name for name in self._locked if name != node and self._names(name, pod_ref(pod))]:
                self.release(other, pod_ref(pod))  # locked by a process that died before it bound the pod there

    def _release_if_over(self, node: str, text: str) -> None:
        """A lock found at the start may outlast its pod's wait: nobody will say again that it is over."""
        lock, _ = read(text)
        pod = None if lock is None else self._find_pod(lock.namespace, lock.pod)
        if pod is not None and holder_state(pod, node) is Holder.DONE:
            self.release(node, pod_ref(pod))

    async def run(self, stop: asyncio.Event) -> None:
        """Remove the locks of pods that are done where nobody waits for the node, until ``stop``."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_until(stop, self._remove_for_ever()))
            group.create_task(run_until(stop, self._sweep_for_ever()))

    async def _sweep_for_ever(self) -> None:
        """Look for locks whose pods are over without anybody having seen it: they ended while no scheduler lived."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for node in list(self._locked) if self._leading() else ():
                with self._isolation.item(f"node {node}"):
                    await self._sweep(node)

    async def _sweep(self, node: str) -> None:
        line = self._lines.setdefault(node, _Line())
        seen = self._seen.get(node)
        lock = self._lock(node)[0]
        if lock is None or not lock.pod or line.waiting or line.held_by is not None:
            return
        if await self._holder(node, lock, line) is Holder.DONE and line.held_by is None and self._seen.get(node) is seen:
            line.held_by, line.done = PodRef(namespace=lock.namespace, name=lock.pod, uid=""), True
            self._wake(node, line)

    async def _remove_for_ever(self) -> None:
        while True:
            await self._release_wanted.wait()
            if not self._leading():
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._release_wanted.clear()
            nodes, self._to_release = self._to_release, set()
            for node in sorted(nodes):
                with self._isolation.item(f"node {node}"):
                    await self._remove(node)

    def _wake(self, node: str, line: _Line) -> None:
        line.changed.set()
        if not line.waiting:
            self._to_release.add(node)
            self._release_wanted.set()

    async def _take(self, node: str, pod: PodRef, line: _Line) -> None:
        while True:
            line.changed.clear()
            seen = self._seen.get(node)
            if seen is None:
                seen = await self._refresh(node)
            lock, unreadable = self._lock(node)
            holder = Holder.UNKNOWN if lock is None or not lock.pod else await self._holder(node, lock, line)
            unchanged_seconds = self._clock.monotonic() - seen.since_seconds
            match judge(
                lock,
                unreadable=unreadable,
                pod=pod,
                holder=holder,
                unchanged_seconds=unchanged_seconds,
                expiry_seconds=self._expiry_seconds,
            ):
                case Standing.OURS:
                    line.held_by, line.done = pod, False
                    return
                case Standing.FREE | Standing.STALE:
                    line.writing, line.text = pod, self._text(pod)
                    written = await self._write(node, seen, line.text)
                    line.writing = None
                    if written:
                        line.held_by, line.done = pod, False
                        return
                case Standing.HELD:
                    patience = patience_seconds(holder, self._expiry_seconds)
                    await _first(line.changed, timeout_seconds=patience - unchanged_seconds + RETRY_SECONDS)

    async def _holder(self, node: str, lock: NodeLock, line: _Line) -> Holder:
        held_by = line.held_by
        ours = held_by is not None and (held_by.namespace, held_by.name) == (lock.namespace, lock.pod)
        if ours and line.done:
            return Holder.DONE
        uid = held_by.uid if ours and held_by is not None else ""
        pod = self._find_pod(lock.namespace, lock.pod)
        if pod is None or (uid and pod.metadata.uid != uid):  # the watch may lag behind the lock: the API server knows
            try:
                pod = await self._cluster.get(api.PODS, lock.pod, namespace=lock.namespace)
            except api.NotFound:
                return Holder.DONE
            except api.ClusterError as exc:
                log.warning("lock holder not looked up", node=node, holder=f"{lock.namespace}/{lock.pod}", error=str(exc))
                return Holder.PENDING
        state = holder_state(pod, node, uid=uid)
        return Holder.PENDING if ours and state is Holder.UNBOUND else state

    def _text(self, pod: PodRef) -> str:
        holder = (pod.namespace, pod.name) if self._names_pods else ("", "")
        return nodelock.encode(NodeLock(time=self._clock.utc(), namespace=holder[0], pod=holder[1]))

    async def _write(self, node: str, seen: _Seen, text: str | None) -> bool:
        """Compare and set; on a lost race look again, so that the next judgement is of what is there now."""
        try:
            patched = await self._cluster.patch(
                api.NODES, node, {"metadata": {"annotations": {self._key: text}}}, resource_version=seen.resource_version
            )
        except api.NotFound as exc:
            raise LockUnavailable(f"node {node} is gone") from exc
        except api.Conflict:
            await self._refresh(node)
            return False
        except (api.Unavailable, api.TooManyRequests) as exc:
            log.warning("node lock not written", node=node, error=str(exc))
            await asyncio.sleep(RETRY_SECONDS)
            await self._refresh(node)  # it may have been written all the same
            return False
        except api.ClusterError as exc:
            raise LockUnavailable(f"node {node} cannot be locked: {exc}") from exc
        self._see(node, text or "", patched.metadata.resource_version)
        return True

    async def _remove(self, node: str) -> None:
        line = self._lines.get(node)
        if line is None or line.waiting:
            return
        async with line.turn:
            try:
                while line.done and line.held_by is not None:
                    if not self._names(node, line.held_by):  # removed by another hand, or the watch has not shown it yet
                        await self._refresh(node)
                    if not self._names(node, line.held_by) or await self._write(node, self._seen[node], None):
                        line.held_by, line.done = None, False
            except LockUnavailable as exc:
                log.warning("node lock not removed yet", node=node, error=str(exc))
                if node in self._seen:  # else the node is gone, and its lock with it
                    self._to_release.add(node)
                    self._release_wanted.set()
                    await asyncio.sleep(RETRY_SECONDS)

    async def _refresh(self, node: str) -> _Seen:
        try:
            found = await self._cluster.get(api.NODES, node)
        except api.ClusterError as exc:
            raise LockUnavailable(f"node {node} cannot be read: {exc}") from exc
        self._see(node, found.metadata.annotations.get(self._key, ""), found.metadata.resource_version)
        return self._seen[node]

    def _see(self, node: str, text: str, resource_version: str) -> bool:
        """Remember what was seen; return whether the lock's text is new. An older version than the last one seen is no news."""
        earlier = self._seen.get(node)
        if earlier is not None and _older(resource_version, earlier.resource_version):
            return False
        if earlier is not None and earlier.text == text:
            self._seen[node] = _Seen(text=text, resource_version=resource_version, since_seconds=earlier.since_seconds)
            return False
        self._seen[node] = _Seen(text=text, resource_version=resource_version, since_seconds=self._clock.monotonic())
        if text:
            self._locked[node] = None
        else:
            self._locked.pop(node, None)
        return True

    def _lock(self, node: str) -> tuple[NodeLock | None, bool]:
        """The lock as last seen, with its holder where that is a pod of ours; and whether there is one that cannot be read."""
        seen, line = self._seen.get(node), self._lines.get(node)
        lock, unreadable = read(seen.text if seen is not None else "")
        if lock is None or lock.pod or seen is None or line is None or line.held_by is None or line.text != seen.text:
            return lock, unreadable
        return NodeLock(time=lock.time, namespace=line.held_by.namespace, pod=line.held_by.name), False

    def _names(self, node: str, pod: PodRef) -> bool:
        lock = self._lock(node)[0]
        return lock is not None and (lock.namespace, lock.pod) == (pod.namespace, pod.name)

    def _holder_text(self, node: str) -> str:
        lock = self._lock(node)[0]
        return f"pod {lock.namespace}/{lock.pod}" if lock is not None and lock.pod else "somebody"


def _older(version: str, than: str) -> bool:
    """Whether resourceVersion ``version`` is before ``than`` (comparable integers, as Kubernetes guarantees from 1.35)."""
    try:
        return int(version) < int(than)
    except ValueError:
        return False


async def _first(event: asyncio.Event, *, timeout_seconds: float) -> None:
    """Return when ``event`` is set, or after the time-out."""
    try:
        async with asyncio.timeout(timeout_seconds if math.isfinite(timeout_seconds) else None):
            await event.wait()
    except TimeoutError:
        return

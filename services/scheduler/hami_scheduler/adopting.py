"""Pods that another scheduler has bound, with no word on devices: they are given devices on the node where they are.

Volcano asks our predicate, binds by itself, and its Binding carries nothing of ours. When the watch shows such a pod, the leader fits it on that one
node, charges it and publishes its grant as *unwritten*: the registry then writes the annotations, and the node's agent, which waits for both, serves
it. Between predicate and Binding nothing is reserved: where the room is gone by then, the pod is told so, and its agent refuses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hami_devices.admission import PrivilegedPolicy, refused_privileged
from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_devices.requests import RequestError
from hami_protocol.events import PodAllocating
from hami_protocol.kubernetes import Node, Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import allocations
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Placement
from hami_scheduler.verdicts import WARNING, Publish, Record

log = structlog.get_logger()

_CORDONED = "node.kubernetes.io/unschedulable"
RETRY_SECONDS = 5.0
"""Whose devices were not registered yet, or taken by a pod that is leaving, is tried again."""


class Adopting:
    """Gives devices to pods that others have bound."""

    def __init__(
        self,
        picture: Picture,
        clock: Clock,
        *,
        pods: Informer[Pod],
        publish: Publish,
        record: Record,
        leading: Callable[[], bool],
        schedulers: frozenset[str],
        privileged: PrivilegedPolicy = PrivilegedPolicy.CONTAINER,
        find_node: Callable[[str], Node | None] = lambda _: None,
        telemetry: Telemetry = OFF,
    ) -> None:
        """``schedulers``: names of the schedulers whose pods are meant."""
        self._picture = picture
        self._catalog: Catalog = picture.catalog
        self._clock = clock
        self._isolation = Isolation("adoption", clock, telemetry)
        self._pods = pods
        self._publish = publish
        self._record = record
        self._leading = leading
        self._schedulers = schedulers
        self._privileged = privileged
        self._find_node = find_node
        self._waiting: dict[str, Pod] = {}
        self._told: set[str] = set()
        self._bell = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take one change of a pod."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._forget(old.metadata.uid)
        if new is None:
            return
        if self._is_meant(new):
            self._waiting[new.metadata.uid] = new
            self._bell.set()
        else:
            self._forget(new.metadata.uid)

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._told.discard(uid)

    def _is_meant(self, pod: Pod) -> bool:
        if pod.spec.scheduler_name not in self._schedulers or not pod.spec.node_name or is_terminal(pod):
            return False
        return pod.metadata.deletion_timestamp is None and not self._picture.pods.has_record(pod)

    async def run(self, stop: asyncio.Event) -> None:
        """Adopt who is waiting, until ``stop``."""
        await run_until(stop, self._serve())

    async def _serve(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._bell.wait()
            except TimeoutError:
                pass
            self._bell.clear()
            if self._leading() and self._pods.synced.is_set():
                for uid, pod in tuple(self._waiting.items()):
                    name = f"pod {pod_ref(pod)} ({uid})"
                    if not self._isolation.due(name):
                        continue
                    with self._isolation.item(name):
                        if self._adopt(pod):
                            self._waiting.pop(uid, None)

    def _refusal(self, pod: Pod, request: PodRequest) -> str | None:
        """Why the pod is given nothing, whatever is free there: who is adopted is judged by the rules of admission and of scheduling."""
        if (privileged := refused_privileged(pod, request, self._privileged)) is not None:
            return f"container {privileged} is privileged"
        node = self._find_node(pod.spec.node_name)
        if node is not None and node.spec.unschedulable and not _tolerates_cordon(pod):
            return "the node is cordoned"
        return None

    def _adopt(self, pod: Pod) -> bool:
        """Give the pod devices on its node; whether there is nothing more to do for it."""
        ref, node = pod_ref(pod), pod.spec.node_name
        if self._picture.state.entry(ref.uid) is not None:
            return True
        try:
            request = self._catalog.read_pod(pod)
        except RequestError as exc:
            self._record(ref, WARNING, "AllocationRefused", str(exc))
            return True
        if not request.asks:
            return True
        if (refusal := self._refusal(pod, request)) is not None:
            self._record(ref, WARNING, "AllocationRefused", f"bound to [{node}] by {pod.spec.scheduler_name}: {refusal}")
            return True
        found = self._picture.judge(ref, request, [node])
        if not isinstance(found, Placement):
            if ref.uid not in self._told:
                self._told.add(ref.uid)
                self._record(ref, WARNING, "AllocationRefused", f"bound to [{node}] by {pod.spec.scheduler_name}: {found.summary}")
            return False
        self._picture.pods.adopted(ref.uid)
        self._picture.state.charge(ref, node, found.assignments, shrunk=False, traits=request.traits)
        time_seconds = int(self._clock.utc().timestamp())
        event = PodAllocating(pod=ref, node=node, assignments=found.assignments, bind_time_seconds=time_seconds, unwritten=True)
        missing = allocations.allocating(event)
        self._publish(missing.event, missing.event_id)
        log.info("pod adopted", pod=str(ref), node=node, scheduler=pod.spec.scheduler_name)
        return True


def _tolerates_cordon(pod: Pod) -> bool:
    """Whether the pod may be placed on a cordoned node, as those of DaemonSets may."""
    return any(each.key in ("", _CORDONED) and each.effect in ("", "NoSchedule") for each in pod.spec.tolerations or ())

"""``envvar`` mode, for every runtime and for the reference's scheduler: the pod is found at Allocate, by node lock and pending grants.

One call at a time. What is on its way (the pod, the lock, the grant) is waited for; what stays unknown or ambiguous is refused. When the
container starts, ``starting`` compares what was answered with what the pod that really got it was granted, so that a wrong match never runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from hami_node_agent import discovery, matching
from hami_node_agent.answers import Answer, PluginOptions
from hami_node_agent.granting import Granting
from hami_node_agent.journal import Journal
from hami_node_agent.matching import Match, PendingPod
from hami_node_agent.node_pods import NodePods, pending
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_protocol.devices import PodRef
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref

log = structlog.get_logger()


class EnvvarMode:
    """Serves Allocate and GetPreferredAllocation."""

    options = PluginOptions(pre_start_required=True, preferred_allocation=True)

    def __init__(
        self,
        granting: Granting,
        *,
        pods: NodePods,
        journal: Journal,
        new_name: Callable[[], str],
        device_nodes: Callable[[Sequence[str]], tuple[str, ...]],
    ) -> None:
        self._granting = granting
        self._pods = pods
        self._journal = journal
        self._new_name = new_name
        self._device_nodes = device_nodes
        self._one_at_a_time = asyncio.Lock()

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Serve the container that the call is for.

        Raises:
            Refused: nobody, or more than one, or what kubelet asks is not what was granted.
        """
        async with self._one_at_a_time:
            served = await self._served(len(device_ids))
        if isinstance(served, Refusal):
            self._granting.refused(served, failed=served.pod is not None)  # kubelet fails the pod for good
            raise Refused(served)
        return served

    async def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Slots of the cards that the one pending container was granted; empty where it is not certain which that is."""
        found = matching.match(self._pending()[0], self._pods.lock, size)
        if isinstance(found, Refusal):
            return ()
        try:
            return discovery.preferred([share.uuid for share in found.container.shares], available, required, size)
        except ValueError as exc:
            log.info("no preference", reason=str(exc))
            return ()

    def _pending(self) -> tuple[list[PendingPod], list[tuple[PodRef, str]]]:
        """Pods that wait, and those whose records cannot be read, with the reason."""
        waiting: list[PendingPod] = []
        unreadable: list[tuple[PodRef, str]] = []
        for uid, pod in sorted(self._pods.live.items()):
            record = self._journal.pods.get(uid)
            try:
                found = pending(pod, self._granting.vendor, self._granting.node, frozenset(record.served) if record else frozenset())
            except RecordError as exc:
                unreadable.append((pod_ref(pod), str(exc)))
                continue
            if found is not None:
                waiting.append(found)
        return waiting, unreadable

    async def _served(self, count: int) -> Answer | Refusal:
        self._pods.look_again()
        settled: Match | Refusal | None = await self._pods.changed.until(
            lambda: self._settled(count), seconds=self._granting.policy.wait_seconds
        )
        found = settled or self._matched(count)
        if isinstance(found, Refusal):
            return found
        pod = self._pods.live.get(found.pod.pod.uid)
        if pod is None:
            return Refusal(kind=RefusalKind.UNKNOWN_POD, reason=f"{found.pod.pod} has ended", pod=found.pod.pod)
        held = await self._granting.grant(pod)
        if isinstance(held, Refusal):
            return held
        with self._granting.traced(pod, "serve container"):
            return self._answer(pod, found)

    def _settled(self, count: int) -> Match | Refusal | None:
        """What a call is for, None as long as waiting may help: for the API server, for the pod that the lock names, for a lock, for a pod."""
        if not self._pods.connected:
            return None  # whoever seems to wait may be gone, and the one that is meant not yet seen
        lock = self._pods.lock
        if lock is not None and lock.pod and not self._pods.named(lock.namespace, lock.pod):
            return None  # seen before its pod: whoever else waits is not meant
        found = self._matched(count)
        settled = isinstance(found, Match) or found.kind not in {RefusalKind.UNKNOWN_POD, RefusalKind.AMBIGUOUS}
        return found if settled else None

    def _matched(self, count: int) -> Match | Refusal:
        waiting, unreadable = self._pending()
        lock = self._pods.lock
        for ref, reason in unreadable:
            if lock is not None and (lock.namespace, lock.pod) == (ref.namespace, ref.name):
                return Refusal(kind=RefusalKind.UNREADABLE, reason=f"{ref}: {reason}", pod=ref)
        return matching.match(waiting, lock, count)

    def _answer(self, pod: Pod, found: Match) -> Answer | Refusal:
        """Write, remember, report, in this order. No await in here."""
        ref, container = found.pod.pod, found.container
        name = self._new_name()
        need = self._granting.needs(pod, container, name)
        if isinstance(need, Refusal):
            return need
        places = found.pod.served | {found.place}
        try:
            self._granting.put(need)
            self._granting.remember(ref, found.pod.assignment, {container.container: name}, place=found.place)
        except OSError as exc:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        self._granting.served(pod, found.pod.assignment, places, container.container)
        if all(place in places or not one.shares for place, one in enumerate(found.pod.assignment.containers)):
            self._granting.succeeded(pod)
        return Answer(
            environment=need.environment,
            mounts=need.mounts,
            device_nodes=self._device_nodes([share.uuid for share in container.shares]),
        )

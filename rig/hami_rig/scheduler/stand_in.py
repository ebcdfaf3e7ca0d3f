"""The scheduling cycle: takes one pod at a time from the queue, asks the own filters and the extender, assumes, and binds beside the next cycle.

Decides nothing of its own: which nodes fit is ``fit``'s, whom to evict ``preemption``'s, what to write ``verdict``'s, when to try again
``queue``'s. Invariants: one filter call at a time; a pod is assumed before its bind starts; a condition is only written when it changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import structlog

from hami_protocol import kubernetes as k
from hami_protocol.devices import PodRef
from hami_protocol.pods import is_terminal, pod_ref
from hami_rig.scheduler import fit, preemption, verdict
from hami_rig.scheduler.configuration import SchedulerConfiguration
from hami_rig.scheduler.extender import Extender, ExtenderError
from hami_rig.scheduler.inventory import Inventory
from hami_rig.scheduler.objects import PODS, SchedulingPod
from hami_rig.scheduler.preemption import PreemptionError
from hami_rig.scheduler.queue import FLUSH_EVERY_SECONDS, SchedulingQueue, Wake
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import NODES, Cluster, ClusterError
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.informer import Informer

log = structlog.get_logger(__name__)

SYNC_SECONDS = 0.1
"""How often is looked whether everything has been listed: before that, whatever is in the queue has to wait."""


@dataclass(kw_only=True, slots=True)
class _Search:
    """What one look for a node found."""

    feasible: list[str] = field(default_factory=list)
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unresolvable: set[str] = field(default_factory=set)
    extender_asked: bool = False


class KubeScheduler:
    """kube-scheduler's part, on the ports."""

    def __init__(
        self, cluster: Cluster, clock: Clock, configuration: SchedulerConfiguration, extender: Extender | None, *, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._configuration = configuration
        self._extender = extender
        self._rng = rng
        self._queue = SchedulingQueue(
            initial_backoff_seconds=configuration.pod_initial_backoff_seconds, max_backoff_seconds=configuration.pod_max_backoff_seconds
        )
        self._inventory = Inventory()
        self._ignored = extender.config.ignored_resources if extender else frozenset[str]()
        self._next_start = 0
        self._changed = asyncio.Event()
        self._recorders = {name: EventRecorder(cluster, clock, name) for name in configuration.scheduler_names}
        self._pods = Informer(cluster, PODS, clock=clock)
        self._nodes = Informer(cluster, NODES, clock=clock)
        self._pods.subscribe(self._on_pod)
        self._nodes.subscribe(self._on_node)

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until ``stop``; binds that have begun are finished."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._pods.run, self._nodes.run, *(each.run for each in self._recorders.values()), self._wake_at_stop):
                group.create_task(loop(stop))
            while not stop.is_set():
                self._changed.clear()
                pod = self._queue.pop(self._clock.monotonic()) if self._synced() else None
                if pod is None:
                    await self._idle()
                else:
                    await self._schedule(pod, group)

    def _synced(self) -> bool:
        return self._pods.synced.is_set() and self._nodes.synced.is_set()

    async def _wake_at_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _idle(self) -> None:
        due = self._queue.next_due(self._clock.monotonic()) if self._synced() else SYNC_SECONDS
        try:
            async with asyncio.timeout(FLUSH_EVERY_SECONDS if due is None else min(due, FLUSH_EVERY_SECONDS)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _on_pod(self, old: SchedulingPod | None, new: SchedulingPod | None) -> None:
        now = self._clock.monotonic()
        if new is None:
            if old is not None and self._inventory.remove_pod(old.metadata.uid):
                self._queue.wake(Wake.RELEASE, now)
            if old is not None:
                self._queue.remove(old.metadata.uid)
        elif new.spec.node_name:
            self._on_scheduled(old, new, now)
        elif new.spec.scheduler_name in self._configuration.scheduler_names and not self._inventory.is_assumed(new.metadata.uid):
            if is_terminal(new) or new.metadata.deletion_timestamp:
                self._queue.remove(new.metadata.uid)
            elif not new.spec.scheduling_gates:
                self._queue.update(new, now, wakes=old is None or pod_differs(old, new))
        self._changed.set()

    def _on_scheduled(self, old: SchedulingPod | None, new: SchedulingPod, now: float) -> None:
        self._queue.remove(new.metadata.uid)
        if is_terminal(new):
            if self._inventory.remove_pod(new.metadata.uid):
                self._queue.wake(Wake.RELEASE, now)
        else:
            appeared = self._inventory.place(new, new.spec.node_name)
            if appeared or old is None or pod_differs(old, new):
                self._queue.wake(Wake.POD, now)

    def _on_node(self, old: k.Node | None, new: k.Node | None) -> None:
        if new is None or old is None or node_differs(old, new):
            self._queue.wake(Wake.NODE, self._clock.monotonic())
            self._changed.set()

    async def _schedule(self, pod: SchedulingPod, group: asyncio.TaskGroup) -> None:
        nodes = {name: node for (_, name), node in sorted(self._nodes.objects.items())}
        requests = fit.pod_requests(pod)
        try:
            found = await self._find(pod, requests, nodes)
            if not found.feasible:
                await self._refuse(pod, requests, nodes, found)
                return
            node = await self._best(pod, requests, nodes, found)
        except ExtenderError as exc:
            await self._fail(pod, str(exc))
            return
        self._inventory.assume(pod, node)
        self._queue.remove(pod.metadata.uid)
        group.create_task(self._bind(pod, node))

    async def _find(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node]) -> _Search:
        nominated = self._inventory.nominated_node(pod.metadata.uid) or pod.status.nominated_node_name
        if nominated in nodes and nominated:
            found = await self._search(pod, requests, {nominated: nodes[nominated]})
            if found.feasible:
                return found
        return await self._search(pod, requests, nodes)

    async def _search(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node]) -> _Search:
        found = self._own_filters(pod, requests, nodes)
        if self._extender is None or not found.feasible or not self._extender.interested(pod):
            return found
        found.extender_asked = True
        if self._configuration.parallelism > 1:
            self._rng.shuffle(found.feasible)  # the order in which kube-scheduler's workers come to nodes: nobody may rely on it
        answer = await self._extender.filter(pod, nodes, found.feasible)
        found.feasible = list(answer.feasible)
        found.reasons |= {name: (reason,) for name, reason in (*answer.failed.items(), *answer.unresolvable.items())}
        found.unresolvable |= set(answer.unresolvable)
        return found

    def _own_filters(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node]) -> _Search:
        found = _Search()
        names = list(nodes)
        enough = fit.feasible_to_find(len(names), self._configuration.percentage_of_nodes_to_score)
        looked_at = 0
        for looked_at in range(1, len(names) + 1):
            name = names[(self._next_start + looked_at - 1) % len(names)]
            load = self._inventory.load(name, besides=pod)
            if blocked := fit.misfit(pod, requests, nodes[name], load, ignored=self._ignored):
                found.reasons[name] = blocked.reasons
                if blocked.unresolvable:
                    found.unresolvable.add(name)
            else:
                found.feasible.append(name)
                if len(found.feasible) >= enough:
                    break
        self._next_start = (self._next_start + looked_at) % max(len(names), 1)
        return found

    async def _best(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node], found: _Search) -> str:
        if len(found.feasible) == 1:
            return found.feasible[0]
        feasible = {name: nodes[name] for name in found.feasible}
        scores = fit.own_scores(requests, feasible, {name: self._inventory.load(name, besides=pod) for name in feasible})
        if self._extender and found.extender_asked and self._extender.config.prioritize_verb:
            points = await self._extender.prioritize(pod, nodes, found.feasible)
            for name, score in points.items():
                if name in scores:
                    scores[name] += score * self._extender.config.weight * fit.MAX_SCORE // 10
        top = max(scores.values())
        return self._rng.choice(sorted(name for name, score in scores.items() if score == top))

    async def _bind(self, pod: SchedulingPod, node: str) -> None:
        try:
            if self._extender and self._extender.config.bind_verb and self._extender.interested(pod):
                await self._extender.bind(pod, node)
            else:
                await self._cluster.bind(pod_ref(pod), node, annotations={}, labels={})
        except (ExtenderError, ClusterError) as exc:
            if self._inventory.forget(pod.metadata.uid):
                current = self._current(pod)
                if current is not None:
                    self._queue.update(current, self._clock.monotonic(), wakes=False)
                    await self._fail(current, str(exc))
            return
        self._inventory.unnominate(pod.metadata.uid)
        self._record(pod, pod, "Normal", "Scheduled", f"Successfully assigned {pod_ref(pod)} to {node}")

    async def _refuse(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node], found: _Search) -> None:
        preempting = await self._preempt(pod, requests, nodes, found) if nodes else ""
        message = verdict.sentence(len(nodes), found.reasons, preempting)
        self._queue.refused(pod.metadata.uid, self._clock.monotonic(), by_extender=found.extender_asked)
        await self._report(pod, verdict.UNSCHEDULABLE, message)

    async def _fail(self, pod: SchedulingPod, message: str) -> None:
        log.warning("scheduling failed", pod=str(pod_ref(pod)), reason=message)
        self._queue.failed(pod.metadata.uid, self._clock.monotonic())
        await self._report(pod, verdict.SCHEDULER_ERROR, message)

    async def _report(self, pod: SchedulingPod, reason: str, message: str) -> None:
        current = self._current(pod)
        if current is None:
            return
        ref, condition = pod_ref(pod), verdict.condition(reason, message)
        self._record(pod, pod, "Warning", "FailedScheduling", verdict.note(message))
        has = next((each for each in current.status.conditions or () if each.type == "PodScheduled"), None)
        if has and (has.status, has.reason, has.message) == ("False", reason, message):
            return
        try:
            await self._cluster.patch_conditions(ref, [condition])
        except ClusterError as exc:
            log.warning("condition not written", pod=str(ref), reason=str(exc))

    def _record(self, pod: SchedulingPod, about: SchedulingPod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An Event about a pod, by the scheduler that ``pod`` asked for."""
        self._recorders[pod.spec.scheduler_name].record(pod_ref(about), type_, reason, message)

    def _current(self, pod: SchedulingPod) -> SchedulingPod | None:
        """The pod as it is now; None once it is gone, going or bound."""
        current = self._pods.objects.get((pod.metadata.namespace, pod.metadata.name))
        if current is None or current.metadata.uid != pod.metadata.uid or current.metadata.deletion_timestamp or current.spec.node_name:
            return None
        return current

    async def _preempt(self, pod: SchedulingPod, requests: Mapping[str, Fraction], nodes: Mapping[str, k.Node], found: _Search) -> str:
        """Evict for ``pod`` if that helps, and return what is said about it."""
        if pod.spec.preemption_policy == "Never":
            return preemption.NEVER
        nominated = self._inventory.nominated_node(pod.metadata.uid)
        if nominated and self._inventory.has_terminating_victim(nominated, preemption.priority(pod)):
            return preemption.TERMINATING
        try:
            tried = preemption.candidates(pod, requests, nodes, self._inventory.pods_by_node(), found.unresolvable, ignored=self._ignored)
            if not tried.victims:
                return verdict.preemption_sentence(len(nodes), tried.reasons)
            victims = await self._agreed_victims(pod, tried.victims)
        except PreemptionError as exc:
            return str(exc)
        node = preemption.least_harm(victims)
        for victim in victims[node]:
            await self._evict(pod, victim, node)
        await self._nominate(pod, node)
        return f"found a potential placement for pod on node {node}, preempting {len(victims[node])} victims."

    async def _agreed_victims(
        self, pod: SchedulingPod, victims: Mapping[str, tuple[SchedulingPod, ...]]
    ) -> Mapping[str, tuple[SchedulingPod, ...]]:
        if not (self._extender and self._extender.config.preempt_verb and self._extender.interested(pod)):
            return victims
        agreed = await self._extender.preempt(pod, victims)
        if not agreed:
            raise PreemptionError(preemption.NO_CANDIDATE)
        by_node = self._inventory.pods_by_node()
        chosen = {}
        for node, uids in agreed.items():
            present = {each.metadata.uid: each for each in by_node.get(node, ())}
            if not uids or not present.keys() >= set(uids):
                raise PreemptionError(f'extender "{self._extender.config.url_prefix}" claims unknown victims on node "{node}"')
            chosen[node] = tuple(present[uid] for uid in uids)
        return chosen

    async def _evict(self, pod: SchedulingPod, victim: SchedulingPod, node: str) -> None:
        ref = pod_ref(victim)
        try:
            await self._cluster.delete(PODS, ref.name, namespace=ref.namespace, uid=ref.uid)
        except ClusterError as exc:
            log.warning("victim not deleted", pod=str(ref), reason=str(exc))
            return
        self._record(pod, victim, "Normal", "Preempted", f"Preempted by pod {pod.metadata.uid} on node {node}")

    async def _nominate(self, pod: SchedulingPod, node: str) -> None:
        self._inventory.nominate(pod, node)
        ref: PodRef = pod_ref(pod)
        body = {"status": {"nominatedNodeName": node}}
        try:
            await self._cluster.patch(PODS, ref.name, body, namespace=ref.namespace, subresource="status", uid=ref.uid)
        except ClusterError as exc:
            log.warning("nomination not written", pod=str(ref), reason=str(exc))


def pod_differs(old: k.Pod, new: k.Pod) -> bool:
    """Whether a pod changed in what may place a refused pod: annotations, labels, status, or that it is going."""
    return (old.metadata.annotations, old.metadata.labels, old.metadata.deletion_timestamp, old.status, old.spec) != (
        new.metadata.annotations,
        new.metadata.labels,
        new.metadata.deletion_timestamp,
        new.status,
        new.spec,
    )


def node_differs(old: k.Node, new: k.Node) -> bool:
    """Whether a node changed in what may place a refused pod; heartbeat times and capacity alone do not."""
    return _node_view(old) != _node_view(new)


def _node_view(node: k.Node) -> object:
    conditions = sorted((each.type, each.status) for each in node.status.conditions or ())
    return node.metadata.labels, node.metadata.annotations, node.spec, node.status.allocatable, conditions

"""Preemption of our own, and kube-scheduler's narrowed: gathers who may go, lets ``placement.preemption`` choose, keeps the room, evicts.

kube-scheduler knows of no card: where only cards are short it finds no victim and never asks (``/preempt`` is called where it lacks something of its
own too). So a pod that filter has refused, of higher priority than others and whose ``preemptionPolicy`` is not ``Never``, is looked at here,
outside of filter. Victims go through the Eviction API, so that PodDisruptionBudgets hold; what they leave is kept for the pod by UID until filter
reserves it, or its time is over. Where those that are leaving anyway make room enough, nobody is evicted. For whom room is kept, and where, is
written on the pod before anybody goes, as a condition (kube-scheduler writes its nomination): the next leader keeps it on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest, Reason
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod, PodDisruptionBudget
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import cluster as api
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import wire
from hami_scheduler.metrics import Metrics
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Phase, Placement, preemption
from hami_scheduler.placement.preemption import Preemption, Victim
from hami_scheduler.verdicts import NORMAL, WARNING, Record
from hami_scheduler.wire import MetaPod, MetaVictims, PreemptionArgs

log = structlog.get_logger()

MOST_CANDIDATES = 100
"""Nodes where evictions would help, of which the best is taken."""
YIELD_NODES = 200
SPARE_SECONDS = 30.0
"""For how long what victims leave is kept beyond the time that they may take to end."""
LONGEST_SECONDS = 600.0
AGAIN_SECONDS = 60.0
"""After an eviction was refused, nobody else is evicted for the same pod for so long."""
DEFAULT_GRACE_SECONDS = 30
ATTEMPTS = 3
REMEMBERED = 256
NEVER = "Never"
CONDITION = "hami.io/RoomKept"
"""Type of the condition that names the node where others have gone for a pod, or are about to."""
_NODE_PREFIX = "node "


@dataclass(frozen=True, slots=True)
class _Wanting:
    """A refused pod for which others may have to go."""

    pod: PodRef
    request: PodRequest
    priority: int
    nodes: Mapping[str, str]
    """Where a release may help, as filter said."""


class Preempting:
    """Pods of lower priority make room."""

    def __init__(
        self,
        picture: Picture,
        cluster: api.Cluster,
        clock: Clock,
        *,
        pods: Informer[Pod],
        budgets: Informer[PodDisruptionBudget],
        record: Record,
        metrics: Metrics,
        leading: Callable[[], bool],
        enabled: bool,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._picture = picture
        self._catalog: Catalog = picture.catalog
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("preemption", clock, telemetry)
        self._pods = pods
        self._budgets = budgets
        self._record = record
        self._metrics = metrics
        self._leading = leading
        self._enabled = enabled
        self._wanting: dict[str, _Wanting] = {}
        self._bell = asyncio.Event()
        self._not_before: dict[str, float] = {}
        self._priorities: Counter[int] = Counter()
        """Of the pods that hold devices."""
        self._offered: OrderedDict[str, dict[str, Placement]] = OrderedDict()
        """By UID, what the pod would get on each node that ``narrow`` left to kube-scheduler."""
        self._kept: dict[str, str] = {}
        """By UID, the node on which this process has kept room for the pod, also if it does no more."""
        self._of_others: dict[str, str] = {}
        """By UID, the node on which another leader has kept room for the pod, by the pod's own record."""

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take one change of a pod."""
        before, after = _priority_held(old), _priority_held(new)
        if before != after:
            self._priorities.update({} if after is None else {after: 1})
            if before is not None:
                self._priorities[before] -= 1
                if not self._priorities[before]:
                    del self._priorities[before]
        if new is None or new.spec.node_name or is_terminal(new):
            for known in (old, new):
                if known is not None:
                    self._forget(known.metadata.uid)
        else:
            uid = new.metadata.uid
            if new.status.nominated_node_name:
                self._nominated(new, new.status.nominated_node_name)
            if (node := _recorded(new)) and self._kept.get(uid) != node:
                self._of_others[uid] = node

    def _forget(self, uid: str) -> None:
        self._wanting.pop(uid, None)
        self._not_before.pop(uid, None)
        self._offered.pop(uid, None)
        self._kept.pop(uid, None)
        self._of_others.pop(uid, None)

    def keep_on(self) -> None:
        """Keep the room that another leader has kept, where those who go, or are gone, leave it: before anything else is decided."""
        if not self._of_others:
            return
        others, self._of_others = self._of_others, {}
        pods = {pod.metadata.uid: pod for pod in self._pods.objects.values() if pod.metadata.uid in others}
        budgets = self._budgets_by_namespace()
        for uid, pod in pods.items():
            if self._picture.state.entry(uid) is not None or pod.spec.node_name or pod.metadata.deletion_timestamp:
                continue
            try:
                request = self._catalog.read_pod(pod)
            except RequestError:
                continue
            if not request.asks:
                continue
            found = self._on_node(_Wanting(pod_ref(pod), request, request.priority, {}), others[uid], budgets)
            self._kept[uid] = others[uid]  # room that nobody leaves is not looked for again
            if found is not None and not found.victims:
                self._keep(pod_ref(pod), found.placement)
                log.info("room kept on", pod=str(pod_ref(pod)), node=others[uid])

    def _nominated(self, pod: Pod, node: str) -> None:
        """kube-scheduler evicts for the pod on a node that we left to it: what becomes free there is the pod's."""
        uid = pod.metadata.uid
        placement = self._offered.pop(uid, {}).get(node)
        if placement is not None and self._picture.state.entry(uid) is None:
            self._keep(pod_ref(pod), placement)

    # Our own

    def refused(self, pod: Pod, request: PodRequest, failed: Mapping[str, str]) -> None:
        """Filter has refused ``pod`` on the nodes of ``failed``, where a release may help: see whether others may go for it."""
        uid = pod.metadata.uid
        lowest = min(self._priorities, default=request.priority)
        if not self._enabled or not failed or request.priority <= lowest or pod.spec.preemption_policy == NEVER:
            return
        if self._picture.state.entry(uid) is not None or self._not_before.get(uid, 0.0) > self._clock.monotonic():
            return
        self._wanting[uid] = _Wanting(pod_ref(pod), request, request.priority, failed)
        self._bell.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Make room for refused pods, one after the other, until ``stop``."""
        await run_until(stop, self._serve())

    async def _serve(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._wanting:
                uid = next(iter(self._wanting))
                wanting = self._wanting.pop(uid)
                if self._leading() and self._budgets.synced.is_set():
                    with self._isolation.item(f"pod {wanting.pod}"):
                        await self._make_room(wanting)

    async def _make_room(self, wanting: _Wanting) -> None:
        best = await self._best(wanting)
        if best is None or not best.victims or not self._still_waits(wanting.pod):
            return
        chosen = self._on_node(wanting, best.placement.node, self._budgets_by_namespace())  # what was found may be of yesterday
        if chosen is None or not chosen.victims:
            return
        self._keep(wanting.pod, chosen.placement, *(victim.pod for victim in chosen.victims))
        node = chosen.placement.node
        names = ", ".join(str(victim.pod) for victim in chosen.victims)
        await self._note(wanting.pod, node)
        log.info("preempting", pod=str(wanting.pod), node=node, victims=names)
        self._record(wanting.pod, NORMAL, "Preempting", f"evicting pods of lower priority on node [{node}]: {names}")
        for victim in sorted(chosen.victims, key=lambda victim: (not victim.budgets, victim.priority)):  # who may be refused comes first
            if (error := await self._evict(victim.pod, wanting.pod)) is not None:
                self._give_up(wanting.pod, node, f"pod {victim.pod} is not evicted: {error}")
                return
            self._record(victim.pod, NORMAL, "Preempted", f"preempted by pod {wanting.pod} of higher priority on node [{node}]")
            self._metrics.evictions.add(1)

    async def _best(self, wanting: _Wanting) -> Preemption | None:
        """The least harm of all nodes; None where nobody need go, or nobody's eviction helps."""
        best: Preemption | None = None
        found = 0
        budgets = self._budgets_by_namespace()
        for count, (node, reason) in enumerate(wanting.nodes.items()):
            if count % YIELD_NODES == 0:
                await asyncio.sleep(0)
            if reason == Reason.QUOTA or not self._may_help(wanting, node):
                continue
            await asyncio.sleep(0)
            preempts = self._on_node(wanting, node, budgets)
            if preempts is None:
                continue
            if not preempts.victims:
                return None
            best = preempts if best is None or preempts.harm < best.harm else best
            found += 1
            if found == MOST_CANDIDATES:
                break
        return best

    def _may_help(self, wanting: _Wanting, node: str) -> bool:
        return any(
            (pod := self._held_by(entry.pod)) is not None
            and (pod.metadata.deletion_timestamp or (pod.spec.priority or 0) < wanting.priority)
            for entry in self._picture.state.entries_on(node)
        )

    def _on_node(
        self,
        wanting: _Wanting,
        node: str,
        budgets: Mapping[str, list[PodDisruptionBudget]],
        *,
        gone: Iterable[str] = (),
    ) -> Preemption | None:
        """What ``placement.preemption`` says of one node; ``gone`` are UIDs of pods that go in any case."""
        victims: list[Victim] = []
        leaving = set(gone)
        left: dict[str, int] = {}
        state = self._picture.state
        for entry in state.entries_on(node):
            pod = self._held_by(entry.pod)
            if pod is None or entry.phase not in {Phase.BOUND, Phase.SHRUNK}:
                continue
            charged = [budget for budget in budgets.get(pod.metadata.namespace, ()) if _covers(budget, pod)]
            names = tuple(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in charged)
            for name, budget in zip(names, charged, strict=True):
                left.setdefault(name, _left(budget))
                left[name] -= pod.metadata.uid in leaving
            if pod.metadata.deletion_timestamp:
                leaving.add(pod.metadata.uid)
            elif pod.metadata.uid not in leaving and (pod.spec.priority or 0) < wanting.priority and len(charged) <= 1:
                victims.append(Victim(pod=entry.pod, priority=pod.spec.priority or 0, budgets=names))  # of two the API server takes none
        return preemption.on_node(
            state,
            wanting.request,
            node,
            victims,
            uid=wanting.pod.uid,
            leaving=tuple(leaving),
            budgets=left,
            allowance=self._picture.allowance(wanting.pod, wanting.request.traits),
        )

    def _held_by(self, ref: PodRef) -> Pod | None:
        """The pod behind an entry, where it is bound and lives."""
        pod = self._pods.get(ref.name, ref.namespace)
        if pod is None or pod.metadata.uid != ref.uid or not pod.spec.node_name or is_terminal(pod):
            return None
        return pod

    def _still_waits(self, ref: PodRef) -> bool:
        pod = self._pods.get(ref.name, ref.namespace)
        if pod is None or pod.metadata.uid != ref.uid or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return False
        return self._picture.state.entry(ref.uid) is None and self._leading()

    def _keep(self, ref: PodRef, placement: Placement, *victims: PodRef) -> None:
        graces = [DEFAULT_GRACE_SECONDS]
        for victim in victims:
            pod = self._held_by(victim)
            if pod is not None and pod.spec.termination_grace_period_seconds is not None:
                graces.append(pod.spec.termination_grace_period_seconds)
        seconds = min(max(graces) + SPARE_SECONDS, LONGEST_SECONDS)
        self._kept[ref.uid] = placement.node
        self._picture.state.nominate(ref, placement, lapses_at=self._clock.monotonic() + seconds)

    async def _note(self, ref: PodRef, node: str) -> None:
        """Say on the pod where room is kept for it, for the next leader; without that, only this one keeps it."""
        now = self._clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "True",
            "reason": "Preempting",
            "message": f"{_NODE_PREFIX}{node}",
            "lastTransitionTime": now,
        }
        try:
            await self._cluster.patch_conditions(ref, [condition])
        except api.ClusterError as exc:
            log.warning("room kept is not noted on the pod", pod=str(ref), node=node, error=str(exc))

    def _give_up(self, ref: PodRef, node: str, reason: str) -> None:
        """Keep nothing for the pod any more, and leave it alone for a while."""
        self._not_before[ref.uid] = self._clock.monotonic() + AGAIN_SECONDS
        self._picture.unkeep(ref.uid)
        log.warning("preemption given up", pod=str(ref), node=node, reason=reason)
        self._record(ref, WARNING, "PreemptionFailed", f"no room made on node [{node}]: {reason}")

    async def _evict(self, victim: PodRef, ref: PodRef) -> str | None:
        """Evict ``victim``; why that failed, None where it goes."""
        error = ""
        for attempt in range(ATTEMPTS):
            if self._picture.state.entry(ref.uid) is None or not self._leading():
                return "the pod that it was to make room for needs it no more"
            try:
                await self._cluster.evict(victim)
            except (api.NotFound, api.Conflict):
                return None  # gone already
            except api.Unavailable as exc:
                error = str(exc)
                await asyncio.sleep(0.2 * 2**attempt)
            except api.ClusterError as exc:
                return str(exc)
            else:
                return None
        return error

    def _budgets_by_namespace(self) -> dict[str, list[PodDisruptionBudget]]:
        budgets: dict[str, list[PodDisruptionBudget]] = {}
        for (namespace, _), budget in sorted(self._budgets.objects.items()):
            budgets.setdefault(namespace, []).append(budget)
        return budgets

    # kube-scheduler's

    def narrow(self, args: PreemptionArgs) -> dict[str, MetaVictims]:
        """Of kube-scheduler's candidates, those whose victims really free what the pod needs; with as few more victims as that takes."""
        candidates = wire.unchanged(args)
        if args.pod is None:
            return candidates
        try:
            request = self._catalog.read_pod(args.pod)
        except RequestError:
            return {}
        if not request.asks:
            return candidates
        wanting = _Wanting(pod_ref(args.pod), request, request.priority, {})
        budgets = self._budgets_by_namespace()
        narrowed: dict[str, MetaVictims] = {}
        offered: dict[str, Placement] = {}
        for node, given in candidates.items():
            preempts = self._on_node(wanting, node, budgets, gone=[pod.uid for pod in given.pods or ()])
            if preempts is not None:
                more = tuple(MetaPod(uid=victim.pod.uid) for victim in preempts.victims)
                narrowed[node] = MetaVictims(pods=(*(given.pods or ()), *more), num_pdb_violations=given.num_pdb_violations)
                offered[node] = preempts.placement
        self._offered[wanting.pod.uid] = offered
        self._offered.move_to_end(wanting.pod.uid)
        if len(self._offered) > REMEMBERED:
            self._offered.popitem(last=False)
        return narrowed


def _priority_held(pod: Pod | None) -> int | None:
    """The priority of a pod that holds devices; None of any other."""
    if pod is None or not pod.spec.node_name or keys.ASSIGNED_NODE not in pod.metadata.annotations or is_terminal(pod):
        return None
    return pod.spec.priority or 0


def _recorded(pod: Pod) -> str:
    """The node on which room is kept for the pod, by its own status; empty where it says none."""
    for condition in pod.status.conditions or ():
        if condition.type == CONDITION and condition.status == "True" and (condition.message or "").startswith(_NODE_PREFIX):
            return (condition.message or "").removeprefix(_NODE_PREFIX)
    return pod.status.nominated_node_name or ""


def _covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    return budget.spec.selector is not None and budget.spec.selector.selects(pod.metadata.labels)


def _left(budget: PodDisruptionBudget) -> int:
    """How many of its pods may go; none while nobody has counted them."""
    return budget.status.disruptions_allowed if budget.status.observed_generation >= budget.metadata.generation else 0

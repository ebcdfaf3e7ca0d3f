"""The scheduler's core: filter, prioritize, bind, preempt and explain over one ``Picture``, and the loops that keep it true. No HTTP.

Filter reads, fits and reserves in one step without an ``await``: two pods can never get the same room (HAMi#2232). Filter decides only while this
replica leads and has read the whole cluster; until then it answers with an error, which kube-scheduler takes as "try again", never as "no room".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog
from msgspec import Struct

from hami_devices.admission import PrivilegedPolicy
from hami_devices.catalog import Catalog
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_protocol.errors import ProtocolError
from hami_protocol.events import Event, PodAllocating, PodAssigned, PodReleased
from hami_protocol.explanation import Explanation
from hami_protocol.holdings import Holdings, HoldingsQuestion
from hami_protocol.kubernetes import Node, Pod, PodDisruptionBudget, ResourceQuota
from hami_protocol.pods import pod_ref
from hami_protocol.resize import ResizeAnswer, ResizeRequest
from hami_protocol.simulation import Simulation, SimulationQuestion
from hami_runtime.bus.port import Bus
from hami_runtime.clock import Clock
from hami_runtime.kube import cluster as api
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.informer import Informer
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.lifecycle import Loop, run_until, serve, until
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import series, volcano, wire
from hami_scheduler.adopting import Adopting
from hami_scheduler.agents import Agents
from hami_scheduler.allocations import Missing
from hami_scheduler.binder import Binder
from hami_scheduler.dryrun import DryRuns
from hami_scheduler.explaining import explain
from hami_scheduler.feeds import Feeds
from hami_scheduler.gangs import Gangs
from hami_scheduler.gathering import Gathering
from hami_scheduler.holding import holdings
from hami_scheduler.keeping import KeptPods
from hami_scheduler.locks import Locks
from hami_scheduler.metrics import Metrics, MigCollector, QuotaCollector
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Entry, Placement
from hami_scheduler.placing import Placing
from hami_scheduler.preempting import Preempting
from hami_scheduler.resizing import Resizing, totals
from hami_scheduler.series import CardMetrics
from hami_scheduler.settings import PlacementMode
from hami_scheduler.simulating import Simulating
from hami_scheduler.tending import Tending
from hami_scheduler.turns import Turns, left_to_the_next_leader
from hami_scheduler.verbs import Verbs
from hami_scheduler.verdicts import INVALID_REQUEST
from hami_scheduler.wire import ExtenderArgs, FilterAnswer, HostPriority, MetaVictims, PreemptionArgs

log = structlog.get_logger()

COMPONENT = "hami-scheduler"


class Options(Struct, frozen=True, kw_only=True):
    """How this replica decides."""

    placement: PlacementMode = PlacementMode.PINNED
    bind_timeout_seconds: float = 28.0
    hold_seconds: float = 600.0
    lock_expiry_seconds: float = 300.0
    preemption: bool = True
    gang_wait_seconds: float = 25.0
    adopted_schedulers: frozenset[str] = frozenset()
    privileged: PrivilegedPolicy = PrivilegedPolicy.CONTAINER
    card_metrics: CardMetrics = CardMetrics.BOTH


class Scheduler:
    """One replica.

    Attributes:
        picture: all that it knows.
        pods: the pods, as the watch shows them.
        nodes: the nodes, likewise.
        quotas: the namespaces' quotas, likewise.
    """

    def __init__(
        self,
        *,
        cluster: api.Cluster,
        bus: Bus,
        clock: Clock,
        catalog: Catalog,
        identity: str,
        options: Options = Options(),  # noqa: B008 - frozen
        telemetry: Telemetry = OFF,
        elector: LeaderElector | None = None,
    ) -> None:
        """Nothing is read before ``run``.

        Args:
            cluster: the API server.
            bus: the bus.
            clock: where time comes from.
            catalog: the vendors.
            identity: name of this replica.
            options: how it decides.
            telemetry: where it measures.
            elector: says whether this replica leads; without one it always does.
        """
        self._clock = clock
        self._catalog = catalog
        self._options = options
        self._elector = elector
        self._telemetry = telemetry
        self.metrics = Metrics(telemetry)
        self._events = EventRecorder(cluster, clock, COMPONENT, telemetry=telemetry)
        self.picture = Picture(
            catalog,
            clock,
            publish=self._say,
            record=self._events.record,
            leading=self.leads,
            metrics=self.metrics,
            hold_seconds=options.hold_seconds,
            telemetry=telemetry,
        )
        self._dry_runs = DryRuns(catalog, self.picture.inventory, self.picture.state)
        turns = Turns(self.picture, leading=self.leads, missing=self._missing_of)
        self._outbox = Outbox(bus, clock, source=f"/hami/scheduler/{identity}", turns=turns, telemetry=telemetry)
        telemetry.gauge("hami_scheduler_fenced_nodes", "nodes that take no pods until a record can be read", self.picture.fenced_nodes)
        telemetry.gauge(
            "hami_scheduler_orphaned_pods", "pods that hold a card which their node no longer registers", lambda: len(self.picture.orphans)
        )
        self.nodes: Informer[Node] = Informer(cluster, api.NODES, clock=clock, telemetry=telemetry)
        self.pods: Informer[Pod] = Informer(cluster, api.PODS, clock=clock, telemetry=telemetry, keep_as=KeptPods().of)
        if telemetry.measures:
            telemetry.registry.register(QuotaCollector(self.picture))
            telemetry.registry.register(MigCollector(self.picture, self.pods.get))
            telemetry.add_pieces(lambda: series.pieces(self.picture.state, options.card_metrics))
        self.quotas: Informer[ResourceQuota] = Informer(cluster, api.QUOTAS, clock=clock, telemetry=telemetry)
        self.quotas.subscribe(self.picture.quota_changed)
        self.locks = Locks(
            cluster,
            clock,
            find_pod=self._pod_named,
            leading=self.leads,
            expiry_seconds=options.lock_expiry_seconds,
            own=[vendor.own_lock for vendor in catalog.vendors if vendor.own_lock is not None],
            telemetry=telemetry,
        )
        self.picture.locks = self.locks
        self.nodes.subscribe(self.picture.node_changed)
        self.pods.subscribe(self.picture.pod_changed)
        self._agents = Agents(bus, clock, self.picture.presence, changed=self.picture.agent_changed, telemetry=telemetry)
        telemetry.gauge("hami_scheduler_held_nodes", "nodes whose agent does not serve new pods", lambda: self.picture.presence.held_count)
        telemetry.gauge(
            "hami_scheduler_overbooked_cards", "cards of which pods hold more than there is", lambda: self.picture.overbooking.count
        )
        self._binder = Binder(
            self.picture,
            cluster,
            clock,
            locks=self.locks,
            agents=self._agents,
            publish=self._say,
            record=self._events.record,
            leading=self.leads,
            telemetry=telemetry,
        )
        self.budgets: Informer[PodDisruptionBudget] = Informer(cluster, api.BUDGETS, clock=clock, telemetry=telemetry)
        self._preempting = Preempting(
            self.picture,
            cluster,
            clock,
            pods=self.pods,
            budgets=self.budgets,
            record=self._events.record,
            metrics=self.metrics,
            leading=self.decides,
            enabled=options.preemption,
            telemetry=telemetry,
        )
        self.pods.subscribe(self._preempting.pod_changed)
        self._gangs = Gangs(self.picture.state, catalog, self.picture.judge)
        self.pods.subscribe(self._gangs.pod_changed)
        self._gathering = Gathering(self._gangs, cluster, clock, wait_seconds=options.gang_wait_seconds, telemetry=telemetry)
        self._placing = Placing(
            self.picture,
            clock,
            mode=options.placement,
            gangs=self._gangs,
            gathering=self._gathering,
            preempting=self._preempting,
            publish=self._say,
            metrics=self.metrics,
        )
        self._verbs = Verbs(
            self.picture,
            cluster,
            clock,
            pods=self.pods,
            placing=self._placing,
            preempting=self._preempting,
            gathering=self._gathering,
            binder=self._binder,
            metrics=self.metrics,
            telemetry=telemetry,
            bind_timeout_seconds=options.bind_timeout_seconds,
        )
        self._adopting = Adopting(
            self.picture,
            clock,
            pods=self.pods,
            publish=self._say,
            record=self._events.record,
            leading=self.decides,
            schedulers=options.adopted_schedulers,
            privileged=options.privileged,
            find_node=self.nodes.get,
            telemetry=telemetry,
        )
        self.pods.subscribe(self._adopting.pod_changed)
        self._feeds = Feeds(bus, self.picture, self.metrics, clock, heard=turns.heard, telemetry=telemetry)
        self._resizing = Resizing(
            self.picture.state,
            self.picture.resizes,
            catalog,
            clock,
            take=self.picture.resize_event,
            publish=self._say,
            quota=self._exceeded,
        )
        self._tending = Tending(
            self.picture,
            cluster,
            clock,
            pods=self.pods,
            leading=lambda: self._term if self.decides() else 0,
            caught_up=self._feeds.caught_up,
            metrics=self.metrics,
            telemetry=telemetry,
        )
        self._begun = asyncio.Event()
        """This replica has begun to lead, and has not read the pods since."""
        self._term = 1
        """How often it has begun to lead, one more."""
        self._knows_pods = elector is None
        """The pods were read since it began to lead: what an earlier leader has bound is known."""
        if elector is not None:
            elector.on_change(self._leading_changed)

    # Whether it decides

    def leads(self) -> bool:
        """Whether this replica is the leader."""
        return self._elector is None or self._elector.is_leader

    def decides(self) -> bool:
        """Whether it is, and knows all that those before it have bound."""
        return self.leads() and self._knows_pods

    def _leading_changed(self, leading: bool) -> None:
        self._knows_pods = False
        if leading:
            self._term += 1
            self._begun.set()
        else:
            self._begun.clear()
            self.picture.verdicts.say_all()  # later it could hide the next leader's word
            for event in self._outbox.withdraw(left_to_the_next_leader):
                reservation = self.picture.reservations.get(event.pod.uid) if isinstance(event, PodAssigned) else None
                if reservation is not None:
                    reservation.unsaid = True

    @property
    def leader(self) -> str | None:
        """The identity of the replica that decides, where it is another one."""
        return None if self._elector is None or self._elector.is_leader else self._elector.leader_identity or None

    def unready(self) -> str | None:
        """Why it cannot do its job now; None when it can. A follower that has read the cluster is ready."""
        read = {"nodes": self.nodes.synced, "pods": self.pods.synced, "quotas": self.quotas.synced}
        missing = [name for name, synced in read.items() if not synced.is_set()]
        return f"not read yet: {', '.join(missing)}" if missing else None

    def obstacle(self) -> str | None:
        """Why it cannot decide now: what ``unready`` says, or that another replica leads."""
        if (unready := self.unready()) is not None:
            return unready
        if not self.leads():
            return f"this replica does not lead; {self.leader or 'nobody'} does"
        return None if self._knows_pods else "this replica has just begun to lead, and reads the pods anew"

    # Loops

    @property
    def loops(self) -> tuple[Loop, ...]:
        """What must run, for as long as the replica lives."""
        own: tuple[Loop, ...] = (
            self.nodes.run,
            self.pods.run,
            self.quotas.run,
            self.budgets.run,
            self._preempting.run,
            self._gathering.run,
            self._adopting.run,
            self._events.run,
            self._publish,
            self._feeds.follow_devices,
            self._feeds.follow_allocations,
            self._tending.run,
            self._binder.run,
            self._agents.run,
            self.locks.run,
        )
        return own if self._elector is None else (*own, self._elector.run, self._read_pods_anew)

    async def _read_pods_anew(self, stop: asyncio.Event) -> None:
        """Whenever leading begins. The watch may be late by as much as another leader has needed to bind a pod to where there seems to be room."""
        async for _ in until(stop, _each(self._begun)):
            await run_until(stop, self.pods.refresh())
            self._knows_pods = self.leads() and not self._begun.is_set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run all loops until ``stop``."""
        await serve(*self.loops, grace_seconds=5.0, stop=stop)

    async def _publish(self, stop: asyncio.Event) -> None:
        """Publish what was decided, as soon as there are streams that keep it; at the end also what gave way to a burst."""
        await run_until(stop, self._feeds.ensure_streams())
        if stop.is_set():
            return
        all_said = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._outbox.run(all_said))
            await stop.wait()
            self.picture.verdicts.say_all()
            all_said.set()

    def _missing_of(self, ref: PodRef) -> tuple[Missing, ...]:
        """What the log lacks of one pod; nothing as long as this replica does not decide: whoever begins to says what is missing of all."""
        if not self.decides() or not self.pods.synced.is_set():
            return ()
        pod = self._pod_named(ref.namespace, ref.name)
        return self.picture.grants.missing_of(
            ref,
            pod if pod is not None and pod.metadata.uid == ref.uid else None,
            reserved=self.picture.state.entry(ref.uid) is not None,
            utc_seconds=self._clock.utc().timestamp(),
        )

    def _say(self, event: Event, event_id: str) -> None:
        """Put ``event`` into the outbox. One that no subject can carry is only logged: what was decided stands without it."""
        try:
            self._outbox.put(event, event_id)
        except ProtocolError as exc:
            log.error("event not said", event_id=event_id, error=str(exc))
        else:
            if isinstance(event, PodAllocating | PodReleased):  # on its way to the log: what is missing there is something else
                self.picture.grants.observe(event, event_id)

    # The extender's verbs

    def filter(self, args: ExtenderArgs) -> FilterAnswer:
        """Which of the candidate nodes take the pod; in ``pinned`` mode the best one, which is reserved."""
        pod = args.pod
        if pod is None:
            return FilterAnswer(error="extender args missing pod")
        if args.nodes is not None and args.node_names is None:
            pinned = self._options.placement is PlacementMode.PINNED
            return self._dry_runs.filter_nodes(pod, args.nodes, pinned=pinned, now=self._clock.monotonic())
        if args.node_names is None:
            return FilterAnswer(error="extender args have neither Nodes nor NodeNames")
        if (obstacle := self.obstacle()) is not None:
            return FilterAnswer(error=obstacle)
        for name, value in (("name", pod.metadata.name), ("namespace", pod.metadata.namespace), ("uid", pod.metadata.uid)):
            if not value:
                return FilterAnswer(error=f"Pod.metadata.{name}: missing from pod {pod_ref(pod)}")
        with self._telemetry.span("filter", pod.metadata.annotations.get(keys.TRACE_PARENT), pod=str(pod_ref(pod))):
            return self._verbs.filter(pod, args.node_names)

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """How much each candidate is preferred, 0 to 10; 0 for one that does not fit. Changes nothing."""
        pod = args.pod
        names = args.node_names
        if pod is None or names is None or self.obstacle() is not None:
            return []
        scores = self._placing.scores(pod, names)
        return [HostPriority(host=name, score=scores.get(name, 0)) for name in names]

    async def bind(self, pod: PodRef, node: str) -> str:
        """Bind ``pod`` to ``node``; return an error text, empty when it is bound. A second call for the same pod gets the first one's answer."""
        if (obstacle := self.obstacle()) is not None:
            return obstacle
        return await self._verbs.bind(pod, node)

    def preempt(self, args: PreemptionArgs) -> dict[str, MetaVictims]:
        """kube-scheduler's own candidates, but for those whose victims do not free what the pod needs."""
        return wire.unchanged(args) if self.obstacle() is not None else self._preempting.narrow(args)

    # Volcano's plugin

    def predicate(self, pod: Pod, node: str) -> tuple[str, int]:
        """Why ``pod`` does not fit on ``node``, with Volcano's status code; empty where it does. Changes nothing: Volcano asks about many nodes."""
        if (obstacle := self.obstacle()) is not None:
            return obstacle, volcano.ERROR
        try:
            request = self._catalog.read_pod(pod)
        except RequestError as exc:
            return f"{INVALID_REQUEST}: {exc}", volcano.UNRESOLVABLE
        if not request.asks:
            return "", 0
        found = self.picture.judge(pod_ref(pod), request, [node])
        if isinstance(found, Placement):
            return "", 0
        if node in found.unresolvable:
            return found.unresolvable[node], volcano.UNRESOLVABLE
        return found.failed.get(node, found.summary), volcano.UNSCHEDULABLE

    def scores(self, pod: Pod, nodes: list[str]) -> dict[str, int]:
        """How much each of ``nodes`` is preferred, 0 to 10. Changes nothing."""
        scores = {} if self.obstacle() is not None else self._placing.scores(pod, nodes)
        return {node: scores.get(node, 0) for node in nodes}

    # For people

    def explain(self, namespace: str, name: str) -> Explanation | None:
        """Why the pod is where it is, or is nowhere; None where there is no such pod."""
        pod = self._pod_named(namespace, name)
        return None if pod is None else explain(pod, self.picture)

    def holdings(self, question: HoldingsQuestion) -> Holdings:
        """Which pods hold what, and which wait: one page."""
        return holdings(question, self.picture, lambda pod: self._pod_named(pod.namespace, pod.name))

    async def resize(self, wish: ResizeRequest) -> ResizeAnswer | None:
        """Give a running pod's shares other sizes on the cards that it has; None where there is no such pod.

        Raises:
            ResizeRefused: it cannot be; everything is as it was.
        """
        pod = self._pod_named(wish.namespace, wish.pod)
        return None if pod is None else await self._resizing.resize(pod, wish)

    def _exceeded(self, entry: Entry) -> str | None:
        """Which quota of its namespace a pod that holds ``entry`` exceeds."""
        allowance = self.picture.allowance(entry.pod, entry.traits)
        return None if allowance is None else allowance.exceeded(totals(entry, self.picture.quotas.core_units))

    async def simulate(self, question: SimulationQuestion) -> Simulation:
        """Where pods would go, with nodes added. Changes nothing.

        Raises:
            SimulationError: a node to be added cannot be read, or they are too many.
        """
        course = Simulating(question, self.picture.state.copy(), self._catalog, self.picture.quotas)
        while not course.over:
            course.step()
            await asyncio.sleep(0)  # filter is not kept waiting
        return course.result()

    def _pod_named(self, namespace: str, name: str) -> Pod | None:
        return self.pods.get(name, namespace)


async def _each(event: asyncio.Event) -> AsyncIterator[None]:
    """Once for each time that ``event`` is set; it is cleared."""
    while True:
        await event.wait()
        event.clear()
        yield

"""Carries out what ``phases`` decides about pods, from the log of allocations. Decides only how an attempt went: done, again later, or never.

Outcomes of one pod are carried out in order, those of different pods side by side. Most messages ask for nothing: they are settled as they come, and
only what has to be written has a task of its own. A message is acknowledged last, so that one that is delivered again repeats the work, which
changes nothing. While pods are placed fast, a record that nobody waits for is written a few seconds later: the API server's time is the waiting
pods' (docs/decisions/0012).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from hami_devices.catalog import Catalog
from hami_protocol import envelope, events, keys, nodelock, subjects
from hami_protocol.devices import PodRef
from hami_protocol.errors import EventError, RecordError
from hami_protocol.kubernetes import Node
from hami_registry.phases import GiveUp, LookUp, Nothing, PatchPod, Phases, Verdict
from hami_runtime.bursts import Bursts
from hami_runtime.bus.port import Bus, BusError, Delivery
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import NODES, PODS, Cluster, ClusterError, Conflict, Invalid, NotFound
from hami_runtime.lifecycle import sleep_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
DURABLE: Final = "registry-outcomes"
ACK_WAIT_SECONDS: Final = 15.0
"""How long a message waits that was at work in a process that died: its pod looks as if it still waited for its devices."""
_AT_ONCE: Final = 4
_IN_HAND: Final = 500
"""So many are written well within the time to acknowledge them, the longest wait included."""
_LONGEST_PAUSE_SECONDS: Final = 10.0
_RETRY_SECONDS: Final = 1.0
_REASON_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Done:
    """Carried out, or nothing was to be done."""


@dataclass(frozen=True, slots=True)
class Again:
    """Not now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Never:
    """It cannot be carried out, however often it is tried."""

    reason: str


Result = Done | Again | Never


@dataclass(slots=True)
class _Turn:
    """One pod's events wait for each other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0


class OutcomeFollower:
    """Writes how grants went onto their pods. Runs on the leader alone."""

    def __init__(
        self,
        bus: Bus,
        cluster: Cluster,
        clock: Clock,
        catalog: Catalog,
        *,
        node_of: Callable[[str], Node | None],
        placing: Bursts,
        anew: bool = False,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Follow the log on ``bus``.

        Args:
            bus: where it is.
            cluster: where pods are patched.
            clock: ours.
            catalog: the vendors.
            node_of: a node as it was last seen.
            placing: told of every grant.
            anew: read the log from its beginning once more.
            telemetry: where results are counted.
        """
        self._bus = bus
        self._anew = anew
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("allocations", clock, telemetry)
        self._placing = placing
        self._line = asyncio.Lock()
        """Of those that wait for the end of a burst the first looks at the clock."""
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._phases = Phases(catalog)
        self._node_of = node_of
        self._turns: dict[str, _Turn] = {}
        self._telemetry = telemetry
        self._results = telemetry.counter("hami_registry_outcomes", "messages of the allocation log, by result")
        self._poison = telemetry.counter("hami_registry_unreadable_messages", "messages that were terminated, by stream")
        self._in_hand = 0
        telemetry.gauge(
            "hami_registry_outcomes_in_hand", "messages of the allocation log that are being written, or wait for it", lambda: self._in_hand
        )

    async def follow(self, stop: asyncio.Event) -> None:
        """Carry out the log from where it was left until ``stop``; what is being written then is finished, what waits is left to the next leader."""
        wanted = (subjects.ALL_GRANTS, subjects.ALL_OUTCOMES)
        self._phases.forget_all()
        await self._begin_anew(stop)
        room = asyncio.Semaphore(_IN_HAND)
        async with (
            self._bus.consume(subjects.ALLOCATIONS, subjects=wanted, durable=DURABLE, ack_wait_seconds=ACK_WAIT_SECONDS) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            async for delivery in until(stop, deliveries):
                with self._isolation.item(f"message {delivery.message.subject}"):
                    await self._take(delivery, room, group, stop)

    async def _take(self, delivery: Delivery, room: asyncio.Semaphore, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        try:
            event = envelope.open_message(delivery.message)
        except EventError as exc:
            await self._terminate(delivery, str(exc))
            return
        if not isinstance(event, events.AllocationEvent):
            await self._terminate(delivery, "does not belong on this stream")
            return
        if isinstance(event, events.PodAllocating):
            self._placing.happened(self._clock.monotonic())
        verdict = None if event.pod.uid in self._turns else self._judge(event, again=delivery.attempt > 1)
        if isinstance(verdict, Nothing):
            await self._settle(delivery, event, Done())
            return
        await room.acquire()
        work = group.create_task(self._in_turn(delivery, event, verdict, self._line_up(event.pod.uid), stop))
        work.add_done_callback(lambda _: room.release())

    async def _begin_anew(self, stop: asyncio.Event) -> None:
        while self._anew and not stop.is_set():
            try:
                await self._bus.forget(subjects.ALLOCATIONS, DURABLE)
            except BusError as exc:
                log.warning("the log cannot be read anew yet", error=str(exc))
                await sleep_until(stop, _RETRY_SECONDS)
            else:
                log.info("the log is read from its beginning")
                self._anew = False

    async def _terminate(self, delivery: Delivery, reason: str) -> None:
        self._poison.add(1, {"stream": subjects.ALLOCATIONS.name})
        log.error("message terminated", subject=delivery.message.subject, sequence=delivery.sequence, reason=reason)
        await delivery.term(reason)

    def _judge(self, event: events.AllocationEvent, *, again: bool) -> Verdict | Again:
        try:
            return self._phases.judge(event, again=again)
        except Exception as exc:  # noqa: BLE001 - the bus delivers the message again
            return self._failed(event, exc)

    def _failed(self, event: events.AllocationEvent, exc: Exception) -> Again:
        self._isolation.failed(f"{type(event).__name__} of pod {event.pod}", exc)
        return Again(f"{type(exc).__name__}: {exc}"[:_REASON_CHARACTERS])

    def _line_up(self, uid: str) -> _Turn:
        turn = self._turns.setdefault(uid, _Turn())
        turn.wanted += 1
        return turn

    async def _in_turn(
        self, delivery: Delivery, event: events.AllocationEvent, verdict: Verdict | Again | None, turn: _Turn, stop: asyncio.Event
    ) -> None:
        """Carry out ``verdict``; None where the event is to be judged when its turn comes."""
        heard_at = self._clock.monotonic()
        self._in_hand += 1
        try:
            with self._isolation.item(f"turn of pod {event.pod}"):
                await self._carry_out_in_turn(delivery, event, verdict, turn, stop, heard_at=heard_at)
        finally:
            self._in_hand -= 1
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[event.pod.uid]

    async def _carry_out_in_turn(
        self,
        delivery: Delivery,
        event: events.AllocationEvent,
        verdict: Verdict | Again | None,
        turn: _Turn,
        stop: asyncio.Event,
        *,
        heard_at: float,
    ) -> None:
        async with turn.lock:
            verdict = verdict or self._judge(event, again=delivery.attempt > 1)
            if isinstance(verdict, PatchPod) and verdict.may_wait and await self._stopped_in_a_burst(heard_at, stop):
                await delivery.nak()
                return
            with self._telemetry.span("outcome", delivery.message.headers.get(envelope.TRACE_PARENT), pod=str(event.pod), node=event.node):
                async with self._at_once:
                    result = await self._try(event, verdict)
            await self._settle(delivery, event, result)

    async def _stopped_in_a_burst(self, heard_at: float, stop: asyncio.Event) -> bool:
        """Wait for the end of a burst of grants, but not for ever; return whether ``stop`` came first."""
        async with self._line:
            while (seconds := self._placing.seconds_to_wait(heard_at, self._clock.monotonic())) > 0:
                if await sleep_until(stop, seconds):
                    return True
        return False

    async def _try(self, event: events.AllocationEvent, verdict: Verdict | Again) -> Result:
        try:
            return await self._carry_out(event, verdict)
        except Exception as exc:  # noqa: BLE001 - as above
            return self._failed(event, exc)

    async def _settle(self, delivery: Delivery, event: events.AllocationEvent, result: Result) -> None:
        self._results.add(1, {"type": type(event).__name__, "result": type(result).__name__.lower()})
        match result:
            case Done():
                await delivery.ack()
            case Again(reason=reason):
                pause_seconds = min(2.0 ** min(delivery.attempt - 1, 10), _LONGEST_PAUSE_SECONDS)
                log.warning("outcome has to wait", **_about(event), reason=reason, again_in_seconds=pause_seconds)
                await delivery.nak(delay_seconds=pause_seconds)
            case Never(reason=reason):
                log.error("outcome given up", **_about(event), reason=reason)
                await delivery.term(reason)

    async def _carry_out(self, event: events.AllocationEvent, verdict: Verdict | Again) -> Result:
        if isinstance(verdict, LookUp):
            looked_up = await self._look_up(event.pod)
            if looked_up is not None:
                return looked_up
            verdict = self._phases.judge(event)
        match verdict:
            case Again():
                return verdict
            case Nothing():
                return Done()
            case GiveUp(reason=reason):
                return Never(reason)
            case LookUp():
                return Again("the pod was forgotten while it was looked up")
            case PatchPod():
                return await self._patch(verdict)

    async def _look_up(self, pod: PodRef) -> Result | None:
        """Learn of the pod; a result where that settles the matter."""
        try:
            found = await self._cluster.get(PODS, pod.name, namespace=pod.namespace)
        except NotFound:
            return Done()
        except ClusterError as exc:
            return Again(str(exc))
        if found.metadata.uid != pod.uid:
            return Done()  # the one that was meant is gone
        self._phases.looked_up(found)
        return None

    async def _patch(self, command: PatchPod) -> Result:
        pod = command.pod
        body = {"metadata": {"annotations": command.annotations}}
        try:
            await self._cluster.patch(PODS, pod.name, body, namespace=pod.namespace, uid=pod.uid)
        except NotFound:
            self._phases.forget(pod.uid)
        except Conflict as exc:  # a namesake, or a write of somebody else's at the same moment
            self._phases.forget(pod.uid)
            return await self._look_up(pod) or Again(str(exc))
        except Invalid as exc:
            return Never(str(exc))
        except ClusterError as exc:
            self._phases.forget(pod.uid)
            return Again(str(exc))
        else:
            self._phases.patched(command)
            log.info("pod record written", pod=str(pod), uid=pod.uid, phase=command.annotations.get(keys.BIND_PHASE, ""))
        return await self._release_lock(command) if command.release_lock else Done()

    async def _release_lock(self, command: PatchPod) -> Result:
        """Release the node's lock where another scheduler took it for this pod: that scheduler leaves it to the node's side."""
        node = self._node_of(command.node)
        try:
            while node is not None and _holds(node, command.pod):
                try:
                    release = {"metadata": {"annotations": {keys.NODE_LOCK: None}}}
                    await self._cluster.patch(NODES, command.node, release, resource_version=node.metadata.resource_version)
                    log.info("node lock released", node=command.node, pod=str(command.pod))
                    break
                except Conflict:
                    node = await self._cluster.get(NODES, command.node)
        except NotFound:
            return Done()
        except ClusterError as exc:
            return Again(str(exc))
        return Done()


def _about(event: events.AllocationEvent) -> dict[str, str]:
    return {"pod": str(event.pod), "uid": event.pod.uid, "node": event.node, "type": type(event).__name__}


def _holds(node: Node, pod: PodRef) -> bool:
    try:
        lock = nodelock.decode(node.metadata.annotations[keys.NODE_LOCK])
    except (KeyError, RecordError):
        return False
    return (lock.namespace, lock.pod) == (pod.namespace, pod.name)

"""Kubernetes Events: what a person sees in ``kubectl describe``. Decides when an Event is a repetition of an earlier one.

As client-go does: the same reason and message on the same object is one Event whose ``count`` rises; more than ``SIMILAR`` different
messages with one reason on one object within ``SIMILAR_SECONDS`` are combined into one. Recording never waits and never fails: Events are for
people, and nothing depends on them. What went well is told up to ``NORMAL_PER_SECOND``, with bursts of ``NORMAL_BURST``, and a little later while
much happens (docs/decisions/0012): where hundreds of pods are placed at once, the API server's time is theirs, and the bus tells all of it. What
went wrong is always told, and first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from msgspec import Struct

from hami_protocol.devices import PodRef
from hami_protocol.plain_text import plain
from hami_runtime.bursts import Bursts
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import EVENTS, AlreadyExists, Cluster, ClusterError, NotFound, TooManyRequests, Unavailable
from hami_runtime.lifecycle import run_until, sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
SIMILAR = 10
SIMILAR_SECONDS = 600.0
NORMAL_PER_SECOND = 5.0
NORMAL_BURST = 50
BURST_PER_SECOND = 20
"""More Normal Events than that are a burst: placing a pod makes two."""
MESSAGE_CHARACTERS = 1024
_ELLIPSIS = " ..."
_COMBINED = "(combined from similar events): "
_NAME_CHARACTERS = 230
_NODE_EVENTS_NAMESPACE = "default"
_REMEMBERED = 4096
_TRIES = 5
_PAUSE_SECONDS = 1.0

Type = Literal["Normal", "Warning"]


class Occurrence(Struct, frozen=True, kw_only=True):
    """One thing that happened to one object."""

    namespace: str
    name: str
    uid: str
    kind: Literal["Pod", "Node"]
    type: Type
    reason: str
    message: str
    time: datetime
    since: float = 0.0
    """On the monotonic clock."""


class Known(Struct, kw_only=True):
    """An Event that exists."""

    name: str
    count: int
    first_time: datetime


class _Similar(Struct, kw_only=True):
    messages: set[str]
    since: float


class Correlator:
    """Which Event an occurrence belongs to. Pure: times are given; what it remembers is bounded."""

    def __init__(self) -> None:
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._known: OrderedDict[tuple[str, ...], Known] = OrderedDict()

    def placed(self, occurrence: Occurrence, now: float) -> tuple[tuple[str, ...], str]:
        """The key of the occurrence's Event, and the message to show."""
        group = (occurrence.namespace, occurrence.name, occurrence.uid, occurrence.type, occurrence.reason)
        similar = self._similar.get(group)
        if similar is None or now - similar.since > SIMILAR_SECONDS:
            similar = self._similar[group] = _Similar(messages=set(), since=now)
        self._similar.move_to_end(group)
        _forget_oldest(self._similar)
        if occurrence.message in similar.messages or len(similar.messages) < SIMILAR:
            similar.messages.add(occurrence.message)
            return (*group, occurrence.message), occurrence.message
        return group, _COMBINED + occurrence.message

    def known(self, key: tuple[str, ...]) -> Known | None:
        """The Event of that key, if we made one."""
        return self._known.get(key)

    def remember(self, key: tuple[str, ...], known: Known | None) -> None:
        """Keep what is known of an Event; None forgets it."""
        if known is None:
            self._known.pop(key, None)
            return
        self._known[key] = known
        self._known.move_to_end(key)
        _forget_oldest(self._known)


class Allowance:
    """How many Normal Events may be written now: a bucket that fills again. Pure: times are given."""

    def __init__(self) -> None:
        self._left = float(NORMAL_BURST)
        self._asked_at = 0.0

    def take(self, now: float) -> bool:
        """Whether one more may be written."""
        self._left = min(float(NORMAL_BURST), self._left + (now - self._asked_at) * NORMAL_PER_SECOND)
        self._asked_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class EventRecorder:
    """Records for one component."""

    def __init__(self, cluster: Cluster, clock: Clock, component: str, *, capacity: int = 1000, telemetry: Telemetry = OFF) -> None:
        """Write as ``component`` (``hami-scheduler``); at most ``capacity`` occurrences wait, then the oldest is dropped."""
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("events", clock, telemetry)
        self._component = component
        self._capacity = capacity
        self._warnings: deque[Occurrence] = deque()
        self._normal: deque[Occurrence] = deque()
        self._bursts = Bursts(BURST_PER_SECOND)
        self._arrived = asyncio.Event()
        self._correlator = Correlator()
        self._allowance = Allowance()
        self._named = 0
        self._dropped = telemetry.counter("hami_events_dropped", "Kubernetes Events that were not written, by reason")

    @property
    def pending(self) -> int:
        """How many occurrences wait."""
        return len(self._warnings) + len(self._normal)

    def record(self, about: PodRef | str, type_: Type, reason: str, message: str) -> None:
        """Record that something happened to a pod, or to the node of that name."""
        now = self._clock.monotonic()
        if type_ == "Normal":
            self._bursts.happened(now)
            if not self._allowance.take(now):
                self._dropped.add(1, {"reason": "busy"})
                return
        if self.pending >= self._capacity:
            (self._normal or self._warnings).popleft()
            self._dropped.add(1, {"reason": "full"})
        pod = about if isinstance(about, PodRef) else None
        (self._normal if type_ == "Normal" else self._warnings).append(
            Occurrence(
                namespace=pod.namespace if pod else _NODE_EVENTS_NAMESPACE,
                name=pod.name if pod else str(about),
                uid=pod.uid if pod else str(about),  # as kubelet does, and `kubectl describe node` looks for
                kind="Pod" if pod else "Node",
                type=type_,
                reason=reason,
                message=_shortened(plain(message)),
                time=self._clock.utc(),
                since=now,
            )
        )
        if type_ != "Normal" or len(self._normal) == 1:
            self._arrived.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Write what is recorded until ``stop``, then what is left, as long as the API server takes it.

        ``stop`` cuts no write off: it may have taken effect, and would be made again.
        """
        while not stop.is_set():
            queue, seconds = self._next()
            if queue is not None:
                await self._settle(queue, stop)
            else:
                self._arrived.clear()
                await run_until(stop, self._arrival(seconds))
        for queue in (self._warnings, self._normal):
            while queue and await self._write(queue[0]):
                queue.popleft()

    def _next(self) -> tuple[deque[Occurrence] | None, float | None]:
        """Whose first is to be written now, or in how many seconds to look again; None for as long as nothing is recorded."""
        if self._warnings:
            return self._warnings, None
        if not self._normal:
            return None, None
        seconds = self._bursts.seconds_to_wait(self._normal[0].since, self._clock.monotonic())
        return (None, seconds) if seconds > 0 else (self._normal, None)

    async def _arrival(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    async def _settle(self, queue: deque[Occurrence], stop: asyncio.Event) -> None:
        """Write the oldest, again where that fails; after ``_TRIES`` it is dropped."""
        occurrence = queue[0]
        for _ in range(_TRIES):
            if await self._write(occurrence):
                break
            if await sleep_until(stop, _PAUSE_SECONDS):
                return
        else:
            self._dropped.add(1, {"reason": "unavailable"})
        if queue and queue[0] is occurrence:  # else a full queue has dropped it meanwhile
            queue.popleft()

    async def _write(self, occurrence: Occurrence) -> bool:
        """Write one; whether it is settled, in whatever way."""
        key, message = self._correlator.placed(occurrence, self._clock.monotonic())
        known = self._correlator.known(key)
        try:
            if known is not None:
                try:
                    await self._count(occurrence, known, message)
                except NotFound:  # Events are short-lived
                    await self._create(occurrence, key, message)
                else:
                    known.count += 1
            else:
                await self._create(occurrence, key, message)
        except (Unavailable, TooManyRequests) as exc:
            log.debug("an event has to wait", reason=occurrence.reason, error=str(exc))
            return False
        except ClusterError as exc:
            self._dropped.add(1, {"reason": "refused"})
            log.info("an event was not written", reason=occurrence.reason, object=occurrence.name, error=str(exc))
        except Exception as exc:  # noqa: BLE001 - this Event is dropped, the next one is written
            self._dropped.add(1, {"reason": "failed"})
            self._isolation.failed(f"{occurrence.reason} of {occurrence.namespace}/{occurrence.name}", exc)
        return True

    async def _count(self, occurrence: Occurrence, known: Known, message: str) -> None:
        body = {"count": known.count + 1, "lastTimestamp": _seconds(occurrence.time), "message": message}
        await self._cluster.patch(EVENTS, known.name, body, namespace=occurrence.namespace)

    async def _create(self, occurrence: Occurrence, key: tuple[str, ...], message: str) -> None:
        for _ in range(_TRIES):
            name = self._new_name(occurrence)
            try:
                await self._cluster.create(EVENTS, self._body(occurrence, name, message), namespace=occurrence.namespace)
            except AlreadyExists:
                continue
            self._correlator.remember(key, Known(name=name, count=1, first_time=occurrence.time))
            return
        raise ClusterError("no free name for an event")

    def _new_name(self, occurrence: Occurrence) -> str:
        self._named += 1
        return f"{occurrence.name[:_NAME_CHARACTERS]}.{int(occurrence.time.timestamp() * 1_000_000) * 1000 + self._named % 1000:x}"

    def _body(self, occurrence: Occurrence, name: str, message: str) -> dict[str, Any]:
        involved = {"apiVersion": "v1", "kind": occurrence.kind, "name": occurrence.name, "uid": occurrence.uid}
        if occurrence.kind == "Pod":
            involved["namespace"] = occurrence.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": occurrence.namespace},
            "involvedObject": involved,
            "reason": occurrence.reason,
            "message": message,
            "type": occurrence.type,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
            "firstTimestamp": _seconds(occurrence.time),
            "lastTimestamp": _seconds(occurrence.time),
            "count": 1,
        }


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - len(_ELLIPSIS)] + _ELLIPSIS


def _seconds(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _forget_oldest(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)

"""Events on their way to the bus: in the order in which they happened, each until the bus has it. Saying so never waits for anybody.

What waits goes out together: as many events as there are, up to the second one of a pod, are handed to the bus before the first one is acknowledged.
So those of one pod are kept in order whatever happens, and those of different pods unless the bus fails between them. In a burst events are gathered
for ``GATHER_SECONDS``: every message apart costs its speaker, the bus and each listener many times what it costs among others.

Events have ids that follow from what happened (``ce-id``), so one that is published twice, or again after a restart, changes nothing for its readers.
A stream de-duplicates by another id, made of that one with a key of the outbox: nobody else can take it first.
Only an event that the bus will never take is dropped, and the oldest where there are more than ``capacity``; both are logged and counted.

Two things may come between an event and the bus, where whoever owns the outbox says so. An event may have to wait for somebody else's word
(``Patience``): those of its pod wait with it, those of other pods go on. And others may speak on the same subject (``Turns``): then an event is
kept only behind the word that it was decided upon, and where somebody was faster, what is said instead is decided anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from typing import Final, Protocol

import structlog

from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message, seal
from hami_protocol.events import Event
from hami_runtime.bursts import Bursts
from hami_runtime.bus.port import BusUnavailable, MessageRefused, Overtaken
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.telemetry import OFF, Telemetry, current_traceparent

log = structlog.get_logger()
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_TICK_SECONDS = 0.001
_TRIES = 5
"""No shorter wait: what remains may be less than the clock can tell."""
MOST_TROUBLES: Final = 5
"""So often patience is counted anew, because the bus was away or did not keep what it was given."""
MOST_AT_ONCE: Final = 64
BURST_PER_SECOND: Final = 100
"""More events than that are a burst."""
GATHER_SECONDS: Final = 0.015
"""How long the first event of many waits for others: within what subscribers may wait for a Binding (20 ms)."""
LONGEST_DELAY_SECONDS: Final = 15.0
"""What waits reaches a bus that works again within so long: a pause before connecting, one before trying again, and one attempt unanswered."""


class Publisher(Protocol):
    """The part of the bus that an outbox needs."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        ...

    @property
    def connected_since(self) -> float | None:
        """When that was made."""
        ...

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        ...

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        """Keep a message."""
        ...


Patience = Callable[[Event], float]
"""How many seconds an event waits for somebody else's word, counted from when it was said, or from when the bus worked again.

0 is not at all; infinity is until ``look_again`` is called and another answer given.
"""


class Turns(Protocol):
    """Subjects on which others speak too."""

    def taken_into_account(self, subject: str) -> int | None:
        """The sequence of the last word on ``subject`` that is known, 0 where there is none; None where nobody else speaks."""
        ...

    def heard(self, subject: str, sequence: int) -> None:
        """A word is on ``subject``, ours or somebody else's, and what is said from now on takes it into account."""
        ...

    def decide_anew(
        self, subject: str, said: Sequence[tuple[Event, str]], last: Message | None, sequence: int
    ) -> Sequence[tuple[Event, str]]:
        """What to say instead of ``said``, events of one subject with their ids, decided without knowing of ``last`` there; in order.

        From now on that one is taken into account, whatever was heard before: a stream that was made anew counts from 1 again.
        """
        ...


@dataclass(slots=True)
class _Waiting:
    """An event that the bus does not have."""

    event: Event
    message: Message
    said_at: float
    troubles: int
    """How many there had been when it was said."""


@dataclass(slots=True)
class _Ours:
    """A subject on which others speak too, and on which we have something to say."""

    behind: int
    """The sequence behind which it belongs."""
    count: int


class Outbox:
    """What one service has to say and the bus does not have yet."""

    def __init__(
        self,
        bus: Publisher,
        clock: Clock,
        *,
        source: str,
        capacity: int = 100_000,
        patience: Patience | None = None,
        turns: Turns | None = None,
        key: bytes = b"",
        telemetry: Telemetry = OFF,
    ) -> None:
        """Say it as ``source`` (``/hami/scheduler/<identity>``), holding at most ``capacity`` events.

        ``key`` is secret; one that outlives the process lets the stream drop what an earlier one has published. Empty for one of its own.
        """
        self._bus = bus
        self._clock = clock
        self._isolation = Isolation("outbox", clock, telemetry)
        self._source = source
        self._key = key or secrets.token_bytes(32)
        self._capacity = capacity
        self._patience = patience
        self._turns = turns
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._ours: dict[str, _Ours] = {}
        self._connected_since: float | None = None
        self._failed_at: float | None = None
        """When the last attempt failed, if it did."""
        self._works_since = 0.0
        self._troubles = 0
        """How often the bus has worked again."""
        self._bursts = Bursts(BURST_PER_SECOND)
        self._changed = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._resting = asyncio.Event()
        """Nothing may be sent now: there is nothing, or all of it waits for others."""
        self._dropped = telemetry.counter("hami_outbox_dropped", "events that never reached the bus, by reason")
        self._overtaken = telemetry.counter(
            "hami_outbox_overtaken", "events decided anew, since somebody else had spoken of the pod meanwhile"
        )
        telemetry.gauge("hami_outbox_pending", "events that wait for the bus", lambda: self.pending)

    @property
    def pending(self) -> int:
        """How many events the bus does not have yet."""
        return len(self._waiting)

    def put(self, event: Event, event_id: str) -> None:
        """Say ``event``, in the current trace; once, if an event of that id is still waiting.

        Raises:
            EventError: it is too large for the bus.
        """
        waiting = self._sealed(event, event_id)
        if event_id in self._waiting:
            return
        if len(self._waiting) >= self._capacity:
            lost = next(iter(self._waiting))
            self._forget(lost)
            self._dropped.add(1, {"reason": "full"})
            log.error("outbox full, the oldest event is dropped", event_id=lost, capacity=self._capacity)
        self._take(event_id, waiting)

    def withdraw(self, choose: Callable[[Sequence[Event]], Sequence[Event]]) -> Sequence[Event]:
        """Of what the bus does not have yet, in order, do not say what ``choose`` returns; that is returned."""
        withdrawn = choose([waiting.event for waiting in self._waiting.values()])
        void = {id(event) for event in withdrawn}
        for event_id in [event_id for event_id, waiting in self._waiting.items() if id(waiting.event) in void]:
            self._forget(event_id)
        return withdrawn

    def look_again(self) -> None:
        """What events wait for may have happened."""
        self._changed.set()

    async def wait_empty(self) -> None:
        """Return once the bus has everything."""
        await self._emptied.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish what is put, in order; after ``stop``, what may go out, as long as the bus takes it."""
        stopped = asyncio.ensure_future(stop.wait())
        sending = asyncio.ensure_future(self._send_for_ever())
        try:
            await asyncio.wait((stopped, sending), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and self._waiting and self._bus.connected:
                resting = asyncio.ensure_future(self._resting.wait())
                await asyncio.wait((resting, sending), return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()
            if sending.done():
                sending.result()
        finally:
            stopped.cancel()
            sending.cancel()
            await asyncio.gather(stopped, sending, return_exceptions=True)

    # Keeping

    def _sealed(self, event: Event, event_id: str) -> _Waiting:
        time = self._clock.utc().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        message = seal(
            event,
            event_id=event_id,
            source=self._source,
            time=time,
            message_id=hmac.new(self._key, event_id.encode(), hashlib.sha256).hexdigest()[:32],
            traceparent=current_traceparent(),
        )
        return _Waiting(event, message, self._clock.monotonic(), self._troubles)

    def _take(self, event_id: str, waiting: _Waiting) -> None:
        self._waiting[event_id] = waiting
        self._bursts.happened(waiting.said_at)
        subject = waiting.message.subject
        if (ours := self._ours.get(subject)) is not None:
            ours.count += 1
        elif self._turns is not None and (behind := self._turns.taken_into_account(subject)) is not None:
            self._ours[subject] = _Ours(behind, 1)
        self._emptied.clear()
        self._resting.clear()
        self._changed.set()

    def _forget(self, event_id: str) -> None:
        waiting = self._waiting.pop(event_id, None)
        if waiting is None:
            return  # a full outbox has dropped it meanwhile, or it was withdrawn
        subject = waiting.message.subject
        if (ours := self._ours.get(subject)) is not None:
            ours.count -= 1
            if not ours.count:
                del self._ours[subject]
        if not self._waiting:
            self._emptied.set()

    # Sending

    async def _send_for_ever(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            batch = await self._next()
            outcomes = await asyncio.gather(*(self._send(waiting) for _, waiting in batch), return_exceptions=True)
            away = [self._settle(event_id, waiting, outcome) for (event_id, waiting), outcome in zip(batch, outcomes, strict=True)]
            if any(away):
                await self._bus.wait_connected()
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            else:
                pause_seconds = _FIRST_PAUSE_SECONDS

    def _settle(self, event_id: str, waiting: _Waiting, outcome: BaseException | None) -> bool:
        """One event was handed to the bus, and this is what came of it. Return whether it has to be tried again after a pause."""
        subject = waiting.message.subject
        match outcome:
            case None:
                self._notice(failed=False)
                self._forget(event_id)
            case MessageRefused():
                self._notice(failed=False)
                self._dropped.add(1, {"reason": "refused"})
                log.error("the bus refuses an event for good", event_id=event_id, subject=subject, error=str(outcome))
                self._forget(event_id)
            case BusUnavailable():
                self._notice(failed=True)
                log.debug("an event has to wait", event_id=event_id, subject=subject, error=str(outcome))
                return True
            case Overtaken():
                self._notice(failed=False)
                with self._isolation.item(f"events on {subject}"):
                    self._decide_anew(subject, outcome)
            case Exception():
                return self._unexpected(event_id, waiting, outcome)
            case _:
                raise outcome
        return False

    def _unexpected(self, event_id: str, waiting: _Waiting, error: Exception) -> bool:
        """Try an event that cannot be published for an unknown reason a few times more; then drop it, for others wait behind it."""
        item = f"event {event_id}"
        self._isolation.failed(item, error)
        if self._isolation.times(item) < _TRIES:
            return True
        self._isolation.forget(item)
        self._dropped.add(1, {"reason": "failed"})
        log.error("event dropped", event_id=event_id, subject=waiting.message.subject, tries=_TRIES)
        self._forget(event_id)
        return False

    async def _next(self) -> list[tuple[str, _Waiting]]:
        """What goes out now, in order: events that neither wait for others nor come behind one of their own pod that does or is not kept yet."""
        while True:
            self._changed.clear()
            if self._waiting and (gathering_seconds := self._gathering_seconds()) > 0:
                await asyncio.sleep(gathering_seconds)
            found, seconds = self._choose()
            if found:
                return found
            self._resting.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            if self._waiting:
                await self._bus.wait_connected()

    def _gathering_seconds(self) -> float:
        """How long others may still join those that wait: in a burst, until the first has waited so long; and not after a failure."""
        now = self._clock.monotonic()
        if self._failed_at is not None or len(self._waiting) >= MOST_AT_ONCE or self._bursts.lasts_until(now) <= now:
            return 0.0
        return next(iter(self._waiting.values())).said_at + GATHER_SECONDS - now

    def _choose(self) -> tuple[list[tuple[str, _Waiting]], float | None]:
        """What goes out now, or in how many seconds to choose again; None for as long as nothing changes.

        After a failure that is one event: whether the bus works again is found out with it.
        """
        now = self._clock.monotonic()
        if (since := self._bus.connected_since) is not None and since != self._connected_since:
            self._connected_since = since
            self._trouble_is_over(since)
        most = MOST_AT_ONCE if self._failed_at is None else 1
        soonest: float | None = None
        found: list[tuple[str, _Waiting]] = []
        taken: set[tuple[str, str]] = set()
        waits: set[str] = set()
        for event_id, waiting in self._waiting.items():
            pod = _pod_of(waiting.event)
            if pod is not None and pod.uid in waits:
                continue
            patience = 0.0
            if self._patience is not None:
                with self._isolation.item(f"patience for {event_id}"):
                    patience = self._patience(waiting.event)
            seconds = self._patience_begins(waiting) + patience - now if patience > 0 else 0.0
            if seconds > 0:
                if seconds < math.inf:
                    soonest = max(_TICK_SECONDS, seconds if soonest is None else min(soonest, seconds))
                if pod is not None:
                    waits.add(pod.uid)
                continue
            about = _what_it_is_about(waiting.message.subject, pod)
            if about in taken or len(found) == most:
                break
            taken.add(about)
            found.append((event_id, waiting))
        return found, soonest

    def _patience_begins(self, waiting: _Waiting) -> float:
        """From when on patience is counted: the end of the last trouble, but not of one after the other for ever."""
        if self._failed_at is not None:
            return max(waiting.said_at, self._failed_at)
        works_since = self._works_since if self._troubles - waiting.troubles <= MOST_TROUBLES else 0.0
        return max(waiting.said_at, works_since)

    def _notice(self, *, failed: bool) -> None:
        """One attempt has failed or succeeded. Trouble is over with the first that succeeds."""
        now = self._clock.monotonic()
        if failed:
            self._failed_at = now
        elif self._failed_at is not None:
            self._failed_at = None
            self._trouble_is_over(now)

    def _trouble_is_over(self, since: float) -> None:
        self._works_since = since
        self._troubles += 1

    async def _send(self, waiting: _Waiting) -> None:
        subject = waiting.message.subject
        ours = self._ours.get(subject)
        if ours is None:
            await self._bus.publish(waiting.message)
            return
        sequence = await self._bus.publish(waiting.message, expected_last=ours.behind)
        ours.behind = max(ours.behind, sequence)  # of one that was said before: others have followed it
        if self._turns is not None:
            self._turns.heard(subject, sequence)

    def _decide_anew(self, subject: str, overtaken: Overtaken) -> None:
        """Put what is still to be said on ``subject`` in the place of what was decided before somebody else spoke there."""
        late = [(event_id, waiting) for event_id, waiting in self._waiting.items() if waiting.message.subject == subject]
        if self._turns is None or not late:
            return  # it was withdrawn meanwhile
        self._overtaken.add(len(late))
        instead = self._turns.decide_anew(
            subject, [(waiting.event, event_id) for event_id, waiting in late], overtaken.last, overtaken.sequence
        )
        log.info(
            "somebody else has spoken meanwhile", subject=subject, late=[each for each, _ in late], instead=[each for _, each in instead]
        )
        known = dict(late)
        for event_id, _ in late:
            self._forget(event_id)
        for event, event_id in reversed(instead):
            if event_id not in self._waiting:
                self._take(event_id, known.get(event_id) or self._sealed(event, event_id))
                self._waiting.move_to_end(event_id, last=False)


def _pod_of(event: Event) -> PodRef | None:
    return getattr(event, "pod", None)


def _what_it_is_about(subject: str, pod: PodRef | None) -> tuple[str, str]:
    """Events about the same go out one after the other: those of one kind on one pod, its namesakes counted, or on one subject."""
    return (subjects.kind_of(subject), str(pod)) if pod is not None else ("", subject)

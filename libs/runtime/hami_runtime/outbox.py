"""Events on their way to the bus: in the order in which they happened, each until the bus has it. Saying so never waits for anybody.

Events have ids that follow from what happened, so one that is sent twice, or said again after a restart, is a double that changes nothing.
Only an event that the bus will never take is dropped, and the oldest where there are more than ``capacity``; both are logged and counted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import UTC
from typing import Protocol

import structlog

from hami_protocol.envelope import Message, open_message, seal
from hami_protocol.events import Event
from hami_runtime.bus.port import BusUnavailable, MessageRefused
from hami_runtime.clock import Clock
from hami_runtime.telemetry import OFF, Telemetry, current_traceparent

log = structlog.get_logger()
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0


class Publisher(Protocol):
    """The part of the bus that an outbox needs."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        ...

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        ...

    async def publish(self, message: Message, *, timeout_seconds: float = 5.0) -> int:
        """Keep a message."""
        ...


class Outbox:
    """What one service has to say and the bus does not have yet."""

    def __init__(self, bus: Publisher, clock: Clock, *, source: str, capacity: int = 100_000, telemetry: Telemetry = OFF) -> None:
        """Say it as ``source`` (``/hami/scheduler/<identity>``), holding at most ``capacity`` events."""
        self._bus = bus
        self._clock = clock
        self._source = source
        self._capacity = capacity
        self._waiting: OrderedDict[str, Message] = OrderedDict()
        self._arrived = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._dropped = telemetry.counter("hami_outbox_dropped", "events that never reached the bus, by reason")
        telemetry.gauge("hami_outbox_pending", "events that wait for the bus", lambda: self.pending)

    @property
    def pending(self) -> int:
        """How many events the bus does not have yet."""
        return len(self._waiting)

    def put(self, event: Event, event_id: str, by_agent: bool = False) -> None:
        """Say ``event``, in the current trace; once, if an event of that id is still waiting.

        Raises:
            EventError: it is too large for the bus.
        """
        time = self._clock.utc().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        message = seal(event, event_id=event_id, source=self._source, time=time, traceparent=current_traceparent(), by_agent=by_agent)
        if event_id in self._waiting:
            return
        if len(self._waiting) >= self._capacity:
            lost, _ = self._waiting.popitem(last=False)
            self._dropped.add(1, {"reason": "full"})
            log.error("outbox full, the oldest event is dropped", event_id=lost, capacity=self._capacity)
        self._waiting[event_id] = message
        self._emptied.clear()
        self._arrived.set()

    def withdraw(self, *types: type[Event]) -> None:
        """Say events of these types no more, as far as the bus does not have them yet."""
        for event_id in [event_id for event_id, message in self._waiting.items() if isinstance(open_message(message), types)]:
            del self._waiting[event_id]
        if not self._waiting:
            self._emptied.set()

    async def wait_empty(self) -> None:
        """Return once the bus has everything."""
        await self._emptied.wait()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish what is put, in order; after ``stop``, what is left, as long as the bus takes it."""
        stopped = asyncio.ensure_future(stop.wait())
        sending = asyncio.ensure_future(self._send_for_ever())
        try:
            await asyncio.wait((stopped, sending), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and self._waiting and self._bus.connected:
                emptied = asyncio.ensure_future(self._emptied.wait())
                await asyncio.wait((emptied, sending), return_when=asyncio.FIRST_COMPLETED)
                emptied.cancel()
            if sending.done():
                sending.result()
        finally:
            stopped.cancel()
            sending.cancel()
            await asyncio.gather(stopped, sending, return_exceptions=True)

    async def _send_for_ever(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            event_id, message = next(iter(self._waiting.items()))
            try:
                await self._bus.publish(message)
            except MessageRefused as exc:
                self._dropped.add(1, {"reason": "refused"})
                log.error("the bus refuses an event for good", event_id=event_id, subject=message.subject, error=str(exc))
            except BusUnavailable as exc:
                log.debug("an event has to wait", event_id=event_id, subject=message.subject, error=str(exc))
                await self._bus.wait_connected()
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
                continue
            pause_seconds = _FIRST_PAUSE_SECONDS
            self._waiting.pop(event_id, None)  # a full outbox may have dropped it meanwhile
            if not self._waiting:
                self._emptied.set()

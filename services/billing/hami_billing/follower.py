"""Feeds the ledger from the bus: the log of allocations from where it was left, and what each node has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import structlog

from hami_billing.store import DatabaseUnavailable, Store
from hami_protocol import subjects
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError
from hami_protocol.events import Event
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.port import Bus, Delivery, StartAt
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
MOST_AT_ONCE = 500
"""Events in one transaction, while there are more."""
RETRY_SECONDS = 5.0
SWEEP_SECONDS = 3600.0
DAY_SECONDS = 86_400
MICROSECONDS = 1_000_000


class Follower:
    """Writes into the store what the streams have."""

    def __init__(self, bus: Bus, store: Store, clock: Clock, *, kept_days: int, telemetry: Telemetry = OFF) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._kept_days = kept_days
        self._isolation = Isolation("billing", clock, telemetry)
        self._caught_up: set[str] = set()
        self._events = telemetry.counter("hami_billing_events", "messages that are in the ledger, by stream")
        self._unreadable = telemetry.counter("hami_billing_unreadable_messages", "messages that could not be read, by stream")
        self._gaps = telemetry.counter("hami_billing_gaps", "times that the log no longer had what the ledger had not read")

    @property
    def lacking(self) -> str | None:
        """What is missing until bills are complete; None for nothing."""
        missing = sorted({subjects.ALLOCATIONS.name, subjects.DEVICES.name} - self._caught_up)
        return f"not read to its end yet: {', '.join(missing)}" if missing else None

    async def allocations(self, stop: asyncio.Event) -> None:
        """Follow the log of allocations until ``stop``."""
        await self._for_ever(stop, subjects.ALLOCATIONS, subjects.ALL_ALLOCATIONS, resumes=True)

    async def devices(self, stop: asyncio.Event) -> None:
        """Follow what each node has until ``stop``. The stream keeps the last report alone, so each start begins with that."""
        await self._for_ever(stop, subjects.DEVICES, ">", resumes=False)

    async def sweep(self, stop: asyncio.Event) -> None:
        """Remove what is older than the ledger keeps."""
        while not await sleep_until(stop, SWEEP_SECONDS):
            with self._isolation.item("sweep"):
                before = round((self._clock.utc().timestamp() - self._kept_days * DAY_SECONDS) * MICROSECONDS)
                removed = await asyncio.to_thread(self._store.forget, before)
                log.info("what is older than the ledger keeps is removed", rows=removed, kept_days=self._kept_days)

    async def _for_ever(self, stop: asyncio.Event, stream: StreamSpec, subject: str, *, resumes: bool) -> None:
        while not stop.is_set():
            with self._isolation.item(stream.name):
                await self._follow(stop, stream, subject, resumes=resumes)
            await sleep_until(stop, RETRY_SECONDS)

    async def _follow(self, stop: asyncio.Event, stream: StreamSpec, subject: str, *, resumes: bool) -> None:
        position = await asyncio.to_thread(self._store.position, stream.name) if resumes else 0
        start: StartAt | int = StartAt.LAST_PER_SUBJECT if not resumes else position + 1 if position else StartAt.ALL
        lost = asyncio.Event()
        async with self._bus.consume(stream, subjects=(subject,), start=start, on_loss=lost.set) as deliveries:
            async for batch in _batches(until(stop, deliveries)):
                if lost.is_set():  # it came back shorter; what is read again changes nothing
                    await asyncio.to_thread(self._store.begin_anew, stream.name)
                    return
                if position and batch[0].sequence > position + 1:
                    self._gaps.add(1)
                    log.error("the log no longer has all that the ledger had not read", read_until=position, goes_on=batch[0].sequence)
                position = 0  # looked at once
                await self._take(stream, batch)
                if not batch[-1].pending:
                    self._caught_up.add(stream.name)

    async def _take(self, stream: StreamSpec, batch: list[Delivery]) -> None:
        """Write a batch; where it cannot be written, one event after the other, without those that never can."""
        events = [(delivery.sequence, *self._read(stream, delivery.message)) for delivery in batch]
        try:
            await asyncio.to_thread(self._store.take, stream.name, events)
        except DatabaseUnavailable:
            raise
        except Exception:  # noqa: BLE001 - each is tried alone, and reported there
            for sequence, event, when in events:
                await self._take_one(stream, sequence, event, when)
        self._events.add(len(events), {"stream": stream.name})

    async def _take_one(self, stream: StreamSpec, sequence: int, event: Event | None, when: int) -> None:
        try:
            await asyncio.to_thread(self._store.take, stream.name, [(sequence, event, when)])
        except DatabaseUnavailable:
            raise
        except Exception as exc:  # noqa: BLE001 - the failure of this event, which must not keep others out
            self._isolation.failed(f"message {sequence} of {stream.name}", exc)
            await asyncio.to_thread(self._store.take, stream.name, [(sequence, None, 0)])

    def _read(self, stream: StreamSpec, message: Message) -> tuple[Event | None, int]:
        try:
            return open_message(message), microseconds(message.headers.get("ce-time", ""))
        except (EventError, ValueError) as exc:
            self._unreadable.add(1, {"stream": stream.name})
            log.warning("message cannot be read", subject=message.subject, reason=str(exc))
            return None, 0


async def _batches(deliveries: AsyncIterator[Delivery]) -> AsyncIterator[list[Delivery]]:
    """Deliveries together, as long as others wait behind them."""
    batch: list[Delivery] = []
    async for delivery in deliveries:
        batch.append(delivery)
        if not delivery.pending or len(batch) == MOST_AT_ONCE:
            yield batch
            batch = []


def microseconds(time: str) -> int:
    """An RFC 3339 time as Unix time in microseconds.

    Raises:
        ValueError: it is none.
    """
    moment = datetime.fromisoformat(time)
    if moment.tzinfo is None:
        raise ValueError(f"{time[:40]!r}: no time zone; accepted: RFC 3339")
    return round(moment.timestamp() * MICROSECONDS)

"""Follows the bus: what nodes report, and the log of grants. A message that cannot be read is terminated, logged with its subject and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from hami_protocol import envelope, subjects
from hami_protocol.errors import EventError
from hami_protocol.events import AllocationEvent, DeviceEvent, Event
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.port import Bus, BusError, Delivery, StartAt
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.metrics import Metrics
from hami_scheduler.picture import Picture

log = structlog.get_logger()

RETRY_SECONDS = 1.0
QUIET_SECONDS = 1.0
"""A log from which nothing comes for so long has been read to its end."""


class Feeds:
    """Readers of the bus. Nothing is acknowledged: each replica reads everything from the start, and the last word counts."""

    def __init__(
        self, bus: Bus, picture: Picture, metrics: Metrics, clock: Clock, *, heard: Callable[[str, int], None], telemetry: Telemetry = OFF
    ) -> None:
        """``heard`` is told the subject and the sequence of every message that was taken."""
        self._bus = bus
        self._heard = heard
        self._picture = picture
        self._metrics = metrics
        self._isolation = Isolation("feeds", clock, telemetry)
        self.caught_up = asyncio.Event()
        """The log of grants has been read to its end once."""

    async def ensure_streams(self) -> None:
        """Return once all streams exist. Before that the bus would refuse what belongs on them."""
        while True:
            try:
                await self._bus.wait_connected()
                await self._bus.ensure_streams(subjects.STREAMS)
            except BusError as exc:
                log.warning("streams not made", error=str(exc), retry_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def follow_devices(self, stop: asyncio.Event) -> None:
        """Take every node's devices and liveness, the newest first, until ``stop``."""
        await run_until(stop, self._follow(subjects.DEVICES, (subjects.ALL_DEVICES, subjects.ALL_LIVENESS)))

    async def follow_allocations(self, stop: asyncio.Event) -> None:
        """Take the log of grants, from the last word on each pod on, until ``stop``."""
        await run_until(stop, self._follow(subjects.ALLOCATIONS, (subjects.ALL_ALLOCATIONS,), caught_up=self.caught_up))

    async def _follow(self, stream: StreamSpec, filters: tuple[str, ...], *, caught_up: asyncio.Event | None = None) -> None:
        while True:
            try:
                await self.ensure_streams()
                lost = asyncio.Event()
                async with self._bus.consume(stream, subjects=filters, start=StartAt.LAST_PER_SUBJECT, on_loss=lost.set) as deliveries:
                    await run_until(lost, self._read(deliveries, caught_up))
                if lost.is_set():
                    self._begin_again(stream, caught_up)
                    continue
            except BusError as exc:
                log.warning("bus not followed", stream=stream.name, error=str(exc), retry_seconds=RETRY_SECONDS)
            except Exception as exc:  # noqa: BLE001 - the stream is followed anew
                self._isolation.failed(f"stream {stream.name}", exc)
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, deliveries: AsyncIterator[Delivery], caught_up: asyncio.Event | None) -> None:
        if caught_up is not None and not caught_up.is_set():
            await self._read_to_the_end(deliveries, caught_up)
        async for delivery in deliveries:
            await self._take(delivery)

    def _begin_again(self, stream: StreamSpec, caught_up: asyncio.Event | None) -> None:
        """The stream has lost messages: what was read is forgotten, and once the rest is read the leader publishes what lacks."""
        log.error("what the stream has lost is published again", stream=stream.name)
        if caught_up is not None:
            caught_up.clear()
            self._picture.log_lost()

    async def _read_to_the_end(self, deliveries: AsyncIterator[Delivery], caught_up: asyncio.Event) -> None:
        """Take what is there already. The end is where nothing waits behind a message, or where nothing comes for a while."""
        following: asyncio.Future[Delivery] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(_following(deliveries))
                done, _ = await asyncio.wait((following,), timeout=QUIET_SECONDS)
                if not done:
                    if self._bus.connected:
                        break
                    continue
                delivery, following = following.result(), None
                await self._take(delivery)
                if delivery.pending == 0:
                    break
            caught_up.set()
            while following is not None:
                delivery, following = await following, None
                await self._take(delivery)
        finally:
            if following is not None:
                following.cancel()

    async def _take(self, delivery: Delivery) -> None:
        with self._isolation.item(f"message {delivery.message.subject}"):
            await self._take_in(delivery)

    async def _take_in(self, delivery: Delivery) -> None:
        message = delivery.message
        try:
            event = envelope.open_message(message)
        except EventError as exc:
            self._metrics.unreadable_messages.add(1)
            log.warning("message not read", subject=message.subject, error=str(exc))
            await delivery.term(str(exc))
            return
        self._apply(event, envelope.event_id(message))
        self._heard(message.subject, delivery.sequence)
        await delivery.ack()

    def _apply(self, event: Event, event_id: str) -> None:
        if isinstance(event, DeviceEvent):
            self._picture.device_event(event)
        elif isinstance(event, AllocationEvent):
            self._picture.allocation_event(event, event_id)


async def _following(deliveries: AsyncIterator[Delivery]) -> Delivery:
    return await anext(deliveries)

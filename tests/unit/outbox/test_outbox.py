import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol.devices import PodRef
from hami_protocol.envelope import MESSAGE_ID, TRACE_PARENT, Message, open_message
from hami_protocol.events import Event, PodAllocating
from hami_protocol.subjects import ALLOCATIONS
from hami_runtime import virtual
from hami_runtime.bus import BusUnavailable, MessageRefused
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import Telemetry
from hami_runtime.virtual import VirtualClock

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return virtual.run(main)


def an_event(number: int) -> Event:
    pod = PodRef(namespace="ns", name=f"p{number}", uid=f"u{number}")
    return PodAllocating(node="n1", pod=pod, assignments=(), bind_time_seconds=1)


async def a_bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_streams([ALLOCATIONS])
    return bus


def kept(bus: MemoryBus) -> list[str]:
    return [message.headers[MESSAGE_ID] for message in bus.kept(ALLOCATIONS)]


class LossyBus(MemoryBus):
    """Keeps every message, but loses the answer of some publishes."""

    def __init__(self, lost: set[int]) -> None:
        super().__init__()
        self._lost = lost
        self._published = 0

    async def publish(self, message: Message, *, timeout_seconds: float = 5.0) -> int:
        sequence = await super().publish(message, timeout_seconds=timeout_seconds)
        self._published += 1
        if self._published in self._lost:
            raise BusUnavailable("the answer was lost")
        return sequence


def test_events_arrive_in_the_order_in_which_they_were_said() -> None:
    async def main() -> None:
        bus, stop = await a_bus(), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="/hami/scheduler/a")
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in range(5):
                outbox.put(an_event(number), f"e{number}")
                await asyncio.sleep(0.1)
            await outbox.wait_empty()
            stop.set()
        assert kept(bus) == [f"e{number}" for number in range(5)]
        first = bus.kept(ALLOCATIONS)[0]
        assert open_message(first) == an_event(0)
        assert (first.headers["ce-source"], first.headers["ce-time"]) == ("/hami/scheduler/a", "2026-01-01T00:00:00.000000Z")

    run(main())


def test_while_the_bus_is_away_events_wait_and_then_all_go_out() -> None:
    async def main() -> None:
        bus, stop = await a_bus(), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="s")
        bus.down()
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in range(5):
                outbox.put(an_event(number), f"e{number}")
            await asyncio.sleep(3600)
            assert outbox.pending == 5
            bus.up()
            await outbox.wait_empty()
            stop.set()
        assert kept(bus) == [f"e{number}" for number in range(5)]

    run(main())


@given(st.sets(st.integers(1, 20)))
def test_lost_answers_neither_double_nor_reorder(lost: set[int]) -> None:
    async def main() -> None:
        bus, stop = LossyBus(lost), asyncio.Event()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="s")
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in range(10):
                outbox.put(an_event(number), f"e{number}")
            await outbox.wait_empty()
            stop.set()
        assert kept(bus) == [f"e{number}" for number in range(10)]

    run(main())


def test_what_waits_when_it_stops_still_goes_out() -> None:
    async def main() -> None:
        bus, stop = await a_bus(), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="s")
        for number in range(3):
            outbox.put(an_event(number), f"e{number}")
        stop.set()
        await outbox.run(stop)
        assert (outbox.pending, len(kept(bus))) == (0, 3)

    run(main())


def test_it_stops_though_the_bus_is_away() -> None:
    async def main() -> None:
        bus, stop = await a_bus(), asyncio.Event()
        bus.down()
        outbox = Outbox(bus, VirtualClock(), source="s")
        outbox.put(an_event(1), "e1")
        asyncio.get_running_loop().call_later(10, stop.set)
        await outbox.run(stop)
        assert outbox.pending == 1

    run(main())


def test_said_twice_it_waits_once() -> None:
    async def main() -> None:
        outbox = Outbox(await a_bus(), VirtualClock(), source="s")
        outbox.put(an_event(1), "e1")
        outbox.put(an_event(1), "e1")
        assert outbox.pending == 1

    run(main())


def test_beyond_its_capacity_the_oldest_goes_and_is_counted() -> None:
    async def main() -> None:
        bus, telemetry, stop = await a_bus(), Telemetry("test"), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="s", capacity=2, telemetry=telemetry)
        for number in range(5):
            outbox.put(an_event(number), f"e{number}")
        stop.set()
        await outbox.run(stop)
        assert kept(bus) == ["e3", "e4"]
        assert 'hami_outbox_dropped_total{reason="full"} 3.0' in telemetry.prometheus_text().decode()

    run(main())


def test_an_event_that_the_bus_never_takes_does_not_hold_up_the_others() -> None:
    class StrictBus(MemoryBus):
        async def publish(self, message: Message, *, timeout_seconds: float = 5.0) -> int:
            if message.headers[MESSAGE_ID] == "e1":
                raise MessageRefused("we may not publish there")
            return await super().publish(message, timeout_seconds=timeout_seconds)

    async def main() -> None:
        bus, telemetry, stop = StrictBus(), Telemetry("test"), asyncio.Event()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="s", telemetry=telemetry)
        for number in range(3):
            outbox.put(an_event(number), f"e{number}")
        stop.set()
        await outbox.run(stop)
        assert kept(bus) == ["e0", "e2"]
        assert 'hami_outbox_dropped_total{reason="refused"} 1.0' in telemetry.prometheus_text().decode()

    run(main())


def test_an_event_carries_the_trace_in_which_it_was_said() -> None:
    async def main() -> None:
        bus, telemetry, stop = await a_bus(), Telemetry("test"), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="s")
        with telemetry.span("bind", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
            outbox.put(an_event(1), "e1")
        stop.set()
        await outbox.run(stop)
        assert "0af7651916cd43dd8448eb211c80319c" in bus.kept(ALLOCATIONS)[0].headers[TRACE_PARENT]

    run(main())


def test_a_fault_in_the_bus_ends_the_process_rather_than_the_events() -> None:
    class BrokenBus(MemoryBus):
        async def publish(self, message: Message, *, timeout_seconds: float = 5.0) -> int:
            raise ZeroDivisionError

    async def main() -> None:
        outbox = Outbox(BrokenBus(), VirtualClock(), source="s")
        outbox.put(an_event(1), "e1")
        await outbox.run(asyncio.Event())

    with pytest.raises(ZeroDivisionError):
        run(main())

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from hami_protocol.devices import PodRef
from hami_protocol.envelope import EVENT_ID, MESSAGE_ID, TRACE_PARENT, Message, open_message
from hami_protocol.events import Event, PodAllocating, PodPlaced, PodReleased
from hami_protocol.subjects import ALLOCATIONS, VERDICTS
from hami_runtime import virtual
from hami_runtime.bus import BusUnavailable, MessageRefused
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.outbox import BURST_PER_SECOND, GATHER_SECONDS, MOST_AT_ONCE, MOST_TROUBLES, Outbox
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
    return [message.headers[EVENT_ID] for message in bus.kept(ALLOCATIONS)]


class LossyBus(MemoryBus):
    """Keeps every message, but loses the answer of some publishes."""

    def __init__(self, lost: set[int]) -> None:
        super().__init__()
        self._lost = lost
        self._published = 0

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        sequence = await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)
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
        async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
            if message.headers[EVENT_ID] == "e1":
                raise MessageRefused("we may not publish there")
            return await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)

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


def test_the_id_that_a_stream_de_duplicates_by_cannot_be_told_from_the_event_and_outlives_a_process_with_its_key() -> None:
    async def ids(key: bytes) -> list[str]:
        bus, stop = await a_bus(), asyncio.Event()
        outbox = Outbox(bus, VirtualClock(), source="s", key=key)
        for number in range(2):
            outbox.put(an_event(number), f"e{number}")
        stop.set()
        await outbox.run(stop)
        return [message.headers[MESSAGE_ID] for message in bus.kept(ALLOCATIONS)]

    assert len({*run(ids(b"")), *run(ids(b"")), *run(ids(b"one")), *run(ids(b"two"))}) == 8
    assert run(ids(b"one")) == run(ids(b"one"))


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


def test_an_event_that_cannot_be_published_for_an_unknown_reason_is_tried_again_then_dropped_and_others_go_out() -> None:
    class BrokenBus(MemoryBus):
        tried = 0

        async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
            if message.headers[EVENT_ID] == "e1":
                self.tried += 1
                raise RecursionError
            return await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)

    async def main() -> None:
        bus, stop = BrokenBus(), asyncio.Event()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="s")
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in (1, 2):
                outbox.put(an_event(number), f"e{number}")
            await outbox.wait_empty()
            stop.set()
        assert kept(bus) == ["e2"]
        assert bus.tried == 5

    run(main())


# Together


class SlowBus(MemoryBus):
    """Says that it has a message only a second later; ``at_once`` has the ids of what was in its hands together, per message that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.in_hand: list[str] = []
        self.at_once: list[tuple[str, ...]] = []
        self.fails = 0

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        event_id = message.headers[EVENT_ID]
        self.in_hand.append(event_id)
        self.at_once.append(tuple(self.in_hand))
        try:
            if self.fails:
                self.fails -= 1
                raise BusUnavailable("not now")
            sequence = await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)
            await asyncio.sleep(1)
            return sequence
        finally:
            self.in_hand.remove(event_id)


def handed_over(*said: tuple[Event, str], fails: int = 0) -> list[tuple[str, ...]]:
    async def main() -> list[tuple[str, ...]]:
        bus, stop = SlowBus(), asyncio.Event()
        bus.fails = fails
        await bus.ensure_streams([ALLOCATIONS, VERDICTS])
        outbox = Outbox(bus, VirtualClock(), source="s")
        for event, event_id in said:
            outbox.put(event, event_id)
        stop.set()
        await outbox.run(stop)
        assert outbox.pending == 0
        return bus.at_once

    return run(main())


def test_events_of_different_pods_go_out_together() -> None:
    assert handed_over((an_event(1), "a"), (an_event(2), "b"), (an_event(3), "c")) == [("a",), ("a", "b"), ("a", "b", "c")]


def test_the_second_event_of_a_pod_waits_until_the_bus_has_the_first() -> None:
    assert handed_over((an_event(1), "a"), (an_event(2), "b"), (the_end(1), "c"), (an_event(3), "d")) == [
        ("a",),
        ("a", "b"),
        ("c",),
        ("c", "d"),
    ]


def test_so_does_one_of_a_namesake_and_one_of_the_same_pod_on_another_node() -> None:
    here, there = an_event(1), PodReleased(node="n2", pod=PodRef(namespace="ns", name="p1", uid="u1"))
    namesake = PodReleased(node="n1", pod=PodRef(namespace="ns", name="p1", uid="another"))
    assert handed_over((here, "a"), (there, "b"), (namesake, "c")) == [("a",), ("b",), ("c",)]


def test_a_verdict_on_a_pod_goes_out_together_with_its_grant() -> None:
    verdict = PodPlaced(pod=PodRef(namespace="ns", name="p1", uid="u1"), node="n1", fitting_node_count=1, node_count=1, score=1.0)
    assert handed_over((verdict, "a"), (an_event(1), "b")) == [("a",), ("a", "b")]


def test_after_a_failure_one_event_finds_out_whether_the_bus_works_again() -> None:
    said = [(an_event(number), f"e{number}") for number in range(3)]
    assert handed_over(*said, fails=3) == [("e0",), ("e1",), ("e2",), ("e0",), ("e1",), ("e1", "e2")]


def test_so_many_at_once_and_no_more() -> None:
    found = handed_over(*((an_event(number), f"e{number}") for number in range(MOST_AT_ONCE + 2)))
    assert max(map(len, found)) == MOST_AT_ONCE


def test_in_a_burst_events_are_gathered_and_none_waits_longer_than_said() -> None:
    async def main() -> None:
        stop, clock = asyncio.Event(), VirtualClock()
        waited: list[float] = []
        times: set[float] = set()

        class Timed(MemoryBus):
            async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
                now = clock.utc()
                times.add(now.timestamp())
                waited.append((now - datetime.fromisoformat(message.headers["ce-time"])).total_seconds())
                return await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)

        bus = Timed()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, clock, source="s")
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in range(1000):
                outbox.put(an_event(number), f"e{number}")
                await asyncio.sleep(0.002)
            await outbox.wait_empty()
            stop.set()
        assert kept(bus) == [f"e{number}" for number in range(1000)]
        assert max(waited[: BURST_PER_SECOND - 1]) == 0
        assert max(waited) <= GATHER_SECONDS + 0.0001
        assert len(times) < BURST_PER_SECOND + 900 / 4

    run(main())


# Waiting for others


SECONDS = 20.0


class Told:
    """Of which pods somebody else has spoken; the others' events have patience."""

    def __init__(self) -> None:
        self.uids: set[str] = set()

    def patience(self, event: Event) -> float:
        assert isinstance(event, PodAllocating | PodReleased)
        return 0.0 if event.pod.uid in self.uids else SECONDS


def the_end(number: int) -> Event:
    return PodReleased(node="n1", pod=PodRef(namespace="ns", name=f"p{number}", uid=f"u{number}"))


def test_a_pod_that_waits_holds_up_no_other_and_keeps_its_own_order() -> None:
    async def main() -> None:
        bus, stop, told = await a_bus(), asyncio.Event(), Told()
        told.uids = {"u2", "u3"}
        outbox = Outbox(bus, VirtualClock(), source="s", patience=told.patience)
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for number in (1, 2, 3):
                outbox.put(an_event(number), f"e{number}")
                outbox.put(the_end(number), f"r{number}")
            await asyncio.sleep(0.01)
            assert kept(bus) == ["e2", "r2", "e3", "r3"]
            told.uids.add("u1")
            outbox.look_again()
            await asyncio.sleep(0.01)
            assert kept(bus)[4:] == ["e1", "r1"]
            stop.set()

    run(main())


def test_patience_is_counted_from_what_happened_and_anew_from_when_the_bus_works_again() -> None:
    async def main() -> None:
        bus, stop, loop = await a_bus(), asyncio.Event(), asyncio.get_running_loop()
        outbox = Outbox(bus, VirtualClock(), source="s", patience=Told().patience)
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            outbox.put(an_event(1), "e1")
            await outbox.wait_empty()
            assert loop.time() == SECONDS
            outbox.put(an_event(2), "e2")
            await asyncio.sleep(10.0)
            bus.down()
            await asyncio.sleep(100.0)
            bus.up()
            back = loop.time()
            await outbox.wait_empty()
            assert back + SECONDS <= loop.time() < back + SECONDS + 1.0
            stop.set()

    run(main())


def test_patience_is_counted_anew_from_what_the_bus_did_not_keep() -> None:
    class Leaderless(MemoryBus):
        leads = False

        async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
            if not self.leads:
                raise BusUnavailable("nobody leads the stream")
            return await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)

    async def main() -> None:
        bus, stop, told, loop = Leaderless(), asyncio.Event(), Told(), asyncio.get_running_loop()
        await bus.ensure_streams([ALLOCATIONS])
        told.uids = {"u2"}
        outbox = Outbox(bus, VirtualClock(), source="s", patience=told.patience)
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            outbox.put(an_event(1), "e1")
            outbox.put(an_event(2), "e2")
            await asyncio.sleep(100.0)
            bus.leads = True
            led = loop.time()
            await outbox.wait_empty()
            assert led + SECONDS <= loop.time() <= led + SECONDS + 5.0  # from the first attempt that succeeded
            assert kept(bus) == ["e2", "e1"]
            stop.set()

    run(main())


def test_what_waits_for_others_when_it_stops_stays_and_the_rest_goes_out() -> None:
    async def main() -> None:
        bus, stop, told = await a_bus(), asyncio.Event(), Told()
        told.uids = {"u2"}
        outbox = Outbox(bus, VirtualClock(), source="s", patience=told.patience)
        outbox.put(an_event(1), "e1")
        outbox.put(an_event(2), "e2")
        stop.set()
        await outbox.run(stop)
        assert (kept(bus), outbox.pending) == (["e2"], 1)

    run(main())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30)), min_size=1, max_size=12),
    st.dictionaries(st.integers(0, 3), st.floats(0, 40)),
    st.lists(st.tuples(st.floats(0, 60), st.floats(0.1, 30)), max_size=2),
    st.sets(st.integers(1, 12)),
)
def test_each_pods_events_arrive_once_and_in_order_and_none_waits_for_ever(
    said: list[tuple[int, float]], told_at: dict[int, float], outages: list[tuple[float, float]], lost: set[int]
) -> None:
    async def main() -> None:
        bus, stop, told, loop = LossyBus(lost), asyncio.Event(), Told(), asyncio.get_running_loop()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="s", patience=told.patience)

        def hear(uid: str) -> None:
            told.uids.add(uid)
            outbox.look_again()

        for number, when in told_at.items():
            loop.call_later(when, hear, f"u{number}")
        for when, seconds in outages:
            loop.call_later(when, bus.down)
            loop.call_later(when + seconds, bus.up)
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.run(stop))
            for place, (number, pause) in enumerate(said):
                outbox.put(an_event(number), f"{number}/{place:02}")
                await asyncio.sleep(pause)
            await outbox.wait_empty()
            stop.set()
        arrived = kept(bus)
        assert sorted(arrived) == sorted(f"{number}/{place:02}" for place, (number, _) in enumerate(said))
        for number in range(4):
            mine = [each for each in arrived if each.startswith(f"{number}/")]
            assert mine == sorted(mine)
        last = max([sum(pause for _, pause in said), *(when + seconds for when, seconds in outages)])
        assert loop.time() <= last + (MOST_TROUBLES + 1) * SECONDS + 60.0

    run(main())

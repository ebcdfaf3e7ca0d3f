"""What went well is told in bursts only so far; what went wrong always."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from hami_protocol.devices import PodRef
from hami_runtime import virtual
from hami_runtime.bursts import LONGEST_WAIT_SECONDS
from hami_runtime.clock import SystemClock
from hami_runtime.kube.events import BURST_PER_SECOND, NORMAL_BURST, NORMAL_PER_SECOND, Allowance, EventRecorder
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_resources import EVENTS
from hami_runtime.virtual import VirtualClock


def test_a_burst_is_told_and_then_so_many_a_second() -> None:
    allowance = Allowance()
    assert sum(allowance.take(100.0) for _ in range(NORMAL_BURST + 10)) == NORMAL_BURST
    assert sum(allowance.take(102.0) for _ in range(100)) == 2 * NORMAL_PER_SECOND


def test_it_never_saves_more_than_a_burst() -> None:
    allowance = Allowance()
    allowance.take(0.0)
    assert sum(allowance.take(1e6) for _ in range(1000)) == NORMAL_BURST


def test_warnings_are_recorded_however_many_there_are() -> None:
    clock = SystemClock()
    recorder = EventRecorder(MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1))), clock, "hami-test")
    for number in range(2 * NORMAL_BURST):
        pod = PodRef(namespace="default", name=f"p{number}", uid=f"u{number}")
        recorder.record(pod, "Normal", "BindingSucceed", "bound")
        recorder.record(pod, "Warning", "FilteringFailed", "no card has room")
    assert 3 * NORMAL_BURST <= recorder.pending < 4 * NORMAL_BURST


# In a burst


class World:
    """A recorder at work, and what it has written."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.store = ObjectStore(now=clock.utc, rng=random.Random(1))
        self.recorder = EventRecorder(MemoryCluster(self.store), clock, "hami-test")

    def written(self) -> list[str]:
        return [each.body["involvedObject"]["name"] for each in self.store.select(EVENTS)]

    async def bind(self, count: int, every_seconds: float) -> None:
        for number in range(count):
            self.recorder.record(PodRef(namespace="default", name=f"p{number:03}", uid=f"u{number}"), "Normal", "BindingSucceed", "bound")
            await asyncio.sleep(every_seconds)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world, stop = World(), asyncio.Event()
        running = asyncio.create_task(world.recorder.run(stop))
        await scenario(world)
        stop.set()
        await running

    virtual.run(main())


def test_a_few_are_written_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.bind(BURST_PER_SECOND, 0.02)
        assert len(world.written()) == BURST_PER_SECOND

    play(scenario)


def test_in_a_burst_what_went_well_is_written_when_that_is_over() -> None:
    async def scenario(world: World) -> None:
        await world.bind(100, 0.02)
        assert len(world.written()) == BURST_PER_SECOND
        await asyncio.sleep(1.1)
        assert NORMAL_BURST <= len(world.written()) <= NORMAL_BURST + 2 * NORMAL_PER_SECOND

    play(scenario)


def test_or_a_few_seconds_later_at_the_latest() -> None:
    async def scenario(world: World) -> None:
        await world.bind(round(LONGEST_WAIT_SECONDS / 0.02) + 50, 0.02)
        assert "p040" in world.written()
        assert len(world.written()) < NORMAL_BURST + LONGEST_WAIT_SECONDS * NORMAL_PER_SECOND

    play(scenario)


def test_what_went_wrong_waits_for_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.bind(100, 0.02)
        world.recorder.record(PodRef(namespace="default", name="refused", uid="u"), "Warning", "FilteringFailed", "no card has room")
        await asyncio.sleep(0.001)
        assert "refused" in world.written()

    play(scenario)


def test_what_waits_when_it_stops_is_written() -> None:
    async def main() -> None:
        world, stop = World(), asyncio.Event()
        running = asyncio.create_task(world.recorder.run(stop))
        await world.bind(NORMAL_BURST, 0.001)
        assert len(world.written()) == BURST_PER_SECOND
        stop.set()
        await running
        assert (len(world.written()), world.recorder.pending) == (NORMAL_BURST, 0)

    virtual.run(main())

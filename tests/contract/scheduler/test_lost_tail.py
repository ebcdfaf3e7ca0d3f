"""The log of grants comes back without its last messages while the scheduler runs on: what was in it is published again, and nothing hangs."""

from __future__ import annotations

import asyncio

from hami_protocol import subjects
from hami_protocol.events import PodRefused, ShareResized
from hami_scheduler.verdicts import REPEAT_SECONDS
from tests.contract.scheduler.test_resizing import applied, running, wish
from tests.contract.scheduler.world import World, place, settle, story


@story
async def test_grants_of_running_pods_are_in_the_log_again(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 1000)
        await running(world, scheduler, "p2", 1000)
        await asyncio.sleep(5)
        before = world.said()
        world.bus.lose_tail(subjects.ALLOCATIONS, 3)
        assert world.said() == before[:1]
        await asyncio.sleep(5)
        assert {(what, pod) for what, pod in world.said() if what == "PodAllocating"} == {("PodAllocating", "p1"), ("PodAllocating", "p2")}
        later = await world.pod("p3", gpu=1, gpumem=1000)
        assert await place(scheduler, later) == "n1"
        await asyncio.sleep(1)
        assert world.said()[-1] == ("PodAllocating", "p3")
        assert len(world.said()) == len(set(world.said()))


@story
async def test_a_resize_that_was_lost_is_published_again_and_ends(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        await asyncio.sleep(5)
        task = asyncio.create_task(scheduler.resize(wish(3000)))
        await asyncio.sleep(0.1)
        event = world.log()[-1]
        assert isinstance(event, ShareResized)
        world.bus.lose_tail(subjects.ALLOCATIONS, 1)
        await asyncio.sleep(5)
        assert world.log()[-1] == event
        await applied(world, event)
        await settle()
        assert (await task) is not None


@story
async def test_verdicts_are_published_again(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 1000)
        big = await world.pod("big", gpu=1, gpumem=10_000_000)
        assert (await place(scheduler, big)).startswith("refused")
        await asyncio.sleep(5)
        for stream in (subjects.VERDICTS, subjects.ALLOCATIONS):
            world.bus.lose_tail(stream, 2)
        await asyncio.sleep(5)
        assert "big" in {event.pod.name for event in world.log(subjects.VERDICTS) if isinstance(event, PodRefused)}


@story
async def test_verdicts_that_are_lost_alone_are_published_again_with_the_pods_next_attempt(world: World) -> None:
    """Nobody reads them to decide; kube-scheduler tries a pod that waits again, and its verdict is published then."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        big = await world.pod("big", gpu=1, gpumem=10_000_000)
        assert (await place(scheduler, big)).startswith("refused")
        await asyncio.sleep(5)
        world.bus.lose_tail(subjects.VERDICTS, 2)
        assert world.log(subjects.VERDICTS) == []
        await asyncio.sleep(REPEAT_SECONDS)
        assert (await place(scheduler, big)).startswith("refused")
        await asyncio.sleep(5)
        assert "big" in {event.pod.name for event in world.log(subjects.VERDICTS) if isinstance(event, PodRefused)}

"""A resize over a whole scheduler: what is charged at each step, what an agent's answer does, what a restart finds again."""

from __future__ import annotations

import asyncio

import pytest

from hami_protocol import keys
from hami_protocol.events import ShareResizeApplied, ShareResized, ShareResizeRefused
from hami_protocol.kubernetes import Pod
from hami_protocol.resize import ResizeAnswer, ResizeRequest, ResizeState
from hami_runtime.kube import cluster as api
from hami_scheduler.resizing import ANSWER_SECONDS, ResizeRefused
from hami_scheduler.service import Scheduler
from tests.builders import a_device
from tests.contract.scheduler.world import World, place, ref, settle, story, used_mib

CARD_MIB = a_device("GPU-any").memory_mib


async def running(world: World, scheduler: Scheduler, name: str, mib: int) -> Pod:
    pod = await world.pod(name, gpu=1, gpumem=mib)
    assert await place(scheduler, pod) == "n1"
    await world.admin.patch(api.PODS, name, {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}, namespace="default")
    await settle()
    return pod


def wish(mib: int, pod: str = "p1") -> ResizeRequest:
    return ResizeRequest(namespace="default", pod=pod, memory_mib=mib)


async def asked(world: World, scheduler: Scheduler, mib: int) -> tuple[asyncio.Task[ResizeAnswer | None], ShareResized]:
    """A wish, and what the scheduler has said to the agent."""
    task = asyncio.create_task(scheduler.resize(wish(mib)))
    await settle()
    await settle()
    event = world.log()[-1]
    assert isinstance(event, ShareResized)
    return task, event


async def applied(world: World, event: ShareResized) -> None:
    await world.say(
        ShareResizeApplied(pod=event.pod, node="n1", assignments=event.assignments, generation=event.generation),
        f"applied-{event.generation}",
    )


async def refused(world: World, event: ShareResized) -> None:
    await world.say(
        ShareResizeRefused(pod=event.pod, node="n1", generation=event.generation, reason="uses 1500 MiB"), f"refused-{event.generation}"
    )


@story
async def test_growth_is_charged_before_the_agent_knows_and_shrinking_after_it_has_answered(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        growing, event = await asked(world, scheduler, 5000)
        assert used_mib(scheduler) == 5000
        await applied(world, event)
        found = await growing
        assert found is not None
        assert found.state is ResizeState.APPLIED
        shrinking, event = await asked(world, scheduler, 1000)
        assert used_mib(scheduler) == 5000
        await applied(world, event)
        await shrinking
        assert used_mib(scheduler) == 1000


@story
async def test_an_agents_refusal_is_the_answer_and_undoes_the_charge(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        task, event = await asked(world, scheduler, 5000)
        await refused(world, event)
        with pytest.raises(ResizeRefused, match="node n1: uses 1500 MiB"):
            await task
        assert used_mib(scheduler) == 2000


@story
async def test_nothing_grows_over_its_neighbours_and_nothing_is_said_of_it(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        await running(world, scheduler, "p2", CARD_MIB - 4000)
        before = world.said()
        with pytest.raises(ResizeRefused, match="has 4000 MiB for this pod, 4001 MiB were asked for"):
            await scheduler.resize(wish(4001))
        assert world.said() == before
        assert used_mib(scheduler) == CARD_MIB - 2000


@story
async def test_what_a_resize_gives_back_another_pod_can_have(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", CARD_MIB)
        late = await world.pod("p2", gpu=1, gpumem=1000)
        assert (await place(scheduler, late)).startswith("refused")
        task, event = await asked(world, scheduler, CARD_MIB - 1000)
        assert (await place(scheduler, late)).startswith("refused")
        await applied(world, event)
        await task
        assert await place(scheduler, late) == "n1"


@story
async def test_a_silent_agent_is_waited_for_and_a_second_wish_meanwhile_is_refused(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        task, _ = await asked(world, scheduler, 5000)
        with pytest.raises(ResizeRefused, match="under way"):
            await scheduler.resize(wish(6000))
        await asyncio.sleep(ANSWER_SECONDS)
        found = await task
        assert found is not None
        assert found.state is ResizeState.WAITING
        assert used_mib(scheduler) == 5000


@story
async def test_a_restarted_scheduler_charges_what_is_under_way_and_what_came_of_it(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "p1", 2000)
        task, event = await asked(world, scheduler, 5000)
        task.cancel()
    async with world.scheduler() as scheduler:
        await settle()
        assert used_mib(scheduler) == 5000
        await refused(world, event)
        assert used_mib(scheduler) == 2000
        task, event = await asked(world, scheduler, 1000)
        await applied(world, event)
        await task
    async with world.scheduler() as scheduler:  # the annotation still says 2000
        await settle()
        assert used_mib(scheduler) == 1000


@story
async def test_a_pod_that_has_not_its_devices_yet_or_has_ended_is_not_resized(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        with pytest.raises(ResizeRefused, match="not running"):
            await scheduler.resize(wish(1000))
        assert await place(scheduler, pod) == "n1"
        with pytest.raises(ResizeRefused, match="not been given its devices"):
            await scheduler.resize(wish(1000))
        await world.finish(pod)
        with pytest.raises(ResizeRefused, match="not running"):
            await scheduler.resize(wish(1000))
        assert await scheduler.resize(wish(1000, "nobody")) is None
        assert ref(pod).uid

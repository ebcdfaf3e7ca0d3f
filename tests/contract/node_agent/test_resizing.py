"""A share is resized while its container runs: the limit changes in place, never below what is in use, and survives whatever restarts."""

from __future__ import annotations

import asyncio

import pytest

from hami_node_agent import grant_file
from hami_node_agent.republishing import LOOK_SECONDS
from hami_protocol import assignment, keys, subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.events import AllocationSucceeded, ShareResizeApplied, ShareResized, ShareResizeRefused
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from tests.contract.node_agent.test_monitor import grant, running, use
from tests.contract.node_agent.world import NODE, World, play

MODES = pytest.mark.parametrize("mode", [AllocationMode.CDI, AllocationMode.ENVVAR])


async def resize(world: World, pod: Pod, mib: int, *, generation: int = 5, cores: int = 30, uuid: str = "GPU-a") -> None:
    wanted = world.assignment({}, {"main": [(uuid, mib, cores)]}, ())
    await world.publish(ShareResized(pod=pod_ref(pod), node=NODE, assignments=(wanted,), generation=generation))
    await pause()


async def pause() -> None:
    """Virtual time in which the agent hears and answers."""
    await asyncio.sleep(0.5)


def limit(world: World, name: str) -> tuple[int, int]:
    (device,) = grant_file.decode(grant(world, name)).devices
    return device.memory_limit_mib, device.sm_percent


@MODES
def test_a_share_grows_and_shrinks_in_place_and_the_outcome_is_said(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        stamp = world.files.stamp(world.agent.options.paths.grant(name))
        await resize(world, pod, 3000, generation=5, cores=60)
        assert limit(world, name) == (3000, 60)
        await resize(world, pod, 500, generation=6)
        assert limit(world, name) == (500, 30)
        assert world.files.stamp(world.agent.options.paths.grant(name)) == stamp
        assert [event.generation for event in world.said(ShareResizeApplied)] == [5, 6]

    play(scenario, mode)


def test_a_share_never_goes_below_what_is_in_use_and_the_refusal_has_the_figure() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        use(world, name, 700)
        await resize(world, pod, 600)
        assert limit(world, name) == (1000, 30)
        (refused,) = world.said(ShareResizeRefused)
        assert "uses 700 MiB of GPU-a, 600 MiB were asked for; accepted: at least 700 MiB" in refused.reason
        await resize(world, pod, 700, generation=6)
        assert limit(world, name) == (700, 30)

    play(scenario)


def test_use_that_grew_while_the_limit_was_written_puts_everything_back() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        use(world, name, 100)
        store = world.files.store

        def store_late(path: str, words: object) -> None:
            store(path, words)  # type: ignore[arg-type]
            world.files.store = store  # type: ignore[method-assign]
            use(world, name, 900)  # what was let in under the old limit

        world.files.store = store_late  # type: ignore[method-assign]
        await resize(world, pod, 600)
        assert limit(world, name) == (1000, 30)
        assert len(world.said(ShareResizeRefused)) == 1

    play(scenario)


def test_other_cards_than_the_pod_holds_and_whole_cards_are_refused() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        await resize(world, pod, 600, uuid="GPU-b", generation=5)
        await resize(world, pod, 24576, cores=100, generation=6)
        assert limit(world, name) == (1000, 30)
        assert [event.generation for event in world.said(ShareResizeRefused)] == [5, 6]

    play(scenario)


@MODES
def test_a_resized_container_can_start_again_before_and_after_its_annotation_is_written(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        answers = await world.kubelet.admit(world.agent, pod)
        ids = world.kubelet.ids(pod, "main")
        await world.agent.pre_start(ids)
        name = f"{pod.metadata.uid}_main"
        started_with = world.environment(answers["main"])
        await resize(world, pod, 3000)
        await world.agent.pre_start(ids)
        assert limit(world, name) == (3000, 30)
        text = assignment.encode(world.assignment({}, {"main": [("GPU-a", 3000, 30)]}, ()))
        await world.annotate(pod, {"hami.io/vgpu-devices-allocated": text})
        await world.agent.pre_start(ids)
        assert limit(world, name) == (3000, 30)
        assert world.environment(answers["main"]) == started_with
        (device,) = grant_file.decode(grant(world, name)).devices
        assert device.started_memory_mib == 1000  # whatever says 1000 MiB inside is the agent's own word, and lowers nothing

    play(scenario, mode)


def test_a_killed_agent_says_the_outcome_again_and_does_nothing_twice() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        await resize(world, pod, 500, generation=5)
        await resize(world, pod, 3000, generation=6)
        await world.kill()
        use(world, name, 2000)
        await world.start()
        await pause()
        assert limit(world, name) == (3000, 30)
        assert world.said(ShareResizeRefused) == []
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        assert limit(world, name) == (3000, 30)

    play(scenario)


def test_an_agent_killed_in_the_middle_of_a_change_finishes_it() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        await world.kill()
        path = world.agent.options.paths.grant(name)
        before = grant_file.decode(grant(world, name))
        wanted = grant_file.encode(
            grant_file.Grant(
                pod_uid=before.pod_uid,
                container="main",
                devices=(grant_file.GrantedDevice(uuid="GPU-a", memory_limit_mib=3000, sm_percent=30, started_memory_mib=1000),),
                region_path=before.region_path,
                core_policy=before.core_policy,
                priority=before.priority,
            )
        )
        world.files.store(path, grant_file.rewrite_words(grant(world, name), wanted)[:2])
        wish = world.assignment({}, {"main": [("GPU-a", 3000, 30)]}, ())
        await world.publish(ShareResized(pod=pod_ref(pod), node=NODE, assignments=(wish,), generation=5))
        await world.start()
        await pause()
        assert limit(world, name) == (3000, 30)
        assert grant_file.decode(grant(world, name)).generation % 2 == 0

    play(scenario)


def test_an_outcome_that_the_stream_has_lost_is_published_again() -> None:
    """No agent reads the log: that its outcome is missing shows in the pod's record."""

    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        await running(world, pod)
        await resize(world, pod, 500, generation=6)
        world.bus.lose_tail(subjects.ALLOCATIONS, len(world.bus.kept(subjects.ALLOCATIONS)))
        await asyncio.sleep(LOOK_SECONDS - 2)
        assert world.said(ShareResizeApplied) == []
        await asyncio.sleep(LOOK_SECONDS + 5)
        assert [event.generation for event in world.said(ShareResizeApplied)] == [6]
        await world.annotate(pod, {keys.RESIZE_GENERATION: "6"})
        published = len(world.bus.kept(subjects.ALLOCATIONS))
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert len(world.bus.kept(subjects.ALLOCATIONS)) == published

    play(scenario, AllocationMode.CDI)


def test_a_success_that_the_stream_has_lost_is_published_again() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        await running(world, pod)
        await pause()
        world.bus.lose_tail(subjects.ALLOCATIONS, len(world.bus.kept(subjects.ALLOCATIONS)))
        await world.annotate(pod, {keys.BIND_PHASE: "allocating"})
        await asyncio.sleep(2 * LOOK_SECONDS + 1)
        assert [event.pod.name for event in world.said(AllocationSucceeded)] == ["p"]

    play(scenario, AllocationMode.CDI)

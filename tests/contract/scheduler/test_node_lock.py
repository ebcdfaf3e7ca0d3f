"""Binding to nodes in envvar mode: one pod at a time, in order of arrival, woken by events."""

import asyncio
from datetime import UTC, datetime

import pytest

from hami_protocol import keys, nodelock
from hami_protocol.events import AllocationFailed, AllocationSucceeded, PodReleased
from hami_protocol.kubernetes import Pod
from hami_protocol.nodelock import NodeLock
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from hami_scheduler.service import Options, Scheduler
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

TIME = datetime(2026, 1, 1, tzinfo=UTC)

ALLOCATED = "hami.io/vgpu-devices-allocated"


async def lock_of(world: World) -> str:
    node = await world.admin.get(api.NODES, "n1")
    return node.metadata.annotations.get(keys.NODE_LOCK, "")


async def holder(world: World) -> str:
    text = await lock_of(world)
    return nodelock.decode(text).pod if text else ""


def binding(scheduler: Scheduler, pod: Pod) -> asyncio.Task[str]:
    asked(scheduler, pod)
    return asyncio.create_task(scheduler.bind(ref(pod), "n1"))


async def succeeded(world: World, pod: Pod) -> None:
    await world.say(AllocationSucceeded(pod=ref(pod), node="n1"), f"{pod.metadata.uid}/success")


@story
async def test_the_lock_is_held_from_bind_until_the_devices_are_handed_out(world: World) -> None:
    await world.node("n1", mode="envvar")
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        before = cluster.calls.copy()
        assert await place(scheduler, pod) == "n1"
        assert await holder(world) == "p1"
        await succeeded(world, pod)
        assert await lock_of(world) == ""
        made = cluster.calls - before
        assert {call: count for call, count in made.items() if call[1] != "events"} == {("bind", "pods"): 1, ("patch", "nodes"): 2}


@pytest.mark.example("node lock 82")
@pytest.mark.departs("a contended lock is waited for in order of arrival, whoever asks; nothing is tried again from the start")
@story
async def test_waiters_get_the_node_in_order_of_arrival_and_the_lock_passes_on_in_one_write(world: World) -> None:
    await world.node("n1", mode="envvar")
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=2000) for number in range(5)]
        tasks = [binding(scheduler, pod) for pod in pods]
        await settle()
        patches = cluster.calls["patch", "nodes"]
        for number, pod in enumerate(pods):
            await settle()
            assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (4 - number)
            assert await holder(world) == pod.metadata.name
            await succeeded(world, pod)
        assert [await task for task in tasks] == [""] * 5
        assert await lock_of(world) == ""
        assert cluster.calls["patch", "nodes"] - patches == 5


@pytest.mark.parametrize("how", ["failed event", "success annotation", "pod failed", "pod deleted"])
@story
async def test_whatever_ends_the_holders_wait_frees_the_node(world: World, how: str) -> None:
    await world.node("n1", mode="envvar")
    async with world.scheduler() as scheduler:
        first, second = [await world.pod(name, gpu=1, gpumem=2000) for name in ("p1", "p2")]
        await place(scheduler, first)
        task = binding(scheduler, second)
        await settle()
        assert not task.done()
        match how:
            case "failed event":
                await world.say(AllocationFailed(pod=ref(first), node="n1", reason="no"), "f")
            case "success annotation":
                await world.admin.patch(api.PODS, "p1", {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}, namespace="default")
            case "pod failed":
                await world.finish(first, "Failed")
            case _:
                await world.delete(first)
        await settle()
        assert task.done()
        assert await task == ""
        assert await holder(world) == "p2"


@pytest.mark.example("node lock 77")
@pytest.mark.example("node lock 83")
@pytest.mark.departs("a lock that is held is waited for up to the bind's time-out; the error then names who holds it")
@story
async def test_a_waiter_that_is_too_late_is_told_who_holds_the_node_and_holds_nothing(world: World) -> None:
    await world.node("n1", mode="envvar")
    async with world.scheduler(options=Options(bind_timeout_seconds=5.0)) as scheduler:
        first, second = [await world.pod(name, gpu=1, gpumem=2000) for name in ("p1", "p2")]
        await place(scheduler, first)
        error = await binding(scheduler, second)
        assert "default/p1" in error
        assert used_mib(scheduler) == 2000
        assert await holder(world) == "p1"
        await succeeded(world, first)
        assert await lock_of(world) == ""


@story
async def test_a_pod_deleted_while_it_stands_in_line_leaves_no_lock(world: World) -> None:
    await world.node("n1", mode="envvar")
    async with world.scheduler() as scheduler:
        first, second = [await world.pod(name, gpu=1, gpumem=2000) for name in ("p1", "p2")]
        await place(scheduler, first)
        task = binding(scheduler, second)
        await settle()
        await world.delete(second)
        await succeeded(world, first)
        assert await task != ""
        await settle()
        assert await lock_of(world) == ""
        assert used_mib(scheduler) == 2000


@story
async def test_a_binding_that_fails_gives_the_lock_back(world: World) -> None:
    await world.node("n1", mode="envvar")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        asked(scheduler, pod)
        await world.admin.bind(ref(pod), "n2", annotations={}, labels={})
        error = await scheduler.bind(ref(pod), "n1")
        assert error
        await settle()
        assert await lock_of(world) == ""


@story
async def test_a_lock_of_another_scheduler_is_waited_for_and_its_removal_wakes(world: World) -> None:
    theirs = nodelock.encode(NodeLock(time=TIME, namespace="default", pod="theirs"))
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: theirs})
    await world.pod("theirs", gpu=1)
    async with world.scheduler() as scheduler:
        task = binding(scheduler, await world.pod("p1", gpu=1, gpumem=2000))
        await asyncio.sleep(3.0)
        assert not task.done()
        await world.admin.patch(api.NODES, "n1", {"metadata": {"annotations": {keys.NODE_LOCK: None}}})
        await settle()
        assert await task == ""
        assert await holder(world) == "p1"


@pytest.mark.example("node lock 78")
@story
async def test_a_lock_of_a_pod_that_is_gone_is_taken_over_at_once(world: World) -> None:
    dangling = nodelock.encode(NodeLock(time=TIME, namespace="default", pod="gone"))
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: dangling})
    async with world.scheduler() as scheduler:
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=2000)) == "n1"
        assert await holder(world) == "p1"


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "rubbish", "a,b", "2026-01-01T00:00:00Z,default,theirs"])
@story
async def test_a_lock_that_does_not_change_is_taken_over_in_the_end(world: World, text: str) -> None:
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: text})
    theirs = await world.pod("theirs", gpu=1)
    await world.admin.bind(ref(theirs), "n1", annotations={keys.BIND_PHASE: "allocating", ALLOCATED: "GPU-other,NVIDIA,1,0:;"}, labels={})
    async with world.scheduler(options=Options(lock_expiry_seconds=20.0)) as scheduler:
        before = world.clock.monotonic()
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=2000)) == "n1"
        assert 20.0 <= world.clock.monotonic() - before < 22.0


@story
async def test_a_lock_left_by_a_scheduler_that_died_before_the_binding_delays_others_for_ten_seconds(world: World) -> None:
    left = nodelock.encode(NodeLock(time=TIME, namespace="default", pod="unlucky"))
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: left})
    await world.pod("unlucky", gpu=1, gpumem=2000)
    async with world.scheduler() as scheduler:
        before = world.clock.monotonic()
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=2000)) == "n1"
        assert 10.0 <= world.clock.monotonic() - before < 12.0


@story
async def test_a_lock_left_by_our_own_earlier_process_is_ours(world: World) -> None:
    await world.node("n1", mode="envvar")
    pod = await world.pod("p1", gpu=1, gpumem=2000)
    left = nodelock.encode(NodeLock(time=TIME, namespace="default", pod="p1"))
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: left})
    async with world.scheduler() as scheduler:
        assert await place(scheduler, pod) == "n1"
        assert await lock_of(world) == left
        await succeeded(world, pod)
        assert await lock_of(world) == ""


@story
async def test_a_lock_is_released_after_a_restart_when_its_pod_is_served(world: World) -> None:
    await world.node("n1", mode="envvar")
    pod = await world.pod("p1", gpu=1, gpumem=2000)
    async with world.scheduler() as scheduler:
        assert await place(scheduler, pod) == "n1"
    assert await holder(world) == "p1"
    async with world.scheduler():
        assert await holder(world) == "p1"
        await succeeded(world, pod)
        assert await lock_of(world) == ""


@story
async def test_a_lock_whose_pod_was_served_while_nobody_watched_is_removed_at_the_start_by_the_leader_alone(world: World) -> None:
    await world.node("n1", mode="envvar")
    pod = await world.pod("p1", gpu=1, gpumem=2000)
    async with world.scheduler() as scheduler:
        assert await place(scheduler, pod) == "n1"
    await world.admin.patch(api.PODS, "p1", {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}, namespace="default")
    assert await holder(world) == "p1"
    follower = MemoryCluster(world.store)
    async with world.scheduler(cluster=MemoryCluster(world.store), elect="s1"), world.scheduler(cluster=follower, elect="s2"):
        await asyncio.sleep(3.0)
        assert await lock_of(world) == ""
        assert follower.calls["patch", "nodes"] == 0


@story
async def test_a_lock_is_removed_once_the_api_server_is_back(world: World) -> None:
    await world.node("n1", mode="envvar")
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert await place(scheduler, pod) == "n1"
        cluster.down()
        await succeeded(world, pod)
        await asyncio.sleep(20.0)
        assert await holder(world) == "p1"
        cluster.up()
        await asyncio.sleep(5.0)
        assert await lock_of(world) == ""


@pytest.mark.example("node lock 76")
@story
async def test_two_schedulers_never_hold_a_node_together(world: World) -> None:
    """Compare-and-set: the second one waits although both saw the node free."""
    await world.node("n1", mode="envvar")
    async with world.scheduler() as one, world.scheduler() as two:
        first, second = [await world.pod(name, gpu=1, gpumem=2000) for name in ("p1", "p2")]
        tasks = [binding(one, first), binding(two, second)]
        await asyncio.sleep(1.0)
        assert sum(task.done() for task in tasks) == 1
        winner, loser = (first, second) if tasks[0].done() else (second, first)
        assert await holder(world) == winner.metadata.name
        await world.admin.patch(
            api.PODS, winner.metadata.name, {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}, namespace="default"
        )
        await asyncio.sleep(1.0)
        assert await holder(world) == loser.metadata.name
        assert [await task for task in tasks] == ["", ""]


@story
async def test_a_late_word_on_an_earlier_pod_of_the_name_leaves_the_later_ones_lock(world: World) -> None:
    await world.node("n1", mode="envvar")
    async with world.scheduler() as scheduler:
        earlier = await world.pod("p1", gpu=1, gpumem=2000)
        assert await place(scheduler, earlier) == "n1"
        await world.delete(earlier)
        await asyncio.sleep(12.0)
        later = await world.pod("p1", gpu=1, gpumem=3000)
        assert await place(scheduler, later) == "n1"
        assert await holder(world) == "p1"
        await succeeded(world, earlier)
        await world.say(PodReleased(pod=ref(earlier), node="n1"), "late", by_agent=True)
        await asyncio.sleep(1.0)
        assert await holder(world) == "p1"
        await succeeded(world, later)
        assert await lock_of(world) == ""

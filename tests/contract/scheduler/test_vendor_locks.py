"""Binding to nodes whose device plugin keeps a lock of its own: Cambricon's, a bare time that names nobody."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from hami_devices.vendors.cambricon import LOCK
from hami_protocol import keys, nodelock, registration
from hami_protocol.kubernetes import Pod
from hami_protocol.nodelock import NodeLock
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from tests.builders import a_device
from tests.contract.scheduler.test_node_lock import binding, succeeded
from tests.contract.scheduler.world import World, place, ref, settle, story

MLU, MEMORY, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
LISTED = {
    keys.register("mlu"): registration.encode_text((a_device("mlu-0", memory_mib=40960, type="MLU"),)),
    keys.ALLOCATION_MODE: None,
}
"""As a vendor's own plugin registers; our agent is not on the node."""

ALLOCATED = "hami.io/vgpu-devices-allocated"


async def mlu_node(world: World, lock: str | None = None) -> None:
    await world.node("n1", annotations=LISTED if lock is None else {**LISTED, LOCK.key: lock})


async def mlu_pod(world: World, name: str, *, gpu: bool = False) -> Pod:
    limits = {MLU: "1", MEMORY: "4", CORES: "10"} | ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"} if gpu else {})
    return await world.pod(name, spec={"containers": [{"name": "main", "resources": {"limits": limits}}]})


async def locks_of(world: World) -> tuple[str, str]:
    """The vendor's lock and the protocol's."""
    annotations = (await world.admin.get(api.NODES, "n1")).metadata.annotations
    return annotations.get(LOCK.key, ""), annotations.get(keys.NODE_LOCK, "")


async def remove_lock(world: World) -> None:
    await world.admin.patch(api.NODES, "n1", {"metadata": {"annotations": {LOCK.key: None}}})


@story
async def test_its_pods_take_the_vendors_lock_and_leave_the_protocols_alone(world: World) -> None:
    await mlu_node(world)
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pod = await mlu_pod(world, "p1")
        before = cluster.calls.copy()
        assert await place(scheduler, pod) == "n1"
        own, shared = await locks_of(world)
        assert nodelock.decode(own).pod == ""
        assert shared == ""
        await succeeded(world, pod)
        assert await locks_of(world) == ("", "")
        made = cluster.calls - before
        assert {call: count for call, count in made.items() if call[0] != "get" and call[1] != "events"} == {
            ("bind", "pods"): 1,
            ("patch", "nodes"): 2,
        }


@story
async def test_the_plugin_takes_the_lock_away_and_the_next_pod_goes_on(world: World) -> None:
    await mlu_node(world)
    async with world.scheduler() as scheduler:
        pods = [await mlu_pod(world, f"p{number}") for number in range(3)]
        tasks = [binding(scheduler, pod) for pod in pods]
        for number in range(3):
            await settle()
            assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (2 - number)
            await remove_lock(world)
        assert [await task for task in tasks] == ["", "", ""]


@story
async def test_a_pod_that_holds_cards_of_two_vendors_takes_both_locks_and_gives_both_back(world: World) -> None:
    await mlu_node(world)
    async with world.scheduler() as scheduler:
        pod = await mlu_pod(world, "p1", gpu=True)
        assert await place(scheduler, pod) == "n1"
        own, shared = await locks_of(world)
        assert own
        assert nodelock.decode(shared).pod == "p1"
        await succeeded(world, pod)
        assert await locks_of(world) == ("", "")


@pytest.mark.example("node lock 81")
@story
async def test_where_the_second_lock_cannot_be_had_the_first_is_given_back(world: World) -> None:
    theirs = nodelock.encode(NodeLock(time=datetime(2026, 1, 1, tzinfo=UTC), namespace="default", pod="theirs"))
    await world.node("n1", annotations={**LISTED, keys.NODE_LOCK: theirs})
    other = await world.pod("theirs", gpu=1)
    await world.admin.bind(ref(other), "n1", annotations={keys.BIND_PHASE: "allocating", ALLOCATED: "GPU-other,NVIDIA,1,0:;"}, labels={})
    async with world.scheduler() as scheduler:
        error = await binding(scheduler, await mlu_pod(world, "p1", gpu=True))
        assert "default/theirs" in error
        await settle()
        assert await locks_of(world) == ("", theirs)


@pytest.mark.example("Cambricon 484 old")
@pytest.mark.departs("a lock's age is how long this process has seen it unchanged: two machines' clocks are never compared")
@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "rubbish"])
@story
async def test_a_lock_that_nobody_removes_is_taken_over_after_two_minutes(world: World, text: str) -> None:
    await mlu_node(world, lock=text)
    async with world.scheduler() as scheduler:
        await asyncio.sleep(LOCK.expiry_seconds - 5.0)  # before that a bind would only time out
        before = world.clock.monotonic()
        assert await place(scheduler, await mlu_pod(world, "p1")) == "n1"
        assert 1.0 <= world.clock.monotonic() - before < 8.0
        assert (await locks_of(world))[0] != text


@pytest.mark.example("node lock 80")
@story
async def test_a_lock_of_somebody_else_is_never_released_by_a_pod_of_ours(world: World) -> None:
    """The reference deletes it for any pod whose Binding fails."""
    fresh = nodelock.encode(NodeLock(time=world.clock.utc() + timedelta(hours=3)))
    await mlu_node(world, lock=fresh)
    async with world.scheduler() as scheduler:
        pod = await mlu_pod(world, "p1")
        error = await binding(scheduler, pod)
        assert "n1 is locked by somebody" in error
        await world.delete(pod)
        await settle()
        assert await locks_of(world) == (fresh, "")


@pytest.mark.departs("written by compare-and-set on a fresh node: two pods never both win")
@story
async def test_two_schedulers_never_both_win_it(world: World) -> None:
    await mlu_node(world)
    async with world.scheduler() as one, world.scheduler() as two:
        first, second = [await mlu_pod(world, name) for name in ("p1", "p2")]
        tasks = [binding(one, first), binding(two, second)]
        await asyncio.sleep(1.0)
        assert sum(task.done() for task in tasks) == 1
        await remove_lock(world)
        await asyncio.sleep(1.0)
        assert [await task for task in tasks] == ["", ""]

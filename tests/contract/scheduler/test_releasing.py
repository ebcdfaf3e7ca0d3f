"""What frees room, what does not, and who is told (HAMi#2723, HAMi#2923, HAMi#1368)."""

import asyncio

import pytest

from hami_protocol.events import AssignmentLapsed, PodReleased
from hami_protocol.pods import pod_ref
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from tests.builders import a_device
from tests.contract.scheduler.faults import Fault, FaultyCluster
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

ROOM_CHANGED = "hami.io/RoomChanged"


async def woken(world: World, name: str) -> bool:
    pod = await world.admin.get(api.PODS, name, namespace="default")
    return any(condition.type == ROOM_CHANGED for condition in pod.status.conditions or ())


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@story
async def test_a_pod_that_ended_frees_its_room_and_the_scheduler_says_so_if_the_agent_has_not(world: World, phase: str) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        await place(scheduler, pod)
        await world.finish(pod, phase)
        assert used_mib(scheduler) == 0
        assert ("PodReleased", "p1") not in world.said()
        await asyncio.sleep(12.0)
        assert world.said()[-1] == ("PodReleased", "p1")


@story
async def test_a_release_that_the_agent_has_said_is_not_said_again(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first, second = [await world.pod(name, gpu=1, gpumem=2000) for name in ("p1", "p2")]
        await place(scheduler, first)
        await place(scheduler, second)
        await world.say(PodReleased(pod=ref(first), node="n1"), "agent/1", by_agent=True)
        await world.finish(first)
        await world.finish(second)
        await world.say(PodReleased(pod=ref(second), node="n1"), "agent/2", by_agent=True)
        await asyncio.sleep(15.0)
        assert [kind for kind, _ in world.said()].count("PodReleased") == 2


@story
async def test_a_pod_deleted_while_the_watch_was_broken_frees_its_room(world: World) -> None:
    await world.node("n1", *(a_device(f"GPU-{card}") for card in range(8)))
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pod = await world.pod("p1", gpu=8)
        await place(scheduler, pod)
        assert used_mib(scheduler) == 8 * 24576
        cluster.down()
        await world.delete(pod)
        world.store.compact()
        assert used_mib(scheduler) == 8 * 24576
        cluster.up()
        await asyncio.sleep(15.0)
        assert used_mib(scheduler) == 0
        assert await place(scheduler, await world.pod("p2", gpu=8)) == "n1"


@story
async def test_a_namesake_made_while_the_watch_was_broken_is_another_pod(world: World) -> None:
    await world.node("n1")
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=20000)
        await place(scheduler, first)
        cluster.down()
        await world.delete(first)
        second = await world.pod("p1", gpu=1, gpumem=3000)
        record = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,3000,0:;"}
        await world.admin.bind(ref(second), "n1", annotations=record, labels={})
        cluster.up()
        await asyncio.sleep(15.0)
        assert used_mib(scheduler) == 3000
        scheduler.picture.pod_changed(first, None)
        assert used_mib(scheduler) == 3000


@story
async def test_a_reservation_lapses_when_kube_scheduler_has_given_the_pod_up(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        asked(scheduler, pod)
        refused = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "a volume plugin failed"}
        await world.admin.patch_conditions(ref(pod), [refused])
        await asyncio.sleep(29.0)
        assert used_mib(scheduler) == 20000
        await asyncio.sleep(2.5)
        assert used_mib(scheduler) == 0
        lapsed = world.log()[-1]
        assert isinstance(lapsed, AssignmentLapsed)
        assert lapsed.reason == "not bound in time"


@story
async def test_a_reservation_lives_through_a_slow_volume_and_is_used_at_bind(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        asked(scheduler, pod)
        await asyncio.sleep(200.0)
        assert used_mib(scheduler) == 20000
        assert await scheduler.bind(ref(pod), "n1") == ""
        await settle()
    assert world.said() == [("PodAssigned", "p1"), ("PodAllocating", "p1")]


@story
async def test_filtering_again_moves_the_reservation_at_once(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        assert asked(scheduler, pod, "n1").node_names == ["n1"]
        assert asked(scheduler, pod, "n2").node_names == ["n2"]
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (0, 20000)
        assert asked(scheduler, pod, "n9").node_names is None
        assert used_mib(scheduler, "n2") == 0
        await settle()
    assert [kind for kind, _ in world.said()] == ["PodAssigned", "AssignmentLapsed", "PodAssigned", "AssignmentLapsed"]


@story
async def test_a_refused_pod_is_woken_by_a_release_that_its_last_filter_had_not_seen(world: World) -> None:
    """HAMi#1368: kube-scheduler's own retry came before our watch had seen the end of the first pod."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=20000)
        await place(scheduler, first)
        waiting = await world.pod("p2", gpu=1, gpumem=20000)
        assert asked(scheduler, waiting).failed
        await world.finish(first)
        assert not await woken(world, "p2")
        await asyncio.sleep(1.2)
        assert await woken(world, "p2")
        assert await place(scheduler, waiting) == "n1"


@story
async def test_a_pod_whose_retry_has_seen_the_release_is_left_alone(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=20000)
        await place(scheduler, first)
        waiting = await world.pod("p2", gpu=1, gpumem=24000)
        assert asked(scheduler, waiting).failed
        await world.finish(first)
        assert asked(scheduler, waiting).node_names == ["n1"]
        await asyncio.sleep(5.0)
        assert not await woken(world, "p2")


@story
async def test_a_lapsed_reservation_wakes_who_waits_for_it(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=20000)
        asked(scheduler, first)
        waiting = await world.pod("p2", gpu=1, gpumem=20000)
        assert asked(scheduler, waiting).failed
        await world.delete(first)
        await asyncio.sleep(1.2)
        assert await woken(world, "p2")


@story
async def test_room_for_one_wakes_one_of_many(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first = await world.pod("p0", gpu=1, gpumem=20000)
        await place(scheduler, first)
        names = [f"w{number}" for number in range(10)]
        for name in names:
            assert asked(scheduler, await world.pod(name, gpu=1, gpumem=20000)).failed
        await world.finish(first)
        await asyncio.sleep(1.2)
        assert [await woken(world, name) for name in names] == [True] + [False] * 9


@story
async def test_waking_is_tried_again_when_the_api_server_fails(world: World) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=20000)
        await place(scheduler, first)
        assert asked(scheduler, await world.pod("p2", gpu=1, gpumem=20000)).failed
        cluster.faults.extend([Fault(api.Unavailable("overloaded", code=503))] * 4)
        await world.finish(first)
        await asyncio.sleep(5.0)
        assert await woken(world, "p2")


@story
async def test_the_end_of_the_init_containers_lets_the_next_pod_in(world: World) -> None:
    """HAMi#2723: 8000 MiB are free only when the ordinary init container is over; 9000 never are."""
    await world.node("n1", a_device("GPU-A", memory_mib=40960))
    async with world.scheduler() as scheduler:

        def container(name: str, memory_mib: int, **more: str) -> dict[str, object]:
            limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
            return {"name": name, "image": "pause", "resources": {"limits": limits}, **more}

        inits = [container("side", 16000, restartPolicy="Always"), container("init", 20000)]
        pod = await world.pod("p1", spec={"initContainers": inits, "containers": [container("app", 16000)]})
        assert await place(scheduler, pod) == "n1"
        assert used_mib(scheduler) == 36000
        small, large = [await world.pod(f"m{mib}", gpu=1, gpumem=mib) for mib in (8000, 9000)]
        assert asked(scheduler, small).failed
        assert asked(scheduler, large).failed
        statuses = [{"name": "side", "state": {"terminated": {"exitCode": 0}}}, {"name": "init", "state": {"running": {}}}]
        await world.admin.patch(
            api.PODS, "p1", {"status": {"phase": "Pending", "initContainerStatuses": statuses}}, namespace="default", subresource="status"
        )
        await settle()
        assert used_mib(scheduler) == 36000
        statuses[1] = {"name": "init", "state": {"terminated": {"exitCode": 0}}}
        await world.admin.patch(
            api.PODS, "p1", {"status": {"phase": "Running", "initContainerStatuses": statuses}}, namespace="default", subresource="status"
        )
        await asyncio.sleep(1.2)
        assert used_mib(scheduler) == 32000
        assert await woken(world, "m8000")
        assert not await woken(world, "m9000")
        assert await place(scheduler, small) == "n1"
        assert asked(scheduler, large).failed


@story
async def test_a_terminating_pod_keeps_its_room_until_it_is_over(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        await place(scheduler, pod)
        await world.admin.delete(api.PODS, "p1", namespace="default", grace_seconds=30)
        await settle()
        assert (await world.get(pod)).metadata.deletion_timestamp is not None
        assert used_mib(scheduler) == 20000
        await world.delete(pod)
        assert used_mib(scheduler) == 0
        assert pod_ref(pod).uid == pod.metadata.uid

"""The API server was restored from an older backup: it has forgotten pods that the bus knows, and has pods again that had gone."""

import asyncio
import copy

from hami_protocol.events import AllocationSucceeded, PodReleased
from hami_runtime.kube.memory import MemoryCluster
from tests.contract.scheduler.world import World, place, ref, story, used_mib


@story
async def test_a_restarted_scheduler_charges_what_the_backup_says_and_grants_of_the_bus_that_belong_to_no_pod_change_nothing(
    world: World,
) -> None:
    await world.node("n1")
    kept, gone = [await world.pod(name, gpu=1, gpumem=4000) for name in ("kept", "gone")]
    async with world.scheduler() as scheduler:
        for pod in (kept, gone):
            assert await place(scheduler, pod) == "n1"
            await world.say(AllocationSucceeded(pod=ref(pod), node="n1"), f"s-{pod.metadata.name}")
    backup = copy.deepcopy(world.store)
    async with world.scheduler() as scheduler:
        await world.delete(gone)
        later = await world.pod("later", gpu=1, gpumem=8000)
        assert await place(scheduler, later) == "n1"
        await asyncio.sleep(2.0)
        assert used_mib(scheduler) == 12_000
    world.store, world.admin = backup, MemoryCluster(backup)
    async with world.scheduler() as scheduler:
        await asyncio.sleep(5.0)
        assert {entry.pod.name for entry in scheduler.picture.state.entries()} == {"kept", "gone"}
        assert used_mib(scheduler) == 8000
        namesake = await world.pod("later", gpu=1, gpumem=2000)
        assert await place(scheduler, namesake) == "n1"
        await asyncio.sleep(2.0)
        assert used_mib(scheduler) == 10_000
        for pod in (kept, gone, namesake):
            await world.delete(pod)
        await asyncio.sleep(60.0)
        assert used_mib(scheduler) == 0
    released = [event.pod for event in world.log() if isinstance(event, PodReleased)]
    assert {ref(pod) for pod in (kept, gone, later, namesake)} == set(released)
    assert len(released) == len(set(released))

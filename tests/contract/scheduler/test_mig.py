"""MIG instances from filter to the annotation inside the Binding, and back after a restart."""

import msgspec

from hami_protocol import keys, mig, registration
from hami_protocol.devices import MigInstance, MigProfile, Placement
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube import cluster as api
from hami_scheduler.metrics import MigCollector
from tests.builders import a_device
from tests.contract.scheduler.world import World, asked, place, settle, story, used_mib

PROFILES = (
    MigProfile(name="1g.5gb", memory_mib=4992, cores=15, slice_count=1, placements=tuple(Placement(start=s, size=1) for s in range(7))),
    MigProfile(name="3g.20gb", memory_mib=19968, cores=43, slice_count=3, placements=tuple(Placement(start=s, size=4) for s in (0, 4))),
)
CARD = a_device("GPU-A", memory_mib=40960, shares=7, mode="mig", mig_profiles=PROFILES)
REGISTERED = {keys.register("nvidia"): registration.encode_json([CARD])}


@story
async def test_the_place_of_an_instance_is_written_in_the_binding_and_read_again_after_a_restart(world: World) -> None:
    await world.node("n1", annotations=REGISTERED)
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=19000)
        assert await place(scheduler, first) == "n1"
        annotations = (await world.get(first)).metadata.annotations
        assert annotations["hami.io/vgpu-devices-allocated"] == "GPU-A,NVIDIA,19968,43:;"
        (allocation,) = mig.decode(annotations[keys.MIG_ALLOCATIONS])
        assert allocation.instance == MigInstance(profile="3g.20gb", placement=Placement(start=4, size=4))
        assert used_mib(scheduler) == 19968
    async with world.scheduler() as scheduler:
        second = await world.pod("p2", gpu=1, gpumem=19000)
        assert await place(scheduler, second) == "n1"
        (allocation,) = mig.decode((await world.get(second)).metadata.annotations[keys.MIG_ALLOCATIONS])
        assert allocation.instance.placement.start == 0
        third = await world.pod("p3", gpu=1, gpumem=1)
        assert asked(scheduler, third).failed == {"n1": "1/1 CardMigTopologyInfeasible"}
        await world.delete(first)
        assert await place(scheduler, third) == "n1"


@story
async def test_a_card_with_a_share_whose_place_nobody_wrote_takes_no_more_and_an_unreadable_record_fences_the_node(world: World) -> None:
    await world.node("n1", annotations=REGISTERED)
    async with world.scheduler() as scheduler:
        placed = await world.pod("p1", gpu=1, gpumem=4000)
        assert await place(scheduler, placed) == "n1"
        for text, reason in (("", "1/1 CardNotHealth"), ("rubbish", "node has an unreadable record")):
            await world.admin.patch(api.PODS, "p1", {"metadata": {"annotations": {keys.MIG_ALLOCATIONS: text}}}, namespace="default")
            await settle()
            async with world.scheduler(bus=MemoryBus()) as restarted:  # with the log, its grant there would count
                assert asked(restarted, await world.pod(f"next-{len(text)}", gpu=1, gpumem=1)).failed == {"n1": reason}


@story
async def test_an_instance_is_shown_once_its_agent_has_made_it(world: World) -> None:
    await world.node("n1", annotations=REGISTERED)
    async with world.scheduler() as scheduler:
        placed = await world.pod("p1", gpu=1, gpumem=19000)
        assert await place(scheduler, placed) == "n1"
        collector = MigCollector(scheduler.picture, scheduler.pods.get)
        assert [family.samples for family in collector.collect()] == [[], []]
        (allocation,) = mig.decode((await world.get(placed)).metadata.annotations[keys.MIG_ALLOCATIONS])
        made = msgspec.structs.replace(allocation, identity=mig.MigIdentity(uuid="MIG-1", gpu_instance=2, compute_instance=0))
        for text, shown in ((mig.encode((made,)), 1), ("rubbish", 0)):
            await world.admin.patch(api.PODS, "p1", {"metadata": {"annotations": {keys.MIG_ALLOCATIONS: text}}}, namespace="default")
            await settle()
            new, old = collector.collect()
            assert [len(new.samples), len(old.samples)] == [shown, shown]
            if shown:
                assert new.samples[0].labels == {
                    "zone": "vGPU",
                    "node": "n1",
                    "device_uuid": "GPU-A",
                    "device_index": "0",
                    "mig_uuid": "MIG-1",
                    "profile": "3g.20gb",
                    "gpu_instance_id": "2",
                    "compute_instance_id": "0",
                    "placement_start": "4",
                    "placement_size": "4",
                }
                assert old.samples[0].labels["migname"] == "3g.20gb-2"

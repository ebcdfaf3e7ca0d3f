"""Bind when the API server refuses, answers late, or not at all: one node charged, exactly, in the end (HAMi#987, HAMi#1896)."""

import asyncio

import pytest

from hami_protocol.events import AssignmentLapsed
from hami_runtime.kube import cluster as api
from hami_scheduler.service import Options
from tests.contract.scheduler.faults import Fault, FaultyCluster, conflict, lost_answer, lost_request, overloaded
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

SHORT = Options(bind_timeout_seconds=3.0)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([overloaded()], id="503, then well"),
        pytest.param([lost_answer()], id="took effect, answer lost"),
        pytest.param([lost_request()], id="did not take effect, answer lost"),
        pytest.param([lost_request(), lost_answer()], id="lost, then lost after it took effect"),
        pytest.param([conflict()], id="a conflict that is none"),
        pytest.param([Fault(api.TooManyRequests("later", retry_after_seconds=0.5))], id="429"),
        pytest.param([overloaded()] * 4, id="four times 503"),
    ],
)
@story
async def test_a_fault_that_passes_ends_with_the_pod_bound_once(world: World, faults: list[Fault]) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        cluster.faults.extend(faults)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert await place(scheduler, pod) == "n1"
        assert (await world.get(pod)).spec.node_name == "n1"
        assert used_mib(scheduler) == 2000
    assert world.said() == [("PodAssigned", "p1"), ("PodAllocating", "p1")]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(api.Forbidden("no", code=403)), id="403"),
        pytest.param(Fault(api.Invalid("no", code=422)), id="422"),
        pytest.param(Fault(api.NotFound("gone", code=404)), id="404"),
    ],
)
@story
async def test_a_binding_that_is_refused_is_undone_exactly_and_may_be_tried_again(world: World, fault: Fault) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        cluster.faults.append(fault)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert str(fault.error) in await place(scheduler, pod)
        assert used_mib(scheduler) == 0
        assert isinstance(world.log()[-1], AssignmentLapsed)
        assert await place(scheduler, pod) == "n1"
        assert used_mib(scheduler) == 2000
    assert world.said() == [("PodAssigned", "p1"), ("AssignmentLapsed", "p1"), ("PodAssigned", "p1"), ("PodAllocating", "p1")]


@story
async def test_a_server_that_stays_away_costs_the_deadline_and_nothing_else(world: World) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster, options=SHORT) as scheduler:
        cluster.faults.extend([overloaded()] * 100)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        before = world.clock.monotonic()
        assert "overloaded" in await place(scheduler, pod)
        assert world.clock.monotonic() - before < 3.1
        assert used_mib(scheduler) == 0
        cluster.faults.clear()
        assert await place(scheduler, pod) == "n1"


@story
async def test_while_nobody_knows_whether_it_is_bound_the_pod_keeps_its_room_and_gets_no_other_node(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster, options=SHORT) as scheduler:
        cluster.faults.extend([lost_request()] * 100)
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        assert "not known yet" in await place(scheduler, pod, "n1")
        assert used_mib(scheduler) == 20000
        assert "not known yet" in asked(scheduler, pod, "n2").error
        assert asked(scheduler, pod, "n1", "n2").node_names == ["n1"]
        other = await world.pod("p2", gpu=1, gpumem=20000)
        assert asked(scheduler, other, "n1").failed == {"n1": "1/1 CardInsufficientMemory"}
        cluster.faults.clear()
        assert await scheduler.bind(ref(pod), "n1") == ""
        assert used_mib(scheduler) == 20000
    assert ("PodAllocating", "p1") in world.said()
    assert ("AssignmentLapsed", "p1") not in world.said()


@story
async def test_a_late_binding_is_found_and_granted(world: World) -> None:
    """The Binding took effect after kube-scheduler and we had given up."""
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster, options=SHORT) as scheduler:
        cluster.faults.extend([lost_request()] * 100)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert "not known yet" in await place(scheduler, pod)
        (opened,) = scheduler._binder._open.values()
        written = opened.binding
        await world.admin.bind(written.pod, written.node, annotations=written.annotations, labels=written.labels)
        await asyncio.sleep(2.0)
        assert used_mib(scheduler) == 2000
        assert scheduler._binder.open_node(pod.metadata.uid) is None
        await settle()
    assert world.said()[-1] == ("PodAllocating", "p1")


@story
async def test_a_binding_that_never_takes_effect_is_given_up_in_the_end(world: World) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster, options=SHORT) as scheduler:
        cluster.faults.extend([lost_request()] * 100)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert "not known yet" in await place(scheduler, pod)
        await asyncio.sleep(59.0)
        assert used_mib(scheduler) == 2000
        await asyncio.sleep(3.0)
        assert used_mib(scheduler) == 0
        cluster.faults.clear()
        assert await place(scheduler, pod) == "n1"


@story
async def test_a_pod_that_is_deleted_while_it_is_being_bound_holds_nothing(world: World) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        cluster.hold = asyncio.Event()
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, pod).node_names == ["n1"]
        binding = asyncio.create_task(scheduler.bind(ref(pod), "n1"))
        await settle()
        await world.delete(pod)
        assert used_mib(scheduler) == 0
        cluster.hold.set()
        assert await binding != ""
        assert used_mib(scheduler) == 0
        await settle()
    assert world.said() == [("PodAssigned", "p1"), ("AssignmentLapsed", "p1")]


@story
async def test_a_second_bind_while_one_is_under_way_gets_the_same_answer(world: World) -> None:
    await world.node("n1")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        cluster.hold = asyncio.Event()
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        asked(scheduler, pod)
        first = asyncio.create_task(scheduler.bind(ref(pod), "n1"))
        await settle()
        second = asyncio.create_task(scheduler.bind(ref(pod), "n1"))
        await settle()
        assert "being bound" in asked(scheduler, pod).error
        cluster.hold.set()
        assert [await first, await second] == ["", ""]
        assert cluster.calls["bind", "pods"] == 1
        assert used_mib(scheduler) == 2000


@story
async def test_a_pod_bound_by_another_hand_is_charged_where_it_is(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        cluster.hold = asyncio.Event()
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        asked(scheduler, pod)
        binding = asyncio.create_task(scheduler.bind(ref(pod), "n1"))
        await settle()
        record = {"hami.io/vgpu-node": "n2", "hami.io/vgpu-devices-allocated": "GPU-n2,NVIDIA,3000,0:;"}
        await world.admin.bind(ref(pod), "n2", annotations=record, labels={})
        cluster.hold.set()
        assert "by another hand" in await binding
        await settle()
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (0, 3000)


@story
async def test_bind_without_a_reservation_fits_again(world: World) -> None:
    """After a restart, or when the reservation has lapsed."""
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=2000)
    async with world.scheduler() as scheduler:
        assert await scheduler.bind(ref(pod), "n1") == ""
        assert used_mib(scheduler) == 2000
        big = await world.pod("p2", gpu=1, gpumem=23000)
        assert "CardInsufficientMemory" in await scheduler.bind(ref(big), "n1")
        assert "cannot be read" in await scheduler.bind(ref(big).__class__(namespace="default", name="nobody", uid="u"), "n1")
        assert "another of its name" in await scheduler.bind(ref(big).__class__(namespace="default", name="p2", uid="u"), "n1")


@story
async def test_bind_on_another_node_than_filter_chose_moves_the_reservation(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, pod, "n1").node_names == ["n1"]
        assert await scheduler.bind(ref(pod), "n2") == ""
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (0, 2000)
        await settle()
    assert [kind for kind, _ in world.said()] == ["PodAssigned", "AssignmentLapsed", "PodAssigned", "PodAllocating"]

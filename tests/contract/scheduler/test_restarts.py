"""Restart, change of leader, and a bus that is away: the ledger is exact, and the log complete, once and in order (HAMi#987)."""

import asyncio

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import envelope, keys, subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.envelope import EVENT_ID, Message
from hami_protocol.events import AllocationSucceeded, DevicesReported, LivenessChanged, PodReleased
from hami_runtime.bus import BusUnavailable
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from hami_scheduler.allocations import RESTARTED
from hami_scheduler.service import Scheduler
from tests.builders import a_device
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

RECORD = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,3000,0:;"}


@story
async def test_a_restarted_scheduler_knows_what_every_pod_holds(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    pods = [await world.pod(f"p{number}", gpu=1, gpumem=1000 * (number + 1)) for number in range(4)]
    async with world.scheduler() as scheduler:
        for pod in pods:
            await place(scheduler, pod, "n1", "n2")
        before = {entry.pod.name: (entry.node, entry.held) for entry in scheduler.picture.state.entries()}
    assert len(before) == 4
    async with world.scheduler() as scheduler:
        assert {entry.pod.name: (entry.node, entry.held) for entry in scheduler.picture.state.entries()} == before


@story
async def test_a_reservation_of_before_a_restart_is_charged_nowhere_and_has_lapsed(world: World) -> None:
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=20000)
    async with world.scheduler() as scheduler:
        assert asked(scheduler, pod).node_names == ["n1"]
        await settle()
    async with world.scheduler() as scheduler:
        assert used_mib(scheduler) == 0
        await asyncio.sleep(3.0)
        lapsed = world.log()[-1]
        assert type(lapsed).__name__ == "AssignmentLapsed"
        assert lapsed.reason == RESTARTED  # type: ignore[union-attr]
        assert await place(scheduler, pod) == "n1"


@story
async def test_a_restart_between_reservation_and_bind_charges_one_node(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    pod = await world.pod("p1", gpu=1, gpumem=20000)
    async with world.scheduler() as scheduler:
        assert asked(scheduler, pod, "n1").node_names == ["n1"]
    async with world.scheduler() as scheduler:
        assert await scheduler.bind(ref(pod), "n1") == ""
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (20000, 0)


@story
async def test_a_pod_that_terminates_during_a_restart_stays_charged(world: World) -> None:
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=20000)
    async with world.scheduler() as scheduler:
        await place(scheduler, pod)
    await world.admin.delete(api.PODS, "p1", namespace="default", grace_seconds=30)
    async with world.scheduler() as scheduler:
        assert used_mib(scheduler) == 20000


@story
async def test_what_another_scheduler_assigned_is_charged(world: World) -> None:
    await world.node("n1")
    await world.pod("theirs", gpu=1, gpumem=3000, annotations=RECORD | {keys.BIND_PHASE: "allocating"})
    async with world.scheduler() as scheduler:
        assert used_mib(scheduler) == 3000


@story
async def test_placing_goes_on_without_the_bus_and_the_log_is_completed_in_order_once(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        world.bus.down()
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=1000) for number in range(5)]
        for pod in pods:
            assert await place(scheduler, pod) == "n1"
        assert world.said() == []
        world.bus.up()
        await asyncio.sleep(10.0)
    expected = [(kind, pod.metadata.name) for pod in pods for kind in ("PodAssigned", "PodAllocating")]
    assert world.said() == expected


@story
async def test_grants_lost_with_the_process_are_said_after_the_restart(world: World) -> None:
    await world.node("n1")
    pods = [await world.pod(f"p{number}", gpu=1, gpumem=1000) for number in range(3)]
    world.bus.down()
    async with world.scheduler() as scheduler:
        for pod in pods:
            assert await place(scheduler, pod) == "n1"
            await asyncio.sleep(1.0)
    world.bus.up()
    assert world.said() == []
    async with world.scheduler():
        await asyncio.sleep(5.0)
    assert world.said() == [(kind, pod.metadata.name) for pod in pods for kind in ("PodAssigned", "PodAllocating")]
    ids = [message.headers[EVENT_ID].split("/")[1] for message in world.bus.kept(subjects.ALLOCATIONS)]
    assert ids == ["assigned", "allocating"] * 3
    async with world.scheduler():
        await asyncio.sleep(5.0)
    assert len(world.said()) == 6


@story
async def test_a_pod_that_ended_while_nobody_watched_is_released_in_the_log(world: World) -> None:
    await world.node("n1")
    first, second = [await world.pod(name, gpu=1, gpumem=1000) for name in ("p1", "p2")]
    async with world.scheduler() as scheduler:
        await place(scheduler, first)
        await place(scheduler, second)
    await world.say(AllocationSucceeded(pod=ref(first), node="n1"), "s")
    await world.delete(first)
    await world.delete(second)
    await world.say(PodReleased(pod=ref(second), node="n1"), "agent", by_agent=True)
    async with world.scheduler():
        await asyncio.sleep(5.0)
    assert [name for kind, name in world.said() if kind == "PodReleased"] == ["p2", "p1"]


@story
async def test_a_follower_keeps_the_picture_in_silence_and_takes_over(world: World) -> None:
    await world.node("n1")
    first_client, second_client = MemoryCluster(world.store), MemoryCluster(world.store)
    async with world.scheduler(cluster=first_client, elect="s1") as first, world.scheduler(cluster=second_client, elect="s2") as second:
        await asyncio.sleep(2.0)
        assert (first.leads(), second.leads()) == (True, False)
        assert second.leader == "s1"
        assert second.unready() is None
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert "does not lead; s1 does" in asked(second, pod).error
        assert "does not lead" in await second.bind(ref(pod), "n1")
        assert await place(first, pod) == "n1"
        assert used_mib(second) == 2000
        first_client.down()
        await asyncio.sleep(10.0)
        assert (first.leads(), second.leads()) == (False, True)
        assert "lead" in asked(first, pod).error
        other = await world.pod("p2", gpu=1, gpumem=23000)
        assert asked(second, other).failed == {"n1": "1/1 CardInsufficientMemory"}
        small = await world.pod("p3", gpu=1, gpumem=1000)
        assert await place(second, small) == "n1"
    assert [name for kind, name in world.said() if kind == "PodAllocating"] == ["p1", "p3"]


@story
async def test_filter_and_bind_say_try_again_until_the_cluster_is_read(world: World) -> None:
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=2000)
    unread = Scheduler(cluster=world.admin, bus=world.bus, clock=world.clock, catalog=Catalog(), identity="s0")
    assert asked(unread, pod).error == "not read yet: nodes, pods, quotas"
    assert await unread.bind(ref(pod), "n1") == "not read yet: nodes, pods, quotas"
    assert unread.unready() == "not read yet: nodes, pods, quotas"


@story
async def test_reports_on_the_bus_are_a_faster_copy_and_liveness_closes_and_opens_a_node(world: World) -> None:
    await world.node("n1", a_device("GPU-A"))
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=20000)
        report = DevicesReported(
            node="n1",
            device_type="nvidia",
            generation=7,
            devices=(a_device("GPU-A"), a_device("GPU-B")),
            allocation_mode=AllocationMode.CDI,
        )
        await world.say(report, "r1")
        assert [held.device.uuid for held in scheduler.picture.state.devices("n1")] == ["GPU-A", "GPU-B"]
        await world.say(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="silent"), "l1")
        assert asked(scheduler, pod).failed == {"n1": "node not reporting"}
        await world.say(LivenessChanged(node="n1", device_type="nvidia", alive=True, reason=""), "l2")
        assert await place(scheduler, pod) == "n1"


@story
async def test_a_message_that_is_no_event_stops_nobody(world: World) -> None:
    await world.node("n1", a_device("GPU-A"))
    await world.bus.ensure_streams(subjects.STREAMS)
    await world.bus.publish(Message(subject=subjects.devices("n1", "nvidia"), data=b"\xff rubbish"))
    await world.bus.publish(Message(subject=subjects.outcome("n1", "default", "p1"), data=b"{}"))
    async with world.scheduler() as scheduler:
        await world.bus.publish(Message(subject=subjects.devices("n1", "nvidia"), data=b"[]"))
        wrong = envelope.seal(
            LivenessChanged(node="n2", device_type="nvidia", alive=False, reason=""),
            event_id="x",
            source="/test",
            time="2026-01-01T00:00:00Z",
        )
        await world.bus.publish(Message(subject=subjects.liveness("n1", "nvidia"), data=wrong.data))
        await world.say(LivenessChanged(node="n1", device_type="nvidia", alive=False, reason="silent"), "l1")
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, pod).failed == {"n1": "node not reporting"}


@pytest.mark.parametrize("where", ["node", "pod"])
@story
async def test_a_record_that_cannot_be_read_fences_its_node_with_an_event_until_it_is_repaired(world: World, where: str) -> None:
    await world.node("n1")
    await world.node("n2")
    async with world.scheduler() as scheduler:
        broken = await world.pod("broken", gpu=1)
        if where == "node":
            await world.node("n1", annotations={keys.register("nvidia"): "GPU-A,ten:"})
        else:
            record = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,much,0:;"}
            await world.admin.bind(ref(broken), "n1", annotations=record, labels={})
            await settle()
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, pod, "n1").failed == {"n1": "node has an unreadable record"}
        assert asked(scheduler, pod, "n1", "n2").node_names == ["n2"]
        assert any(name == "n1" and reason == "NodeFenced" for name, reason, _ in await world.events())
        if where == "node":
            await world.node("n1")
        else:
            await world.delete(broken)
        assert asked(scheduler, pod, "n1").node_names == ["n1"]


@story
async def test_a_fence_found_before_leading_is_told_once_when_leading_begins(world: World) -> None:
    await world.node("n1", annotations={keys.register("nvidia"): "GPU-A,ten:"})
    async with world.scheduler(cluster=MemoryCluster(world.store), elect="s1"), world.scheduler(elect="s2"):
        await asyncio.sleep(5.0)
    told = [event for event in (await world.admin.list(api.EVENTS)).items if event["reason"] == "NodeFenced"]
    assert [(event["involvedObject"]["name"], event["count"]) for event in told] == [("n1", 1)]
    async with world.scheduler():
        await asyncio.sleep(5.0)
    told = [event for event in (await world.admin.list(api.EVENTS)).items if event["reason"] == "NodeFenced"]
    assert len(told) == 2


@story
async def test_a_pod_that_another_scheduler_assigned_can_be_bound_here_without_having_been_filtered(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    pod = await world.pod("theirs", gpu=1, gpumem=3000, annotations=RECORD | {keys.BIND_PHASE: "allocating"})
    async with world.scheduler() as scheduler:
        assert used_mib(scheduler, "n1") == 3000
        assert await scheduler.bind(ref(pod), "n2") == ""
        await settle()
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (0, 3000)


@story
async def test_what_kube_scheduler_asks_of_a_pod_that_is_over_gives_it_nothing(world: World) -> None:
    """Its own copy is older than ours: the log said of a released pod that it was assigned, and then that this had lapsed."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=1000)
        assert await place(scheduler, pod) == "n1"
        await world.delete(pod)
        await asyncio.sleep(15.0)
        assert "has ended" in asked(scheduler, pod).error
        assert world.said() == [("PodAssigned", "p1"), ("PodAllocating", "p1"), ("PodReleased", "p1")]


class DeafBus(MemoryBus):
    """Keeps what is said, and while it is ``deaf`` nobody is told so."""

    deaf = True

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        sequence = await super().publish(message, expected_last=expected_last, timeout_seconds=timeout_seconds)
        if self.deaf:
            raise BusUnavailable("the answer was lost")
        return sequence


@story
async def test_an_assignment_that_was_heard_is_not_said_again_though_it_was_withdrawn(world: World) -> None:
    bus = world.bus = DeafBus()
    await world.node("n1")
    async with world.scheduler(elect="s1") as scheduler:
        await asyncio.sleep(2.0)
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, pod).node_names == ["n1"]
        await asyncio.sleep(0.5)
        assert world.said() == [("PodAssigned", "p1")]
        scheduler._leading_changed(False)
        scheduler._leading_changed(True)
        bus.deaf = False
        await asyncio.sleep(0.5)
        assert await scheduler.bind(ref(pod), "n1") == ""
        await asyncio.sleep(6.0)
    assert world.said() == [("PodAssigned", "p1"), ("PodAllocating", "p1")]


ALLOCATED_KEY = "hami.io/vgpu-devices-allocated"


@pytest.mark.parametrize("log_first", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        pytest.param({ALLOCATED_KEY: ""}, id="emptied to nothing"),
        pytest.param({ALLOCATED_KEY: ";"}, id="emptied"),
        pytest.param({ALLOCATED_KEY: None}, id="removed"),
        pytest.param({ALLOCATED_KEY: "GPU-n1,NVIDIA,lots,0:;"}, id="unreadable"),
        pytest.param(
            dict.fromkeys([ALLOCATED_KEY, keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_TIME, keys.BIND_PHASE]), id="all removed"
        ),
    ],
)
@story
async def test_a_running_pod_whose_record_is_gone_is_charged_by_its_grant_in_the_log(
    world: World, written: dict[str, str | None], log_first: bool
) -> None:
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=20000)
    async with world.scheduler() as scheduler:
        assert await place(scheduler, pod) == "n1"
    label = {"labels": {keys.ASSIGNED_NODE: None}} if None in written.values() else {}
    await world.admin.patch(api.PODS, "p1", {"metadata": {"annotations": written, **label}}, namespace="default")
    if not log_first:
        world.bus.down()
    async with world.scheduler() as scheduler:
        if not log_first:
            assert ALLOCATED_KEY not in written or len(written) > 1 or scheduler.picture.state.fences("n1")
            world.bus.up()
        await asyncio.sleep(3.0)
        assert used_mib(scheduler) == 20000
        assert not scheduler.picture.state.fences("n1")
        second = await world.pod("p2", gpu=1, gpumem=20000)
        assert "CardInsufficientMemory" in await place(scheduler, second)
        assert ("p1", "RecordUnreadable") in [(name, reason) for name, reason, _ in await world.events()]
        await world.delete(pod)
        assert used_mib(scheduler) == 0

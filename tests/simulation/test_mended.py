"""What the simulation has found, each told directly: the shortest story in which it went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_node_agent.bell import Bell
from hami_protocol import keys, nodelock
from hami_protocol.devices import AllocationMode, ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.envelope import EVENT_ID
from hami_protocol.events import AllocationSucceeded, ContainerServed, PodAllocating, PodAssigned, PodReleased
from hami_protocol.subjects import ALL_GRANTS, ALL_OUTCOMES, ALLOCATIONS
from hami_registry.outcomes import ACK_WAIT_SECONDS, DURABLE
from hami_registry.phases import LookUp, Nothing, PatchPod, Phases
from hami_registry.service import Registry
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.cluster import NODES, Change, Kind
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.lifecycle import run_until
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import OFF
from hami_runtime.virtual import VirtualClock
from hami_scheduler.allocations import GrantLog
from hami_scheduler.metrics import Metrics
from hami_scheduler.tending import Tending
from hami_scheduler.turns import left_to_the_next_leader
from tests.contract.node_agent.world import World as OneNode
from tests.contract.node_agent.world import play
from tests.contract.scheduler.world import World, asked, place, ref, story, used_mib
from tests.simulation.faults import Faults, FaultyBus, Process


def test_a_replica_that_leads_no_more_does_not_spin_over_pods_that_it_may_not_wake() -> None:
    """It waited for a moment that had passed, over and over, for as long as it was a follower."""
    looks = 0

    def tend(_find: object) -> None:
        nonlocal looks
        looks += 1

    async def main() -> None:
        picture: Any = SimpleNamespace(waking=SimpleNamespace(due_seconds=lambda: -1.0), tend=tend)
        unused: Any = None
        tending = Tending(picture, unused, VirtualClock(), pods=unused, leading=lambda: 0, caught_up=asyncio.Event(), metrics=Metrics(OFF))
        running = asyncio.ensure_future(tending.run(asyncio.Event()))
        for _ in range(1000):
            await asyncio.sleep(0)
        running.cancel()

    virtual.run(main())
    assert looks < 10


def test_a_replica_that_leads_again_at_once_says_what_it_withdrew_in_between() -> None:
    """It looked once a second whether it led, and a lapse that it had not said yet when it lost its lease for a moment was never said."""
    term, told = 1, []

    async def main() -> None:
        picture: Any = SimpleNamespace(
            waking=SimpleNamespace(due_seconds=lambda: None, due=lambda now: ()),
            tend=lambda _find: None,
            lead=lambda _pods: told.append(term) or (),
            follow=lambda: told.append(0),
            log_losses=0,
        )
        caught_up = asyncio.Event()
        caught_up.set()
        unused: Any = None
        pods: Any = SimpleNamespace(synced=caught_up, objects={})
        clock = VirtualClock()
        tending = Tending(picture, unused, clock, pods=pods, leading=lambda: term, caught_up=caught_up, metrics=Metrics(OFF))
        running = asyncio.ensure_future(tending.run(asyncio.Event()))
        for seconds in (0, 1, 2):
            nonlocal term
            term = 1 if seconds < 1 else 2
            await asyncio.sleep(1.5)
        running.cancel()

    virtual.run(main())
    assert told == [1, 0, 2]


@story
async def test_an_outcome_that_a_registry_had_at_hand_when_it_died_reaches_its_pod_within_half_a_minute(world: World) -> None:
    """It came again after a minute, for which the pod looked as if it waited for its devices."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=1000)
        await place(scheduler, pod)
    await world.say(AllocationSucceeded(pod=ref(pod), node="n1"), "succeeded")
    wanted = (ALL_GRANTS, ALL_OUTCOMES)
    async with world.bus.consume(ALLOCATIONS, subjects=wanted, durable=DURABLE, ack_wait_seconds=ACK_WAIT_SECONDS) as deliveries:
        for _ in world.log():
            await anext(deliveries)
    registry = Registry(world.bus, MemoryCluster(world.store), world.clock, Catalog(), identity="r1", namespace="kube-system")
    stop = asyncio.Event()
    running = asyncio.ensure_future(registry.run(stop))
    await asyncio.sleep(30.0)
    assert (await world.get(pod)).metadata.annotations[keys.BIND_PHASE] == "success"
    stop.set()
    await running


@story
async def test_a_grant_that_is_said_after_its_pod_was_released_is_taken_back(world: World) -> None:
    """In an outage the agent's word may overtake the scheduler's, and the log ended with a pod that held something for ever."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        await asyncio.sleep(3.0)  # what was missing when it began to lead has been said
        pod = await world.pod("p1", gpu=1, gpumem=1000)
        await place(scheduler, pod)
        await world.delete(pod)
        await world.say(PodReleased(pod=ref(pod), node="n1"), "released", by_agent=True)
        await world.say(PodAllocating(pod=ref(pod), node="n1", assignments=(), bind_time_seconds=1), "late")
        assert world.said()[-1] == ("PodAllocating", "p1")
        await asyncio.sleep(2.0)
        assert world.said()[-1] == ("PodReleased", "p1")


class LateWatch(MemoryCluster):
    """An API server whose watches are seconds behind; its lists are not."""

    @asynccontextmanager
    async def watch(self, kind: Kind[Any], **selectors: Any) -> AsyncIterator[AsyncIterator[Change[Any]]]:
        async def late(changes: AsyncIterator[Change[Any]]) -> AsyncIterator[Change[Any]]:
            async for change in changes:
                await asyncio.sleep(20.0)
                yield change

        async with super().watch(kind, **selectors) as changes:
            yield late(changes)


@story
async def test_a_new_leader_gives_nobody_the_room_that_the_one_before_it_gave_just_now(world: World) -> None:
    """Its watch had not shown the pod yet, so that the card was oversold, and the grant said to have lapsed."""
    await world.node("n1")
    first, second = await world.pod("p1", gpu=1, gpumem=20_000), await world.pod("p2", gpu=1, gpumem=20_000)
    first_life = AsyncExitStack()
    leader = await first_life.enter_async_context(world.scheduler(elect="s1"))
    await asyncio.sleep(3.0)
    async with world.scheduler(cluster=LateWatch(world.store), elect="s2") as follower:
        assert await place(leader, first) == "n1"
        await first_life.aclose()
        await asyncio.sleep(8.0)
        assert follower.leads()
        assert asked(follower, second).node_names is None


def test_whoever_is_cancelled_while_what_it_waited_for_ends_is_cancelled() -> None:
    """A cancellation at just that moment was swallowed: an informer was asked to stop, and went on for ever."""

    async def ended_after(turns: int) -> bool:
        waiting = asyncio.ensure_future(run_until(asyncio.Event(), asyncio.sleep(0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        hears = waiting.cancel()
        await asyncio.wait((waiting,))
        return waiting.cancelled() == hears

    async def main() -> list[bool]:
        return [await ended_after(turns) for turns in range(1, 10)]

    assert virtual.run(main()) == [True] * 9


@story
async def test_what_is_on_its_way_to_the_log_is_not_missing_there(world: World) -> None:
    """A grant that still waited for the bus was taken for one that never was, and said to have lapsed."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        world.bus.down()
        pod = await world.pod("p1", gpu=1, gpumem=1000)
        await place(scheduler, pod)
        await world.delete(pod)
        scheduler.picture.allocation_event(PodAssigned(pod=ref(pod), node="n1", assignments=()), "p1/assigned/1")  # so far the bus has come
        missing = scheduler.picture.grants.missing([], reserved=[], utc_seconds=0.0)
        assert [type(each.event) for each in missing] == [PodReleased]


def test_what_a_leader_had_only_assigned_is_not_said_by_one_that_leads_no_more() -> None:
    """It came long after the next leader had granted the pod, and the log ended with a pod that was merely assigned."""

    async def main() -> list[str]:
        bus = MemoryBus()
        await bus.ensure_streams([ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="/test")
        reserved, bound = (PodRef(namespace="default", name=name, uid=name) for name in ("p1", "p2"))
        outbox.put(PodAssigned(pod=reserved, node="n1", assignments=()), "p1/assigned/1")
        outbox.put(PodAssigned(pod=bound, node="n1", assignments=()), "p2/assigned/1")
        outbox.put(PodAllocating(pod=bound, node="n1", assignments=(), bind_time_seconds=1), "p2/allocating/1")
        outbox.withdraw(left_to_the_next_leader)
        stop = asyncio.Event()
        stop.set()
        await outbox.run(stop)
        return [message.headers[EVENT_ID] for message in bus.kept(ALLOCATIONS)]

    assert virtual.run(main()) == ["p2/assigned/1", "p2/allocating/1"]


@pytest.mark.parametrize("fate", ["bound elsewhere", "gone"])
@story
async def test_a_lock_that_a_dead_process_took_does_not_stay_on_its_node(world: World, fate: str) -> None:
    """Its pod was bound to another node later, or ended while no scheduler lived: nobody said again that the lock was over."""
    lock = nodelock.encode(nodelock.NodeLock(time=world.clock.utc(), namespace="default", pod="p1"))
    await world.node("n1", mode="envvar", annotations={keys.NODE_LOCK: lock})
    await world.node("n2")
    pod = await world.pod("p1", gpu=1, gpumem=1000)
    async with world.scheduler() as scheduler:
        if fate == "gone":
            await world.delete(pod)
        else:
            assert await place(scheduler, pod, "n2") == "n2"
        await asyncio.sleep(25.0)
        assert keys.NODE_LOCK not in (await world.admin.get(NODES, "n1")).metadata.annotations


def test_allocate_is_not_answered_from_a_view_that_is_cut_off() -> None:
    """A pod that was gone already was served, and the one that was meant could never start."""

    async def scenario(node: OneNode) -> None:
        gone = await node.pod("p1", main=[("GPU-a", 1000, 10)])
        node.client.down()
        await node.delete(gone)
        meant = await node.pod("p2", main=[("GPU-a", 2000, 20)], bind_time=101)
        await node.lock("p2")
        allocating = asyncio.ensure_future(node.agent.allocate(["GPU-a-0"]))
        await asyncio.sleep(1.0)
        node.client.up()
        assert (await allocating).environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
        assert meant.metadata.uid in node.agent.journal.pods

    play(scenario, AllocationMode.ENVVAR)


def test_what_is_delivered_again_never_takes_a_record_back() -> None:
    """A grant that came again was learned anew, and with the outcome that came again behind it filled what had been emptied."""
    pod = PodRef(namespace="default", name="p1", uid="p1")
    share = DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=1, cores=0)
    held = tuple(ContainerShares(container=name, kind=ContainerKind.APP, shares=(share,)) for name in ("a", "b"))
    grant = PodAllocating(pod=pod, node="n1", assignments=(VendorAssignment(vendor="NVIDIA", containers=held),), bind_time_seconds=1)
    served = ContainerServed(pod=pod, node="n1", container="a", vendor="NVIDIA", to_allocate=";GPU-a,NVIDIA,1,0:;")
    phases = Phases(Catalog())
    assert phases.judge(grant, again=True) == Nothing()
    assert phases.judge(served, again=True) == LookUp(pod=pod)
    phases.judge(grant)
    assert isinstance(phases.judge(served), PatchPod)
    assert phases.judge(served, again=True) == LookUp(pod=pod)


def test_a_pod_that_the_watch_has_not_shown_yet_is_not_taken_for_deleted() -> None:
    """Bound by us a moment ago, it was said to be released while it ran."""
    log = GrantLog(Catalog())
    pod = PodRef(namespace="default", name="p1", uid="p1")
    log.observe(PodAllocating(pod=pod, node="n1", assignments=(), bind_time_seconds=1))
    assert log.missing([], reserved=["p1"], utc_seconds=0.0) == ()
    assert [type(each.event) for each in log.missing([], reserved=[], utc_seconds=0.0)] == [PodReleased]


class BlindWatch(MemoryCluster):
    """An API server whose watches show nothing."""

    @asynccontextmanager
    async def watch(self, kind: Kind[Any], **selectors: Any) -> AsyncIterator[AsyncIterator[Change[Any]]]:
        async def nothing() -> AsyncIterator[Change[Any]]:
            await asyncio.sleep(3600.0)
            for change in ():
                yield change

        async with super().watch(kind, **selectors):
            yield nothing()


@story
async def test_a_pod_that_came_and_went_while_the_watch_was_broken_gives_its_room_back(world: World) -> None:
    """Filtered from kube-scheduler's own copy, bound, deleted: no list and no watch ever showed it, and it stayed charged for ever."""
    await world.node("n1")
    async with world.scheduler(cluster=BlindWatch(world.store)) as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=1000)
        await place(scheduler, pod)
        assert used_mib(scheduler) == 1000
        await asyncio.sleep(20.0)
        assert used_mib(scheduler) == 1000
        await world.delete(pod)
        await asyncio.sleep(20.0)
        assert used_mib(scheduler) == 0
        assert world.said()[-1] == ("PodReleased", "p1")


@story
async def test_the_release_of_a_pod_is_said_before_its_namesake_is_assigned(world: World) -> None:
    """A leader that reads the last word on each subject would never know of the earlier pod, if the one before it died just then."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=1000)
        await place(scheduler, first)
        await world.delete(first)
        await place(scheduler, await world.pod("p1", gpu=1, gpumem=1000))
        told = [type(event).__name__ for event in world.log()]
    assert told == ["PodAssigned", "PodAllocating", "PodReleased", "PodAssigned", "PodAllocating"]


@story
async def test_a_pod_that_was_bound_and_deleted_before_the_watch_showed_it_bound_is_released(world: World) -> None:
    """The watch knew it as one that waits, so that its end was taken for that of a reservation, and nobody said that it was released."""
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=1000)
    async with world.scheduler(cluster=LateWatch(world.store)) as scheduler:
        await asyncio.sleep(3.0)
        await place(scheduler, pod)
        await world.delete(pod)
        scheduler.pods.look_again()
        await asyncio.sleep(15.0)
        assert world.said()[-1] == ("PodReleased", "p1")


def test_a_ring_that_comes_just_when_a_pause_begins_ends_it() -> None:
    """A card that was well again at that moment was reported half a minute later."""

    async def main() -> float:
        bell, loop = Bell(), asyncio.get_running_loop()
        loop.call_soon(bell.ring)
        await bell.pause(asyncio.Event(), 30.0)
        return loop.time()

    assert virtual.run(main()) == 0.0


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("who led", ["PodAssigned", "PodAllocating", "PodReleased"]),
        ("who leads", ["PodAssigned", "AssignmentLapsed", "PodAllocating", "PodReleased"]),
    ],
)
@story
async def test_a_lease_that_changes_hands_while_the_bus_is_away_leaves_one_story_in_the_log(
    world: World, first: str, said: list[str]
) -> None:
    """The late grant of who led landed, and then came the lapse of who leads: of a pod that was gone, and had never been seen by it."""
    faults = Faults(1)
    faults.active = False
    ways = {name: Process(name, faults) for name in ("who led", "who leads")}
    api_server = MemoryCluster(world.store)
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=1000)
    async with world.scheduler(cluster=api_server, bus=FaultyBus(world.bus, ways["who led"]), elect="s1") as led:
        await asyncio.sleep(3.0)
        theirs = FaultyBus(world.bus, ways["who leads"])
        async with world.scheduler(cluster=BlindWatch(world.store), bus=theirs, elect="s2") as leads:
            assert asked(led, pod).node_names == ["n1"]
            await asyncio.sleep(1.0)
            for way in ways.values():
                way.linked.clear()
            assert await led.bind(ref(pod), "n1") == ""
            api_server.down()  # and so it loses its lease, and does not see that the pod goes
            await world.delete(pod)
            await asyncio.sleep(15.0)
            assert leads.leads()
            ways[first].linked.set()
            await asyncio.sleep(15.0)
            for way in ways.values():
                way.linked.set()
            await asyncio.sleep(40.0)
            assert [kind for kind, _ in world.said()] == said


@story
async def test_a_replica_that_leads_again_at_once_says_that_it_has_assigned_what_it_then_grants(world: World) -> None:
    """The word waited for the bus, was withdrawn when the lease was lost for a moment, and the pod was bound with what was still reserved for it."""
    api_server = MemoryCluster(world.store)
    await world.node("n1")
    pod = await world.pod("p1", gpu=1, gpumem=1000)
    async with world.scheduler(cluster=api_server, elect="s1") as scheduler:
        await asyncio.sleep(3.0)
        world.bus.down()
        assert asked(scheduler, pod).node_names == ["n1"]
        api_server.down()
        while scheduler.leads():  # noqa: ASYNC110 - of a lease
            await asyncio.sleep(0.1)
        api_server.up()
        while not scheduler.decides():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert await scheduler.bind(ref(pod), "n1") == ""
        world.bus.up()
        await asyncio.sleep(10.0)
        assert [kind for kind, _ in world.said()] == ["PodAssigned", "PodAllocating"]

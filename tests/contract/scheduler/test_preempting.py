"""Pods of lower priority make room (HAMi#1494): by our own evictions, and by kube-scheduler's, narrowed."""

import asyncio
from typing import Any

import pytest

from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from hami_scheduler.placement import Phase
from hami_scheduler.service import Options, Scheduler
from hami_scheduler.wire import MetaPod, MetaVictims, PreemptionArgs
from tests.builders import a_device
from tests.contract.scheduler.faults import Fault, FaultyCluster, lost_answer, overloaded
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

CARDS = (a_device("GPU-A", memory_mib=1000), a_device("GPU-B", memory_mib=1000, index=1))


async def running(
    world: World, scheduler: Scheduler, name: str, priority: int = 0, *, labels: dict[str, str] | None = None, **asks: Any
) -> Pod:
    """A pod that runs, and that takes 30 s to end."""
    pod = await world.pod(name, spec={"priority": priority}, **asks)
    if labels:
        pod = await world.admin.patch(api.PODS, name, {"metadata": {"labels": labels}}, namespace="default")
        await settle()
    assert await place(scheduler, pod) == "n1"
    await world.admin.patch(api.PODS, name, {"status": {"phase": "Running"}}, namespace="default", subresource="status")
    await settle()
    return pod


async def important(world: World, name: str = "hp", *, policy: str = "", priority: int = 1000, **asks: Any) -> Pod:
    spec: dict[str, Any] = {"priority": priority}
    if policy:
        spec["preemptionPolicy"] = policy
    return await world.pod(name, spec=spec, **(asks or {"gpu": 1}))


async def leaving(world: World) -> list[str]:
    return sorted(pod.metadata.name for pod in (await world.admin.list(api.PODS)).items if pod.metadata.deletion_timestamp)


async def gone(world: World, name: str) -> None:
    """kubelet says that the containers have ended."""
    await world.admin.delete(api.PODS, name, namespace="default", grace_seconds=0)
    await settle()


async def a_budget(world: World, allowed: int, **labels: str) -> None:
    body = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels}}}
    await world.admin.create(api.BUDGETS, body, namespace="default")
    status = {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2 - allowed, "observedGeneration": 1}
    await world.admin.patch(api.BUDGETS, "web", {"status": status}, namespace="default", subresource="status")
    await settle()


@story
async def test_the_smallest_set_goes_and_what_it_leaves_is_kept_for_the_pod(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "whole", 5, gpu=1)
        for name in ("half1", "half2"):
            await running(world, scheduler, name, 5, gpu=1, gpumem=500)
        waiting = await important(world)
        assert asked(scheduler, waiting).failed == {"n1": "2/2 CardInsufficientMemory"}
        await asyncio.sleep(0.5)
        assert await leaving(world) == ["whole"]
        thief = await world.pod("thief", gpu=1, gpumem=100)
        assert asked(scheduler, waiting).failed
        await gone(world, "whole")
        assert asked(scheduler, thief).failed
        assert await place(scheduler, waiting) == "n1"
        assert await leaving(world) == []
        assert used_mib(scheduler) == 2000
        events = await world.events()
        assert ("hp", "Preempting", "evicting pods of lower priority on node [n1]: default/whole") in events
        assert ("whole", "Preempted", "preempted by pod default/hp of higher priority on node [n1]") in events


@pytest.mark.parametrize(("priority", "policy"), [(5, ""), (4, ""), (1000, "Never")])
@story
async def test_nobody_goes_for_a_pod_that_is_not_above_them_or_that_waits_on_principle(world: World, priority: int, policy: str) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", 5, gpu=2)
        asked(scheduler, await important(world, priority=priority, policy=policy))
        await asyncio.sleep(2.0)
        assert await leaving(world) == []


@story
async def test_nobody_goes_where_preemption_is_off(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler(options=Options(preemption=False)) as scheduler:
        await running(world, scheduler, "low", gpu=2)
        asked(scheduler, await important(world))
        await asyncio.sleep(2.0)
        assert await leaving(world) == []


@story
async def test_nobody_goes_where_those_who_leave_anyway_make_room_enough(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "a", gpu=1)
        await running(world, scheduler, "b", gpu=1)
        await world.admin.delete(api.PODS, "b", namespace="default", grace_seconds=30)
        waiting = await important(world)
        assert asked(scheduler, waiting).failed
        await asyncio.sleep(2.0)
        assert await leaving(world) == ["b"]


@story
async def test_a_budget_that_is_used_up_sends_the_eviction_elsewhere_or_nowhere(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "guarded", 0, labels={"app": "web"}, gpu=1)
        await running(world, scheduler, "other", 5, gpu=1)
        await a_budget(world, 0, app="web")
        asked(scheduler, await important(world))
        await asyncio.sleep(1.0)
        assert await leaving(world) == ["other"]
        asked(scheduler, await important(world, "hp2"))
        await asyncio.sleep(1.0)
        assert await leaving(world) == ["other"]


@story
async def test_a_budget_that_was_used_up_meanwhile_ends_the_attempt_and_nothing_is_kept(world: World) -> None:
    """The budget as the watch shows it allows one; the API server says no."""
    await world.node("n1", *CARDS)
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        await running(world, scheduler, "guarded", labels={"app": "web"}, gpu=2)
        await a_budget(world, 1, app="web")
        waiting = await important(world)
        over_budget = api.TooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.")
        cluster.faults.extend([overloaded(), Fault(over_budget)])  # the note on the pod first, which others may go without
        asked(scheduler, waiting)
        await asyncio.sleep(1.0)
        assert await leaving(world) == []
        assert scheduler.picture.state.entry(waiting.metadata.uid) is None
        refused = [message for _, reason, message in await world.events() if reason == "PreemptionFailed"]
        assert len(refused) == 1
        assert "pod default/guarded is not evicted: Cannot evict pod" in refused[0]
        asked(scheduler, waiting)
        await asyncio.sleep(1.0)
        assert len([reason for _, reason, _ in await world.events() if reason == "PreemptionFailed"]) == 1


@story
async def test_an_eviction_whose_answer_was_lost_is_asked_again(world: World) -> None:
    await world.node("n1", *CARDS)
    cluster = FaultyCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        await running(world, scheduler, "low", gpu=2)
        cluster.faults += [lost_answer(), overloaded()]
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(2.0)
        assert await leaving(world) == ["low"]
        entry = scheduler.picture.state.entry(waiting.metadata.uid)
        assert entry is not None
        assert entry.phase is Phase.NOMINATED


@story
async def test_what_was_kept_for_a_pod_that_is_deleted_meanwhile_is_for_anybody(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(1.0)
        await world.delete(waiting)
        await gone(world, "low")
        assert await place(scheduler, await world.pod("next", gpu=2)) == "n1"


@story
async def test_what_is_kept_is_kept_for_as_long_as_the_victims_may_take_and_not_for_ever(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(30.0)
        await gone(world, "low")
        other = await world.pod("next", gpu=1)
        assert (
            asked(scheduler, other).failed == {"n1": "1/2 CardInsufficientMemory, 1/2 CardTimeSlicingExhausted"}
            or asked(scheduler, other).node_names
        )
        await asyncio.sleep(35.0)
        assert scheduler.picture.state.entry(waiting.metadata.uid) is None
        assert await place(scheduler, await world.pod("both", gpu=1)) == "n1"


@story
async def test_one_pod_of_high_priority_evicts_once_however_often_it_is_refused(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "a", gpu=1)
        await running(world, scheduler, "b", gpu=1)
        waiting = await important(world)
        for _ in range(5):
            asked(scheduler, waiting)
            await asyncio.sleep(0.5)
        assert len(await leaving(world)) == 1
        second = await important(world, "hp2")
        asked(scheduler, second)
        await asyncio.sleep(1.0)
        assert await leaving(world) == ["a", "b"]


@story
async def test_what_is_kept_for_a_pod_is_still_kept_when_it_is_woken(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(0.5)
        asked(scheduler, waiting)
        await gone(world, "low")
        await asyncio.sleep(1.0)
        assert [condition.type for condition in (await world.get(waiting)).status.conditions or ()] == [
            "hami.io/RoomKept",
            "hami.io/RoomChanged",
        ]
        entry = scheduler.picture.state.entry(waiting.metadata.uid)
        assert entry is not None
        assert entry.phase is Phase.NOMINATED
        assert asked(scheduler, await world.pod("thief", gpu=2)).failed


def offered(*pods: Pod) -> MetaVictims:
    return MetaVictims(pods=tuple(MetaPod(uid=pod.metadata.uid) for pod in pods))


@story
async def test_of_kube_schedulers_candidates_those_stay_whose_victims_free_a_card(world: World) -> None:
    await world.node("n1", *CARDS)
    await world.node("n2", a_device("GPU-C", memory_mib=500))
    async with world.scheduler() as scheduler:
        first = await running(world, scheduler, "half1", gpu=1, gpumem=600)
        second = await running(world, scheduler, "half2", 5, gpu=1, gpumem=600)
        third = await running(world, scheduler, "more", gpu=1, gpumem=300)
        waiting = await important(world, gpu=1, gpumem=1000)
        args = PreemptionArgs(pod=waiting, node_name_to_meta_victims={"n1": offered(first), "n2": offered(second), "n9": offered(third)})
        narrowed = scheduler.preempt(args)
        assert list(narrowed) == ["n1"]
        held = scheduler.picture.state.entry(third.metadata.uid)
        assert held is not None
        beside = held.charges[0].uuid == scheduler.picture.state.entry(first.metadata.uid).charges[0].uuid  # type: ignore[union-attr]
        assert narrowed["n1"] == (offered(first, third) if beside else offered(first))
        unasked = await world.pod("cpu", spec={"priority": 9})
        assert scheduler.preempt(PreemptionArgs(pod=unasked, node_name_to_meta_victims={"n2": offered(second)})) == {"n2": offered(second)}


@story
async def test_what_kube_schedulers_victims_leave_is_kept_once_it_has_nominated_the_node(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        low = await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        scheduler.preempt(PreemptionArgs(pod=waiting, node_name_to_meta_victims={"n1": offered(low)}))
        await world.admin.patch(api.PODS, "hp", {"status": {"nominatedNodeName": "n1"}}, namespace="default", subresource="status")
        await gone(world, "low")
        assert asked(scheduler, await world.pod("thief", gpu=2)).failed
        assert await place(scheduler, waiting) == "n1"


@pytest.mark.parametrize("victim_has_gone", [False, True])
@story
async def test_the_next_leader_keeps_what_the_last_one_kept(world: World, victim_has_gone: bool) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(0.5)
        assert await leaving(world) == ["low"]
    if victim_has_gone:
        await gone(world, "low")
    async with world.scheduler() as scheduler:
        thief = await world.pod("thief", gpu=2)
        assert asked(scheduler, thief).failed
        if not victim_has_gone:
            await gone(world, "low")
        assert asked(scheduler, thief).failed
        assert await place(scheduler, waiting) == "n1"


@story
async def test_a_follower_that_comes_to_lead_keeps_it_too(world: World) -> None:
    await world.node("n1", *CARDS)
    first_client = MemoryCluster(world.store)
    async with world.scheduler(cluster=first_client, elect="s1") as first, world.scheduler(elect="s2") as second:
        await asyncio.sleep(5.0)
        leader, follower = (first, second) if first.leads() else (second, first)
        await running(world, leader, "low", gpu=2)
        waiting = await important(world)
        asked(leader, waiting)
        await asyncio.sleep(0.5)
        assert await leaving(world) == ["low"]
        assert leader is first
        first_client.down()
        await asyncio.sleep(30.0)
        assert follower.leads()
        thief = await world.pod("thief", gpu=2)
        assert asked(follower, thief).failed
        await gone(world, "low")
        assert asked(follower, thief).failed
        assert await place(follower, waiting) == "n1"


@story
async def test_what_kube_scheduler_has_nominated_is_kept_by_the_next_leader(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        low = await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        scheduler.preempt(PreemptionArgs(pod=waiting, node_name_to_meta_victims={"n1": offered(low)}))
        await world.admin.patch(api.PODS, "hp", {"status": {"nominatedNodeName": "n1"}}, namespace="default", subresource="status")
        await world.admin.delete(api.PODS, "low", namespace="default", grace_seconds=30)
    async with world.scheduler() as scheduler:
        thief = await world.pod("thief", gpu=2)
        await gone(world, "low")
        assert asked(scheduler, thief).failed
        assert await place(scheduler, waiting) == "n1"


@story
async def test_a_record_of_room_that_nobody_leaves_keeps_nothing_and_evicts_nobody(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world, policy="Never")
        note = {"type": "hami.io/RoomKept", "status": "True", "message": "node n1"}
        await world.admin.patch_conditions(ref(waiting), [note])
        await settle()
        asked(scheduler, waiting)
        await asyncio.sleep(1.0)
        assert scheduler.picture.state.entry(waiting.metadata.uid) is None
        assert await leaving(world) == []


@story
async def test_a_nomination_of_a_pod_that_asks_for_nothing_or_cannot_be_read_is_passed_over(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        for name, asks in (("plain", {}), ("odd", {"gpu": 1, "gpumem": -1})):
            await world.pod(name, **asks)
            await world.admin.patch(api.PODS, name, {"status": {"nominatedNodeName": "n1"}}, namespace="default", subresource="status")
        await settle()
        assert await place(scheduler, await world.pod("p1", gpu=2)) == "n1"


@story
async def test_room_is_kept_on_once_and_not_for_ever(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        waiting = await important(world)
        asked(scheduler, waiting)
        await asyncio.sleep(0.5)
    await gone(world, "low")
    async with world.scheduler() as scheduler:
        thief = await world.pod("thief", gpu=2)
        assert asked(scheduler, thief).failed
        await asyncio.sleep(65.0)
        assert await place(scheduler, thief) == "n1"


@pytest.mark.parametrize(("asks", "reason"), [(300, "ResourceQuotaNotFit"), (900, "CardInsufficientMemory")])
@story
async def test_nobody_is_evicted_for_a_pod_that_its_quota_would_still_refuse(world: World, asks: int, reason: str) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        quota = {"metadata": {"name": "few"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "1600"}}}
        await world.admin.create(api.QUOTAS, quota, namespace="default")
        await running(world, scheduler, "low", gpu=2, gpumem=700)
        waiting = await important(world, gpu=1, gpumem=asks)
        assert reason in asked(scheduler, waiting).failed["n1"]
        await asyncio.sleep(1.0)
        assert await leaving(world) == []


@story
async def test_a_member_of_a_group_evicts_nobody(world: World) -> None:
    await world.node("n1", *CARDS)
    async with world.scheduler() as scheduler:
        await running(world, scheduler, "low", gpu=2)
        grouped = {keys.VOLCANO_GROUP: "team", keys.GROUP_SIZE: "2"}
        members = [await world.pod(name, annotations=grouped, spec={"priority": 1000}, gpu=1, gpumem=500) for name in ("m1", "m2")]
        assert "has not been read yet" in asked(scheduler, members[0]).error
        await settle()
        for member in members:
            assert asked(scheduler, member).failed
        await asyncio.sleep(1.0)
        assert await leaving(world) == []

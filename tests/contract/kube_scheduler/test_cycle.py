"""How a kube-scheduler behaves towards its extender: one suite for the stand-in, in virtual time, and for the real one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from hami_rig.scheduler.extender import ExtenderError
from hami_runtime import virtual
from hami_runtime.kube.cluster import NODES, PODS

from .conftest import GPU, Play, StandIn, World


def refuse(reason: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: {"NodeNames": None, "FailedNodes": dict.fromkeys(body["NodeNames"], reason)}


def test_a_pod_is_filtered_then_bound_by_the_extender_and_an_event_says_so(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("a")
            await world.until(world.events)
        assert [name for name, _, _ in world.calls] == ["filter", "bind"]
        assert (await world.pod("a")).spec.node_name == "m1"
        assert await world.events() == [("Scheduled", "Successfully assigned default/a to m1")]

    play(story)


def test_a_pod_without_a_managed_resource_never_reaches_the_extender(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("a", gpu=False)
            assert await world.bound("a") == "m1"
        assert world.calls == []

    play(story)


def test_a_stable_reason_is_asked_about_twice_and_a_changing_one_for_ever(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        world.filter = refuse("no GPU")
        async with world.running():
            await world.add_pod("a")
            await world.says(
                "a",
                "False",
                "Unschedulable",
                "0/1 nodes are available: 1 no GPU. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            )
            await world.pause(60.0)
            # 1.34 is woken by more that has nothing to do with it
            assert len(world.times("filter")) == 2 or (world.minor < 37 and len(world.times("filter")) == 3)
            if world.patient:
                await world.pause(300.0)
                assert len(world.times("filter")) == 3
            counter = iter(range(10_000))
            world.filter = lambda body: {"FailedNodes": {"m1": f"{next(counter)} MiB short"}}
            await world.cluster.patch(NODES, "m1", {"metadata": {"labels": {"x": "y"}}})

            async def in_a_loop() -> bool:
                return len(world.times("filter")) > 50

            await world.until(in_a_loop)

    play(story)


def test_changes_that_may_help_wake_a_refused_pod_and_others_do_not(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        await world.add_node("m2")
        async with world.running():
            await world.add_pod("holder")
            await world.until(world.events)
            world.filter = refuse("no GPU")
            await world.add_pod("a")
            await world.pause(60.0)

            async def wakes(change: Awaitable[Any]) -> None:
                before = len(world.times("filter"))
                await change

                async def asked() -> bool:
                    return len(world.times("filter")) > before

                await world.until(asked)
                await world.pause(0.05)  # until it is refused again

            async def does_not_wake(change: Awaitable[Any]) -> None:
                before = len(world.times("filter"))
                await change
                await world.pause(0.05)
                assert len(world.times("filter")) == before

            holder = {"namespace": "default"}
            cluster = world.cluster
            await wakes(cluster.patch(PODS, "holder", {"metadata": {"annotations": {"x": "1"}}}, **holder))
            await wakes(cluster.patch(NODES, "m2", {"metadata": {"annotations": {"x": "1"}}}))
            await wakes(cluster.patch(NODES, "m2", {"status": {"allocatable": {GPU: "10"}}}, subresource="status"))
            await wakes(cluster.patch_conditions(await world.ref("a"), [{"type": "hami.io/wake", "status": "True"}]))
            await does_not_wake(cluster.patch(NODES, "m2", {"status": {"capacity": {GPU: "11"}}}, subresource="status"))
            await does_not_wake(cluster.patch(NODES, "m2", {"metadata": {"annotations": {"x": "1"}}}))
            if world.minor >= 37:  # 1.34 is woken by that
                await does_not_wake(world.add_pod("b", scheduler="another"))
            await wakes(cluster.patch(PODS, "holder", {"status": {"phase": "Succeeded"}}, subresource="status", **holder))

    play(story)


def test_an_error_is_tried_again_with_back_off_whatever_happens(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        world.filter = lambda body: {"Error": "not leader"}
        async with world.running():
            await world.add_pod("a")

            async def tried_four_times() -> bool:
                return len(world.times("filter")) == 4

            await world.until(tried_four_times)
        times = world.times("filter")
        first, *later = [after - before for before, after in itertools.pairwise(times)]
        late = 0.1 if world.patient else 1.0  # a real one has other programs beside it
        assert 0.9 <= first <= 2.0 + late, times  # a back-off ends with the second in which it is over
        assert all(1.9 <= gap <= 3.0 + late for gap in later), times
        assert await world.condition("a") == ("False", "SchedulerError", "not leader")

    play(story)


def test_binds_overlap_each_other_and_later_filters_but_filters_come_one_at_a_time(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        world.filter_seconds = 0.2
        running: list[int] = [0, 0]

        async def slow_bind(body: dict[str, Any]) -> dict[str, Any]:
            running[0] += 1
            running[1] = max(running)
            await world.pause(3.0)
            running[0] -= 1
            return await world.post_binding(body)

        world.bind = slow_bind
        async with world.running():
            for name in ("a", "b", "c"):
                await world.add_pod(name)
            for name in ("a", "b", "c"):
                await world.bound(name)
        assert running[1] == 3
        assert world.most_filters_at_once == 1
        assert max(world.times("filter")) - min(world.times("filter")) < 3, "while binds take 3 s, filters go on"

    play(story)


def test_requests_have_its_own_form_and_quantities_are_canonical(play: Play) -> None:
    async def story(world: World) -> None:
        for name in ("m1", "m2"):
            await world.add_node(name)
        async with world.running():
            await world.add_pod("a", memory="2048Mi")
            await world.bound("a")
        bodies = {name: body for name, _, body in world.calls}
        pod = await world.pod("a")
        assert list(bodies) == ["filter", "prioritize", "bind"]
        for verb in ("filter", "prioritize"):
            assert bodies[verb].keys() == {"Pod", "Nodes", "NodeNames"}
            assert bodies[verb]["Nodes"] is None
            assert sorted(bodies[verb]["NodeNames"]) == ["m1", "m2"]
            sent = bodies[verb]["Pod"]
            assert {"metadata", "spec", "status"} <= sent.keys()
            assert (sent["metadata"]["name"], sent["metadata"]["uid"]) == ("a", pod.metadata.uid)
            resources = sent["spec"]["containers"][0]["resources"]
            assert resources == {part: {GPU: "1", "memory": "2Gi"} for part in ("limits", "requests")}
        bound = {"PodName": "a", "PodNamespace": "default", "PodUID": pod.metadata.uid, "Node": pod.spec.node_name}
        assert bodies["bind"] == bound

    play(story)


def sent(world: World) -> list[list[str]]:
    """The nodes of each filter call, in the order in which they came."""
    return [body["NodeNames"] for verb, _, body in world.calls if verb == "filter"]


def test_a_sample_of_many_nodes_is_sent_where_the_configuration_does_not_say_all(play: Play) -> None:
    async def story(world: World) -> None:
        names = [f"m{number}" for number in range(120)]
        for first in range(0, len(names), 12):
            await asyncio.gather(*(world.add_node(name) for name in names[first : first + 12]))
        world.percentage_of_nodes_to_score = 0

        async def three_pods(of: str) -> list[list[str]]:
            world.calls.clear()
            async with world.running():
                for number in range(3):
                    await world.add_pod(f"{of}{number}")
                    await world.bound(f"{of}{number}")
            return sent(world)

        for each in await three_pods("by-many"):  # which ones its sixteen workers come to first is chance
            assert len(each) == len(set(each)) == 100
            assert set(each) <= set(names)
        world.parallelism = 1
        calls = await three_pods("by-one")
        assert [len(each) for each in calls] == [100, 100, 100]
        walk = list(itertools.chain.from_iterable(calls))
        assert set(walk[:120]) == set(names), "all had their turn before the first has it again"
        assert walk[120:] == walk[:180], "each call goes on behind the last node of the one before, round and round"

    play(story)


def test_a_long_reason_is_cut_in_the_event_and_not_in_the_condition(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        world.filter = refuse("x" * 2000)
        async with world.running():
            await world.add_pod("a")
            await world.until(world.events)
            assert f"1 {'x' * 2000}. preemption: " in (await world.condition("a"))[2]
        found = {(reason, len(message), message[-5:]) for reason, message in await world.events()}
        assert found == {("FailedScheduling", 1024, "x ...")}

    play(story)


def test_a_failed_bind_gives_the_room_back_and_is_tried_again(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1", pods="1")
        locked = [True]

        async def bind(body: dict[str, Any]) -> dict[str, Any]:
            return {"Error": "node lock not free"} if locked[0] else await world.post_binding(body)

        world.bind = bind
        async with world.running():
            await world.add_pod("a")
            await world.says("a", "False", "SchedulerError", "node lock not free")
            locked[0] = False
            assert await world.bound("a") == "m1"

    play(story)


def test_every_call_has_all_names_and_one_worker_sends_them_in_the_same_order(play: Play) -> None:
    async def story(world: World) -> None:
        for number in range(6):
            await world.add_node(f"m{number}")
        world.parallelism = 1
        async with world.running():
            for number in range(4):
                await world.add_pod(f"p{number}")
                await world.bound(f"p{number}")
        first, *others = sent(world)
        assert sorted(first) == [f"m{number}" for number in range(6)]
        assert others == [first] * 3

    play(story)


def test_the_stand_in_sends_names_in_an_order_that_differs_so_that_nobody_relies_on_one() -> None:
    """With several workers the real one's order is chance, which no test can wait for."""

    async def story() -> None:
        world = StandIn()
        for number in range(6):
            await world.add_node(f"m{number}")
        async with world.running():
            for number in range(4):
                await world.add_pod(f"p{number}")
                await world.bound(f"p{number}")
        assert len({tuple(names) for names in sent(world)}) > 1

    virtual.run(story())


def test_the_extenders_points_weigh_ten_times_their_number(play: Play) -> None:
    async def story(world: World) -> None:
        for name in ("m1", "m2", "m3"):
            await world.add_node(name)
        world.prioritize = lambda body: [{"Host": "m2", "Score": 10}, {"Host": "m1", "Score": 7}, {"Host": "nobody", "Score": 100}]
        async with world.running():
            await world.add_pod("a", cpu="2")
            assert await world.bound("a") == "m2"

    play(story)


def test_a_refusal_by_the_extender_alone_never_evicts(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("victim")
            await world.bound("victim")
            world.filter = refuse("2/2 CardInsufficientMemory")
            await world.add_pod("high", priority=1000)
            await world.says(
                "high",
                "False",
                "Unschedulable",
                '0/1 nodes are available: 1 2/2 CardInsufficientMemory. preemption: expected at least one victim pod on node "m1"',
            )
            world.filter = lambda body: {"FailedAndUnresolvableNodes": dict.fromkeys(body["NodeNames"], "CardTypeMismatch")}
            await world.cluster.patch(NODES, "m1", {"metadata": {"labels": {"x": "y"}}})
            unhelpful = "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
            await world.says("high", "False", "Unschedulable", f"0/1 nodes are available: 1 CardTypeMismatch. {unhelpful}")
        assert world.times("preempt") == []
        assert not (await world.pod("victim")).metadata.deletion_timestamp

    play(story)


def test_a_pod_short_of_cpu_too_asks_the_extender_and_evicts_whom_it_agrees_to(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("victim", cpu="3")
            await world.bound("victim")
            await world.add_pod("high", priority=1000, cpu="3")

            async def nominated() -> bool:
                return (await world.pod("high")).status.nominated_node_name == "m1"

            await world.until(nominated)
            assert len(world.times("preempt")) == 1
            assert (await world.pod("victim")).metadata.deletion_timestamp
            filters = len(world.times("filter"))
            await world.cluster.delete(PODS, "victim", namespace="default", grace_seconds=0)
            assert await world.bound("high") == "m1"
            assert sent(world)[filters:] == [["m1"]]

    play(story)


def test_an_extender_that_agrees_to_nobody_keeps_everybody_alive(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")
        world.preempt = lambda body: {}
        async with world.running():
            await world.add_pod("victim", cpu="3")
            await world.bound("victim")
            await world.add_pod("high", priority=1000, cpu="3")
            nobody = "preemption: no candidate node for preemption"
            await world.says("high", "False", "Unschedulable", f"0/1 nodes are available: 1 Insufficient cpu. {nobody}")
        assert not (await world.pod("victim")).metadata.deletion_timestamp

    play(story)


def test_an_extender_that_is_down_keeps_pods_waiting_and_places_none(play: Play) -> None:
    async def story(world: World) -> None:
        await world.add_node("m1")

        def down(body: dict[str, Any]) -> Any:
            raise ExtenderError('Post "http://extender/filter": connection refused')

        world.filter = down
        async with world.running():
            await world.add_pod("a")

            async def asked_again() -> bool:
                return len(world.times("filter")) > 1

            await world.until(asked_again)
            assert (await world.pod("a")).spec.node_name == ""
            world.filter = lambda body: {"NodeNames": body["NodeNames"]}
            assert await world.bound("a") == "m1"

    play(story)

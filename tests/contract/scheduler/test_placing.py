"""From filter to the annotations inside the Binding."""

import asyncio
from typing import Any

import msgspec
import pytest

from hami_protocol import keys
from hami_protocol.events import PodAllocating, PodAssigned, PodPlaced, PodRefused
from hami_protocol.subjects import VERDICTS
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from hami_scheduler.service import Options
from hami_scheduler.settings import PlacementMode
from hami_scheduler.wire import ExtenderArgs, HostPriority, decode_args
from tests.builders import a_device
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

ALLOCATED = "hami.io/vgpu-devices-allocated"


@story
async def test_a_pod_gets_its_assignment_inside_the_binding(world: World) -> None:
    await world.node("n1", a_device("GPU-A"))
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000, gpucores=30)
        assert await place(scheduler, pod) == "n1"
        bound = await world.get(pod)
        assert bound.spec.node_name == "n1"
        annotations = bound.metadata.annotations
        assert annotations[keys.ASSIGNED_NODE] == "n1"
        assert annotations[ALLOCATED] == annotations["hami.io/vgpu-devices-to-allocate"] == "GPU-A,NVIDIA,2000,30:;"
        assert annotations[keys.BIND_PHASE] == "allocating"
        assert annotations[keys.BIND_TIME].isdigit()
        assert bound.metadata.labels[keys.ASSIGNED_NODE] == "n1"
        assert used_mib(scheduler) == 2000
    assert world.said() == [("PodAssigned", "p1"), ("PodAllocating", "p1")]
    granted = world.log()[1]
    assert isinstance(granted, PodAllocating)
    assert isinstance(world.log()[0], PodAssigned)
    assert granted.assignments == world.log()[0].assignments  # type: ignore[union-attr]
    assert [type(verdict) for verdict in world.log(VERDICTS)] == [PodPlaced]
    assert {reason for _, reason, _ in await world.events()} == {"FilteringSucceed", "BindingSucceed"}


@story
async def test_a_pod_costs_one_write_besides_events_where_the_node_speaks_cdi(world: World) -> None:
    await world.node("n1")
    cluster = MemoryCluster(world.store)
    async with world.scheduler(cluster=cluster) as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        before = dict(cluster.calls)
        assert await place(scheduler, pod) == "n1"
    made = {call: count - before.get(call, 0) for call, count in cluster.calls.items() if count != before.get(call, 0)}
    made = {call: count for call, count in made.items() if call[1] != "events"}
    assert made == {("bind", "pods"): 1}


@story
async def test_a_pod_that_fits_nowhere_is_refused_with_reasons_and_figures(world: World) -> None:
    await world.node("n1", a_device("GPU-A"))
    await world.node("n2", a_device("GPU-B", type="NVIDIA T4"))
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=2, gpumem=2000)
        answer = asked(scheduler, pod, "n1", "n2", "n3")
        assert answer.error == ""
        assert answer.node_names is None
        assert answer.unresolvable == {"n1": "NodeInsufficientDevice", "n2": "NodeInsufficientDevice", "n3": "node unregistered"}
        big = await world.pod("p2", gpu=1, gpumem=30000)
        assert asked(scheduler, big, "n1").failed == {"n1": "1/1 CardInsufficientMemory"}
        await settle()
    verdicts = world.log(VERDICTS)
    assert all(isinstance(verdict, PodRefused) for verdict in verdicts)
    messages = {name: message for name, reason, message in await world.events() if reason == "FilteringFailed"}
    assert "2" in messages["p1"]
    assert "30000" in messages["p2"]


@story
async def test_one_event_per_pod_and_change(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=30000)
        first = asked(scheduler, pod)
        for _ in range(20):
            assert asked(scheduler, pod) == first
        await settle()
        (event,) = (await world.admin.list(api.EVENTS)).items
        assert event["count"] == 1
    assert len(world.log(VERDICTS)) == 1


@pytest.mark.parametrize(
    ("amounts", "field"),
    [
        pytest.param({"gpu": 1, "gpumem": "16.0001Gi"}, "limits[nvidia.com/gpumem]", id="A1"),
        pytest.param({"gpu": 1, "gpumem-percentage": "99.1"}, "limits[nvidia.com/gpumem-percentage]", id="A3"),
        pytest.param({"gpu": "NaN"}, "limits[nvidia.com/gpu]", id="A16"),
    ],
)
@story
async def test_a_request_that_cannot_be_read_is_refused_for_good_and_never_empty(
    world: World, amounts: dict[str, str | int], field: str
) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", **amounts)
        answer = asked(scheduler, pod, "n1", "n2")
        assert answer.unresolvable == dict.fromkeys(("n1", "n2"), "invalid device request")
        assert answer.node_names is None
        assert answer.error == ""
        assert "invalid device request" in await scheduler.bind(ref(pod), "n1")
        await settle()
        assert any(field in message for _, _, message in await world.events())
        assert (await world.get(pod)).spec.node_name == ""


@story
async def test_a_pod_that_asks_for_nothing_may_go_anywhere_and_is_bound_without_a_record(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=0)
        assert asked(scheduler, pod, "n1", "n9").node_names == ["n1", "n9"]
        assert await scheduler.bind(ref(pod), "n1") == ""
        bound = await world.get(pod)
        assert bound.spec.node_name == "n1"
        assert ALLOCATED not in bound.metadata.annotations
    assert world.said() == []


@story
async def test_requests_without_candidates_or_pod_change_nothing_and_the_next_is_served(world: World) -> None:
    """HAMi#2688."""
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert scheduler.filter(ExtenderArgs(pod=pod)).error
        assert scheduler.filter(ExtenderArgs(node_names=["n1"])).error == "extender args missing pod"
        empty = scheduler.filter(ExtenderArgs(pod=pod, node_names=[]))
        assert (empty.error, empty.node_names or []) == ("", [])
        assert await place(scheduler, pod) == "n1"


@story
async def test_unsatisfiable_pods_keep_nobody_from_being_placed(world: World) -> None:
    """HAMi#1780, 1,000 times."""
    await world.node("n1", *(a_device(f"GPU-{card}") for card in range(2)))
    async with world.scheduler() as scheduler:
        wide = await world.pod("wide", gpu=4)
        big = await world.pod("big", gpu=1, gpumem=245760)
        for turn in range(1000):
            assert asked(scheduler, wide).unresolvable == {"n1": "NodeInsufficientDevice"}
            assert asked(scheduler, big).failed == {"n1": "2/2 CardInsufficientMemory"}
            if turn % 100 == 0:
                assert await place(scheduler, await world.pod(f"p{turn}", gpu=1, gpumem=1000)) == "n1"
        assert used_mib(scheduler) == 10_000


@story
async def test_pods_filtered_at_the_same_moment_never_get_the_same_room(world: World) -> None:
    """HAMi#2232: eight cards, 32 pods of half a card."""
    await world.node("n1", *(a_device(f"GPU-{card}") for card in range(8)))
    async with world.scheduler() as scheduler:
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=12288) for number in range(32)]
        answers = [asked(scheduler, pod) for pod in pods]
        assert [bool(answer.node_names) for answer in answers] == [True] * 16 + [False] * 16
        assert all(answer.failed == {"n1": "8/8 CardInsufficientMemory"} for answer in answers[16:])
        for pod in pods[:16]:
            assert await scheduler.bind(ref(pod), "n1") == ""
        used = [held.used_memory_mib for held in scheduler.picture.state.devices("n1")]
        assert used == [24576] * 8


@story
async def test_ranked_answers_all_that_fit_and_scores_them_and_fits_again_at_bind(world: World) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name)
    async with world.scheduler(options=Options(placement=PlacementMode.RANKED)) as scheduler:
        assert await place(scheduler, await world.pod("p0", gpu=1, gpumem=12000), "n2") == "n2"
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        answer = asked(scheduler, pod, "n1", "n2", "n3", "n4")
        assert set(answer.node_names or ()) == {"n1", "n2", "n3"}
        assert answer.unresolvable == {"n4": "node unregistered"}
        scores = scheduler.prioritize(ExtenderArgs(pod=pod, node_names=["n3", "n2", "n1"]))
        assert scores == [HostPriority(host="n3", score=0), HostPriority(host="n2", score=10), HostPriority(host="n1", score=0)]
        assert used_mib(scheduler, "n1") == 0
        assert await scheduler.bind(ref(pod), "n1") == ""
        assert used_mib(scheduler, "n1") == 2000
        late = await world.pod("p2", gpu=1, gpumem=23000)
        assert "CardInsufficientMemory" in await scheduler.bind(ref(late), "n1")
        assert used_mib(scheduler, "n1") == 2000


@story
async def test_a_dry_run_with_whole_nodes_changes_nothing(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        node = (await world.admin.list(api.NODES)).items[0]
        nodes = {"items": [msgspec.to_builtins(node), {"metadata": {"name": "x"}}]}
        args = decode_args(msgspec.json.encode({"Pod": msgspec.to_builtins(pod), "Nodes": nodes}))
        answer = scheduler.filter(args)
        assert len(answer.nodes or ()) == 1
        assert answer.unresolvable == {"x": "node unregistered"}
        assert used_mib(scheduler) == 0
        await settle()
    assert world.said() == []
    assert world.log(VERDICTS) == []
    assert await world.events() == []


@story
async def test_a_pod_that_is_bound_is_not_placed_again(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=2000)
        assert await place(scheduler, pod) == "n1"
        assert "bound to n1" in asked(scheduler, pod, "n2").error
        assert used_mib(scheduler, "n1") == 2000
        assert await scheduler.bind(ref(pod), "n1") == ""
        assert "n1" in await scheduler.bind(ref(pod), "n2")
        assert (used_mib(scheduler, "n1"), used_mib(scheduler, "n2")) == (2000, 0)


@story
async def test_explain_says_why_with_figures(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=30000)
        asked(scheduler, pod)
        found = scheduler.explain("default", "p1")
        assert found is not None
        assert found.verdict is not None
        assert "30000" in found.summary
        assert found.reasons == {"1/1 CardInsufficientMemory": 1}
        placed = await world.pod("p2", gpu=1, gpumem=1000)
        await place(scheduler, placed)
        found = scheduler.explain("default", "p2")
        assert found is not None
        assert found.node == "n1"
        assert found.holding is not None
        assert scheduler.explain("default", "nobody") is None


@story
async def test_a_namespaces_quota_is_judged_and_used_in_one_step(world: World) -> None:
    """Admission lets both in, for each fits by itself; a percentage is an amount only here."""
    await world.node("n1")
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "13000"}}}
    await world.admin.create(api.QUOTAS, quota, namespace="default")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, **{"gpumem-percentage": 50})
        second = await world.pod("p2", gpu=1, gpumem=1000)
        assert asked(scheduler, first).node_names == ["n1"]
        assert asked(scheduler, second).failed == {"n1": "ResourceQuotaNotFit"}
        assert "ResourceQuotaNotFit" in await scheduler.bind(ref(second), "n1")
        assert await scheduler.bind(ref(first), "n1") == ""
        await settle()
        assert any("12288 MiB of 13000 MiB are used" in message for _, _, message in await world.events())
        await world.finish(first)
        assert await place(scheduler, second) == "n1"


@story
async def test_a_quota_that_leaves_more_wakes_who_was_refused_by_it(world: World) -> None:
    await world.node("n1")
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpumem": "1000"}}}
    await world.admin.create(api.QUOTAS, quota, namespace="default")
    async with world.scheduler() as scheduler:
        waiting = await world.pod("p1", gpu=1, gpumem=2000)
        assert asked(scheduler, waiting).failed == {"n1": "ResourceQuotaNotFit"}
        await world.admin.patch(api.QUOTAS, "q", {"spec": {"hard": {"requests.nvidia.com/gpumem": "1500"}}}, namespace="default")
        await asyncio.sleep(1.0)
        assert not (await world.get(waiting)).status.conditions
        await world.admin.patch(api.QUOTAS, "q", {"spec": {"hard": {"requests.nvidia.com/gpumem": "2000"}}}, namespace="default")
        await asyncio.sleep(1.0)
        assert [condition.type for condition in (await world.get(waiting)).status.conditions or ()] == ["hami.io/RoomChanged"]
        assert await place(scheduler, waiting) == "n1"


@story
async def test_a_release_anywhere_in_the_namespace_wakes_who_waits_for_its_quota(world: World) -> None:
    """The pod fits on n2 alone, where nothing was released."""
    await world.node("n1", a_device("GPU-a", memory_mib=3000))
    await world.node("n2", a_device("GPU-b", memory_mib=9000))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "8000"}}}
    await world.admin.create(api.QUOTAS, quota, namespace="default")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=3000)
        assert await place(scheduler, first, "n1") == "n1"
        waiting = await world.pod("p2", gpu=1, gpumem=8000)
        assert asked(scheduler, waiting, "n1", "n2").failed == {"n1": "1/1 CardInsufficientMemory", "n2": "ResourceQuotaNotFit"}
        await world.finish(first)
        await asyncio.sleep(1.0)
        assert (await world.get(waiting)).status.conditions


@story
async def test_a_share_in_percent_goes_where_the_quota_allows_it(world: World) -> None:
    """Half of the large card is too much, half of the small one is not: on another node, and on the same one."""
    await world.node("n1", a_device("GPU-a", memory_mib=8000))
    await world.node("n2", a_device("GPU-b", memory_mib=2000))
    await world.node("n3", a_device("GPU-c", memory_mib=8000), a_device("GPU-d", memory_mib=2000, index=1))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "3000"}}}
    await world.admin.create(api.QUOTAS, quota, namespace="default")
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, **{"gpumem-percentage": 50})
        assert await place(scheduler, first, "n1", "n2") == "n2"
        second = await world.pod("p2", gpu=1, **{"gpumem-percentage": 50})
        assert await place(scheduler, second, "n3") == "n3"
        held = (await world.get(second)).metadata.annotations["hami.io/vgpu-devices-allocated"]
        assert held == "GPU-d,NVIDIA,1000,0:;"
        third = await world.pod("p3", gpu=1, **{"gpumem-percentage": 100})
        assert asked(scheduler, third, "n1", "n3").failed == {"n1": "ResourceQuotaNotFit", "n3": "ResourceQuotaNotFit"}


@story
async def test_verdicts_that_gave_way_to_a_burst_are_said_before_it_ends(world: World) -> None:
    await world.node("n1", *(a_device(f"GPU-{number}") for number in range(8)))
    async with world.scheduler() as scheduler:
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=1000) for number in range(40)]
        for pod in pods:
            assert await place(scheduler, pod) == "n1"
        assert 0 < len(world.log(VERDICTS)) < 20
    said = [verdict.pod.name for verdict in world.log(VERDICTS) if isinstance(verdict, PodPlaced)]
    assert sorted(said) == sorted(pod.metadata.name for pod in pods)


@story
async def test_and_before_another_leads(world: World) -> None:
    await world.node("n1", *(a_device(f"GPU-{number}") for number in range(8)))
    async with world.scheduler(elect="a") as scheduler:
        await asyncio.sleep(1)
        for number in range(40):
            assert await place(scheduler, await world.pod(f"p{number}", gpu=1, gpumem=1000)) == "n1"
        assert 0 < len(world.log(VERDICTS)) < 20
        scheduler._leading_changed(False)
        await asyncio.sleep(0.1)
        assert len(world.log(VERDICTS)) == 40


@story
async def test_a_running_pod_whose_card_vanishes_is_told_of_once_and_counted_until_the_card_returns(world: World) -> None:
    await world.node("n1", a_device("GPU-old"))
    pod = await world.pod("p1", gpu=1, gpumem=4000)
    async with world.scheduler() as scheduler:
        assert await place(scheduler, pod) == "n1"
        assert len(scheduler.picture.orphans) == 0
        for _ in range(2):
            await world.node("n1", a_device("GPU-new"))
        await asyncio.sleep(1.0)
        told = [message for name, reason, message in await world.events() if (name, reason) == ("p1", "CardGone")]
        assert told == ["holds 4000 MiB of GPU-old on node n1, which registers no such card any more"]
        assert (len(scheduler.picture.orphans), used_mib(scheduler)) == (1, 0)
        await world.node("n1", a_device("GPU-old"))
        assert (len(scheduler.picture.orphans), used_mib(scheduler)) == (0, 4000)
        await world.node("n1", a_device("GPU-new"))
        await world.delete(pod)
        assert len(scheduler.picture.orphans) == 0


@story
async def test_an_explanation_knows_the_node_selector_what_kube_scheduler_found_and_the_group(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await world.admin.patch(api.NODES, "n2", {"metadata": {"labels": {"pool": "a"}}})
    async with world.scheduler() as scheduler:
        await world.pod("selects", spec={"nodeSelector": {"pool": "a"}}, gpu=1, gpumem=1000)
        told = scheduler.explain("default", "selects")
        assert told is not None
        assert (told.summary, [node.node for node in told.nodes]) == ("1/1 nodes fit; n2 is the best under binpack", ["n2"])
        assert told.reasons == {"node selector does not match": 1}

        waiting = await world.pod("waits", gpu=1, gpumem=1000)
        condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."}
        await world.admin.patch_conditions(ref(waiting), [condition])
        await settle()
        told = scheduler.explain("default", "waits")
        assert told is not None
        assert told.summary == "its devices fit, and kube-scheduler found: 0/2 nodes are available: 2 Insufficient cpu."

        await world.pod("nowhere", spec={"nodeSelector": {"pool": "b"}}, gpu=1, gpumem=1000)
        told = scheduler.explain("default", "nowhere")
        assert told is not None
        assert told.reasons == {"node selector does not match": 2}

        member = await world.pod("member", annotations={keys.GROUP_SIZE: "2", keys.VOLCANO_GROUP: "g"}, gpu=1, gpumem=1000)
        assert asked(scheduler, member, "n1", "n2").error, "its PodGroup is read first"
        await asyncio.sleep(1.0)
        assert asked(scheduler, member, "n1", "n2").failed
        await settle()
        told = scheduler.explain("default", "member")
        assert told is not None
        assert "1 of 2 members are there" in told.summary


def dry_run(scheduler: Any, pod: Any, *nodes: dict[str, Any]) -> list[str]:
    """The names of the nodes that an autoscaler is answered with."""
    asking = {"Pod": msgspec.to_builtins(pod), "Nodes": {"items": list(nodes)}}
    answer = scheduler.filter(decode_args(msgspec.json.encode(asking)))
    return [msgspec.json.decode(item)["metadata"]["name"] for item in answer.nodes or ()]


@story
async def test_an_autoscaler_that_packs_pods_onto_a_template_is_told_when_it_is_full(world: World) -> None:
    await world.node("n1", a_device("GPU-a", memory_mib=10000))
    await world.admin.patch(api.NODES, "n1", {"metadata": {"labels": {"node.kubernetes.io/instance-type": "g5"}}})
    pods = [await world.pod(f"p{number}", gpu=1, gpumem=4000) for number in range(3)]
    async with world.scheduler() as scheduler:
        registered = msgspec.to_builtins(await world.admin.get(api.NODES, "n1"))
        template = {"metadata": {**registered["metadata"], "name": "template-1"}}
        by_label = {"metadata": {"name": "template-2", "labels": {"node.kubernetes.io/instance-type": "g5"}}}
        unknown = {"metadata": {"name": "template-3", "labels": {"node.kubernetes.io/instance-type": "other"}}}
        assert [dry_run(scheduler, pod, template) for pod in pods] == [["template-1"], ["template-1"], []]
        assert dry_run(scheduler, pods[0], template) == ["template-1"], "asked again, it is not in its own way"
        assert [dry_run(scheduler, pod, by_label) for pod in pods] == [["template-2"], ["template-2"], []]
        assert dry_run(scheduler, pods[0], unknown) == []
        await asyncio.sleep(61)
        assert dry_run(scheduler, pods[2], template) == ["template-1"]
        assert used_mib(scheduler) == 0
        assert await place(scheduler, pods[0], "n1") == "n1"
        assert await place(scheduler, pods[1], "n1") == "n1"
        assert dry_run(scheduler, pods[2], registered) == [], "on a node of the cluster its pods count"

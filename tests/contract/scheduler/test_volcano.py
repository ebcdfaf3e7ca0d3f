"""Volcano's plugin asks, Volcano binds, and the pod is given devices where it is. The requests are made from Volcano's published types."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami_protocol import keys
from hami_protocol.events import PodAllocating
from hami_protocol.kubernetes import Pod
from hami_runtime.kube import cluster as api
from hami_scheduler import volcano
from hami_scheduler.placement import Phase
from hami_scheduler.service import Options
from hami_scheduler.wire import WireError
from tests.builders import a_device
from tests.contract.scheduler.world import World, place, ref, settle, story, used_mib

ADOPTING = Options(adopted_schedulers=frozenset({"volcano"}))
RECORDED = Path(__file__).parent / "volcano"


def recorded(name: str, **changes: Any) -> bytes:
    request = msgspec.json.decode((RECORDED / f"{name}.json").read_bytes())
    request["task"]["Pod"]["spec"]["containers"][0]["resources"]["limits"].update(changes)
    request["task"]["Pod"]["spec"]["containers"][0]["resources"]["requests"].update(changes)
    return msgspec.json.encode(request)


async def bound(
    world: World, name: str, node: str = "n1", *, scheduler: str = "volcano", spec: dict[str, Any] | None = None, **amounts: Any
) -> Pod:
    """A pod that Volcano has bound, with nothing of ours in its Binding."""
    pod = await world.pod(name, spec={"schedulerName": scheduler, **(spec or {})}, **(amounts or {"gpu": 1, "gpumem": 2000}))
    await world.admin.bind(ref(pod), node, annotations={}, labels={})
    await asyncio.sleep(0.01)
    return await world.get(pod)


def grants(world: World) -> list[PodAllocating]:
    return [event for event in world.log() if isinstance(event, PodAllocating)]


@story
async def test_a_predicate_says_whether_a_node_does_and_reserves_nothing(world: World) -> None:
    await world.node("n1", a_device("GPU-A", memory_mib=3000))
    async with world.scheduler(options=ADOPTING) as scheduler:

        def predicate(body: bytes) -> dict[str, Any]:
            question = volcano.decode_predicate(body)
            answer: dict[str, Any] = msgspec.json.decode(volcano.encode_predicate(*scheduler.predicate(question.pod, question.nodes[0])))
            return answer

        assert predicate(recorded("predicate")) == {"status": "", "code": 0}
        assert predicate(recorded("predicate", **{"nvidia.com/gpumem": "3001"})) == {"status": "1/1 CardInsufficientMemory", "code": 2}
        assert predicate(recorded("predicate", **{"nvidia.com/gpu": "2"})) == {"status": "NodeInsufficientDevice", "code": 3}
        assert predicate(recorded("predicate", **{"nvidia.com/gpumem": "-1"}))["code"] == 3
        assert used_mib(scheduler) == 0


@story
async def test_scores_prefer_what_the_node_policy_prefers(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    async with world.scheduler(options=ADOPTING) as scheduler:
        await place(scheduler, await world.pod("other", gpu=1, gpumem=4000), "n2")
        question = volcano.decode_prioritize(recorded("prioritize"))
        answer = msgspec.json.decode(volcano.encode_scores(scheduler.scores(question.pod, list(question.nodes))))
        assert answer == {"nodeScore": {"n1": 0.0, "n2": 100.0}, "errorMessage": ""}


@story
async def test_a_pod_that_volcano_has_bound_is_charged_and_its_grant_published_as_unwritten(world: World) -> None:
    await world.node("n1")
    async with world.scheduler(options=ADOPTING) as scheduler:
        pod = await bound(world, "v0")
        (grant,) = grants(world)
        assert (grant.pod.name, grant.node, grant.unwritten) == ("v0", "n1", True)
        assert used_mib(scheduler) == 2000
        await world.admin.patch_conditions(ref(pod), [{"type": "Ready", "status": "False"}])
        await settle()
        assert used_mib(scheduler) == 2000
        written = {keys.ASSIGNED_NODE: "n1", "hami.io/vgpu-devices-allocated": "GPU-n1,NVIDIA,2000,0:;", keys.BIND_PHASE: "allocating"}
        await world.admin.patch(api.PODS, "v0", {"metadata": {"annotations": written}}, namespace="default")
        await settle()
        assert used_mib(scheduler) == 2000
        await world.finish(pod)
        assert used_mib(scheduler) == 0
        assert len(grants(world)) == 1


@story
async def test_a_pod_whose_room_is_gone_is_told_so_and_adopted_when_there_is_room(world: World) -> None:
    await world.node("n1", a_device("GPU-A", memory_mib=3000))
    async with world.scheduler(options=ADOPTING) as scheduler:
        first = await world.pod("first", gpu=1, gpumem=2000)
        await place(scheduler, first)
        await bound(world, "v0")
        await asyncio.sleep(12.0)
        told = [message for name, reason, message in await world.events() if (name, reason) == ("v0", "AllocationRefused")]
        assert len(told) == 1
        assert "bound to [n1] by volcano: 0/1 nodes fit" in told[0]
        await world.finish(first)
        await asyncio.sleep(6.0)
        assert [grant.pod.name for grant in grants(world)] == ["first", "v0"]


@story
async def test_pods_of_other_schedulers_and_pods_with_a_record_are_left_alone(world: World) -> None:
    await world.node("n1")
    async with world.scheduler(options=ADOPTING) as scheduler:
        await bound(world, "default", scheduler="default-scheduler")
        await bound(world, "nothing", cpu=1)
        assert grants(world) == []
        assert used_mib(scheduler) == 0
    async with world.scheduler() as scheduler:
        await bound(world, "v0")
        assert grants(world) == []


@story
async def test_a_bound_pod_is_judged_by_the_rules_of_admission_and_of_cordons(world: World) -> None:
    """Whoever wrote its node: a privileged container would see every card, and a cordoned node takes no new pod."""
    await world.node("n1")
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}
    tolerant = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]
    async with world.scheduler(options=ADOPTING) as scheduler:
        await bound(world, "privileged", spec={"containers": [container | {"securityContext": {"privileged": True}}]})
        await world.admin.patch(api.NODES, "n1", {"spec": {"unschedulable": True}})
        await settle()
        await bound(world, "cordoned")
        assert grants(world) == []
        assert used_mib(scheduler) == 0
        await asyncio.sleep(1)
        told = {name: message for name, reason, message in await world.events() if reason == "AllocationRefused"}
        assert told == {
            "privileged": "bound to [n1] by volcano: container main is privileged",
            "cordoned": "bound to [n1] by volcano: the node is cordoned",
        }
        await bound(world, "tolerant", spec={"tolerations": tolerant})
        assert [grant.pod.name for grant in grants(world)] == ["tolerant"]


@story
async def test_what_was_bound_while_nobody_looked_is_adopted_after_the_start(world: World) -> None:
    await world.node("n1")
    await bound(world, "v0")
    async with world.scheduler(options=ADOPTING) as scheduler:
        await settle()
        assert [grant.pod.name for grant in grants(world)] == ["v0"]
        assert [entry.phase for entry in scheduler.picture.state.entries()] == [Phase.BOUND]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"task":{}}', b'{"task":{"Pod":{"metadata":{}}}}', b"[" * 100_000, b'{"task":{"Pod":3}}']
)
def test_what_cannot_be_read_raises_the_one_error(body: bytes) -> None:
    for decode in (volcano.decode_predicate, volcano.decode_prioritize):
        with pytest.raises(WireError):
            decode(body)

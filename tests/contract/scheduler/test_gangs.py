"""Pods of one group are placed together or not at all, and two groups never hold half of the cards each."""

import asyncio
from typing import Any

import pytest

from hami_protocol import keys
from hami_protocol.kubernetes import ObjectMeta, Pod, PodGroup, PodGroupSpec
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster
from hami_scheduler.placement import Phase
from hami_scheduler.service import Options, Scheduler
from hami_scheduler.settings import PlacementMode
from tests.builders import a_device
from tests.contract.scheduler.world import World, asked, place, ref, settle, story, used_mib

FOUR = tuple(a_device(f"GPU-{place}", memory_mib=1000, index=place) for place in range(4))


async def member(world: World, name: str, group: str, size: int | None = None, **asks: Any) -> Pod:
    annotations = {keys.VOLCANO_GROUP: group} | ({} if size is None else {keys.GROUP_SIZE: str(size)})
    return await world.pod(name, annotations=annotations, **(asks or {"gpu": 1}))


async def read(scheduler: Scheduler, pod: Pod) -> None:
    """The first question about a group has its PodGroup read."""
    assert "has not been read yet" in asked(scheduler, pod).error
    await settle()


def phases(scheduler: Scheduler, *pods: Pod) -> list[str]:
    entries = [scheduler.picture.state.entry(pod.metadata.uid) for pod in pods]
    return ["" if entry is None else str(entry.phase) for entry in entries]


@story
async def test_the_first_member_keeps_room_for_all_which_nobody_else_gets(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        pods = [await member(world, f"a{place}", "a", 3) for place in range(3)]
        await read(scheduler, pods[0])
        assert asked(scheduler, pods[0]).node_names == ["n1"]
        assert phases(scheduler, *pods) == [Phase.RESERVED, Phase.NOMINATED, Phase.NOMINATED]
        assert asked(scheduler, await world.pod("greedy", gpu=2)).failed
        second = asked(scheduler, pods[1])
        assert second.node_names == ["n1"]
        assert phases(scheduler, *pods) == [Phase.RESERVED, Phase.RESERVED, Phase.NOMINATED]


@story
async def test_early_members_are_bound_as_soon_as_the_last_has_come(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        pods = [await member(world, f"a{place}", "a", 3) for place in range(3)]
        await read(scheduler, pods[0])
        waiting = []
        for pod in pods[:2]:
            assert asked(scheduler, pod).node_names == ["n1"]
            waiting.append(asyncio.create_task(scheduler.bind(ref(pod), "n1")))
            await asyncio.sleep(3.0)
        assert not any(task.done() for task in waiting)
        assert await place(scheduler, pods[2]) == "n1"
        assert await asyncio.gather(*waiting) == ["", ""]
        await settle()
        assert phases(scheduler, *pods) == [Phase.BOUND] * 3
        replaced = await member(world, "a3", "a", 3)
        assert await place(scheduler, replaced) == "n1"


@story
async def test_who_has_waited_in_vain_is_refused_and_everything_is_released(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        pods = [await member(world, f"a{place}", "a", 3) for place in range(3)]
        await read(scheduler, pods[0])
        waiting = []
        for pod in pods[:2]:
            asked(scheduler, pod)
            waiting.append(asyncio.create_task(scheduler.bind(ref(pod), "n1")))
        errors = await asyncio.gather(*waiting)
        assert errors == ["pod group a: 2 of 3 members came to be bound in 25 s"] * 2
        await asyncio.sleep(10.0)
        assert used_mib(scheduler) == 0
        assert [kind for kind, _ in world.said()] == ["PodAssigned", "PodAssigned", "AssignmentLapsed", "AssignmentLapsed"]


@story
async def test_a_group_that_does_not_fit_whole_holds_nothing(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        await place(scheduler, await world.pod("other", gpu=2))
        pods = [await member(world, f"a{place}", "a", 3) for place in range(3)]
        await read(scheduler, pods[0])
        assert asked(scheduler, pods[0]).failed == {"n1": "pod group does not fit"}
        assert used_mib(scheduler) == 2000
        await settle()
        messages = [message for name, _, message in await world.events() if name == "a0"]
        assert any("3 members must be placed together, 2 fit: 0/1 nodes fit" in message for message in messages)


@story
async def test_two_groups_that_fit_one_at_a_time_do_not_lock_each_other_out(world: World) -> None:
    """Filtered in turns, as kube-scheduler would: one of the two is placed whole, the other holds nothing."""
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        groups = {name: [await member(world, f"{name}{place}", name, 3) for place in range(3)] for name in ("a", "b")}
        for pods in groups.values():
            await read(scheduler, pods[0])
        in_turns = [pod for pair in zip(*groups.values(), strict=True) for pod in pair]
        binds = [asyncio.create_task(scheduler.bind(ref(pod), "n1")) for pod in in_turns if asked(scheduler, pod).node_names]
        assert await asyncio.gather(*binds) == ["", "", ""]
        assert phases(scheduler, *groups["b"]) == ["", "", ""]
        assert used_mib(scheduler) == 3000


@story
async def test_a_group_waits_for_its_members_to_exist_and_the_first_ones_are_called_when_room_is_kept(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        early = await member(world, "a0", "a", 2)
        await read(scheduler, early)
        assert asked(scheduler, early).failed == {"n1": "pod group waits for more members"}
        late = await member(world, "a1", "a", 2)
        assert asked(scheduler, late).node_names == ["n1"]
        await asyncio.sleep(1.0)
        assert [condition.type for condition in (await world.get(early)).status.conditions or ()] == ["hami.io/RoomChanged"]
        assert phases(scheduler, early, late) == [Phase.NOMINATED, Phase.RESERVED]
        assert asked(scheduler, early).node_names == ["n1"]


@story
async def test_what_is_kept_for_members_that_do_not_come_lapses(world: World) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        pods = [await member(world, f"a{place}", "a", 2) for place in range(2)]
        await read(scheduler, pods[0])
        asked(scheduler, pods[0])
        await world.admin.patch_conditions(ref(pods[0]), [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}])
        await asyncio.sleep(32.0)
        assert used_mib(scheduler) == 0


@pytest.mark.parametrize("mode", PlacementMode)
@story
async def test_a_member_that_needs_no_device_counts_as_being_there(world: World, mode: PlacementMode) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler(options=Options(placement=mode)) as scheduler:
        await member(world, "launcher", "a", 2, cpu=1)
        worker = await member(world, "worker", "a", 2)
        await read(scheduler, worker)
        assert await place(scheduler, worker) == "n1"


class WithGroups(MemoryCluster):
    """An API server that has PodGroups."""

    groups: dict[tuple[str, str], int]

    async def get(self, kind: api.Kind[Any], name: str, *, namespace: str | None = None) -> Any:
        if kind.kind != "PodGroup":
            return await super().get(kind, name, namespace=namespace)
        if (kind.api_version, name) not in self.groups:
            raise api.NotFound("not found", code=404)
        size = self.groups[kind.api_version, name]
        return PodGroup(metadata=ObjectMeta(name=name, namespace=namespace or ""), spec=PodGroupSpec(min_member=size))


@story
async def test_the_pod_group_says_how_many_whatever_the_annotation_says(world: World) -> None:
    await world.node("n1", *FOUR)
    cluster = WithGroups(world.store)
    cluster.groups = {("scheduling.volcano.sh/v1beta1", "v"): 2, ("scheduling.x-k8s.io/v1alpha1", "c"): 2}
    async with world.scheduler(cluster=cluster) as scheduler:
        volcano = await member(world, "v0", "v", 1)
        body = {"metadata": {"name": "c0", "labels": {"scheduling.x-k8s.io/pod-group": "c"}}}
        coscheduled = await world.admin.patch(api.PODS, (await world.pod("c0", gpu=1)).metadata.name, body, namespace="default")
        alone = await member(world, "alone", "nobody-made-it")
        await settle()
        for pod in (volcano, coscheduled, alone):
            await read(scheduler, pod)
        assert asked(scheduler, volcano).failed == {"n1": "pod group waits for more members"}
        assert asked(scheduler, coscheduled).failed == {"n1": "pod group waits for more members"}
        assert await place(scheduler, alone) == "n1"


@pytest.mark.parametrize("size", ["0", "-1", "1001", "many", "1.5", "", "٣"])
@story
async def test_a_size_that_cannot_be_read_is_refused_with_its_field(world: World, size: str) -> None:
    await world.node("n1", *FOUR)
    async with world.scheduler() as scheduler:
        pod = await world.pod("p", annotations={keys.VOLCANO_GROUP: "g", keys.GROUP_SIZE: size}, gpu=1)
        await read(scheduler, pod)
        assert asked(scheduler, pod).unresolvable == {"n1": "invalid device request"}
        await settle()
        messages = [message for _, _, message in await world.events()]
        assert any("metadata.annotations[hami.io/pod-group-min-member]" in message for message in messages)

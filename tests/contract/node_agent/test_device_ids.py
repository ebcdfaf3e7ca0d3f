"""Kubelet's ids name the cards that a pod was granted, so that readers of PodResources see the right ones; where they do not, it is reported."""

from __future__ import annotations

import asyncio

import pytest

from hami_node_agent.discovery import card_of
from hami_protocol.devices import AllocationMode
from hami_protocol.kubernetes import Pod
from tests.contract.node_agent.world import World, play

MODES = pytest.mark.parametrize("mode", AllocationMode, ids=str)
CARDS = ("GPU-a", "GPU-b")
ON_TWO_NUMA_NODES = """
devices:
  - {uuid: GPU-a, memory_mib: 24576, model: NVIDIA A10, numa: 0}
  - {uuid: GPU-b, memory_mib: 24576, model: NVIDIA A10, numa: 1}
"""


def cards(world: World, pod: Pod, container: str = "main") -> list[str]:
    return sorted(card_of(one, CARDS) for one in world.kubelet.ids(pod, container))


async def started(world: World, pod: Pod, *containers: str) -> None:
    for container in containers:
        await world.agent.pre_start(world.kubelet.ids(pod, container))


async def differences(world: World) -> list[str]:
    return [message for _, reason, message in await world.complaints() if reason == "DeviceIdsDiffer"]


@MODES
def test_kubelets_ids_are_of_the_granted_cards(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        for number in range(8):
            shares = [("GPU-a", 100, 0), ("GPU-b", 100, 0)] if number % 2 else [("GPU-b", 100, 0)]
            pod = await world.pod(f"p{number}", main=shares, bind_time=number)
            await world.lock(f"p{number}")
            await world.kubelet.admit(world.agent, pod)
            await started(world, pod, "main")
            assert cards(world, pod) == sorted(uuid for uuid, _, _ in shares)
        assert await differences(world) == []

    play(scenario, mode)


def test_of_pods_that_wait_together_each_gets_ids_of_its_own_cards() -> None:
    async def scenario(world: World) -> None:
        first = await world.pod("first", main=[("GPU-b", 100, 0)], bind_time=1)
        second = await world.pod("second", one=[("GPU-a", 100, 0)], two=[("GPU-b", 100, 0), ("GPU-a", 100, 0)], bind_time=2)
        await world.kubelet.admit(world.agent, first)
        await world.kubelet.admit(world.agent, second)
        assert cards(world, first) == ["GPU-b"]
        assert (cards(world, second, "one"), cards(world, second, "two")) == (["GPU-a"], ["GPU-a", "GPU-b"])

    play(scenario)


def test_a_pod_that_is_not_known_yet_is_waited_for_only_shortly() -> None:
    async def scenario(world: World) -> None:
        started_at = world.clock.monotonic()
        assert await world.agent.preferred(["GPU-a-0", "GPU-b-0"], [], 1) == ()
        assert world.clock.monotonic() - started_at < 1
        asked = asyncio.create_task(world.agent.preferred(["GPU-a-0", "GPU-b-0"], [], 1))
        await world.pod("late", main=[("GPU-b", 100, 0)])
        assert await asked == ("GPU-b-0",)

    play(scenario)


@MODES
def test_ids_of_another_card_are_reported_once_with_their_numa_nodes_and_the_grant_holds(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        world.kubelet.insists = True
        grants = {"p0": "GPU-a", "p1": "GPU-b"}
        wrong: list[str] = []
        for number, (name, card) in enumerate(grants.items()):
            pod = await world.pod(name, main=[(card, 100, 0)], bind_time=number)
            await world.lock(name)
            answers = await world.kubelet.admit(world.agent, pod)
            await started(world, pod, "main")
            await started(world, pod, "main")  # the container has ended and is started again
            assert world.environment(answers["main"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == "100m"
            if (held := cards(world, pod)) != [card]:
                other = {"GPU-a": "GPU-a (NUMA node 0)", "GPU-b": "GPU-b (NUMA node 1)"}
                wrong.append(f"container main was granted {other[card]}, kubelet holds ids of {other[held[0]]}")
        found = await differences(world)
        assert [message.partition(";")[0] for message in found] == wrong

    play(scenario, mode, cards=ON_TWO_NUMA_NODES)

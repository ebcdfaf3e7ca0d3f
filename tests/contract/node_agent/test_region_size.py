"""A container may write its region, and so make the file longer: what is beyond the region's end is cut off, and reported once."""

from __future__ import annotations

import asyncio

from hami_node_agent import region
from hami_node_agent.needs import HostPaths, folder_name
from hami_protocol.kubernetes import Pod
from tests.contract.node_agent.world import World, play

MIB = 2**20
SHARE = [("GPU-a", 1000, 30)]


async def running(world: World, name: str) -> Pod:
    pod = await world.pod(name, main=SHARE)
    for container in await world.kubelet.admit(world.agent, pod):
        await world.agent.pre_start(world.kubelet.ids(pod, container))
    return pod


def path(pod: Pod) -> str:
    return f"{HostPaths().regions}/{folder_name(pod.metadata.uid, 'main')}"


def test_a_region_that_grows_is_cut_back_every_time_and_reported_once() -> None:
    async def scenario(world: World) -> None:
        grows, stays = await running(world, "grows"), await running(world, "stays")
        for _ in range(5):
            world.files.contents[path(grows)] += bytes(3 * MIB)
            await asyncio.sleep(2)
            assert world.files.contents[path(grows)] == region.EMPTY
        assert world.files.contents[path(stays)] == region.EMPTY
        told = [(pod, message) for pod, reason, message in await world.complaints() if reason == "RegionTooLarge"]
        assert [pod for pod, _ in told] == ["grows"]
        assert "container main: its region had grown to" in told[0][1]

    play(scenario)


def test_without_the_monitor_it_is_cut_back_too() -> None:
    async def scenario(world: World) -> None:
        pod = await running(world, "p")
        world.files.contents[path(pod)] += bytes(MIB)
        await asyncio.sleep(2)
        assert len(world.files.contents[path(pod)]) == len(region.EMPTY)

    play(scenario, monitor=False)


def test_a_file_of_a_pod_that_is_not_known_is_cut_back_as_well() -> None:
    async def scenario(world: World) -> None:
        world.files.write(f"{HostPaths().regions}/gone_main", bytes(10 * MIB))
        await asyncio.sleep(2)
        assert len(world.files.contents[f"{HostPaths().regions}/gone_main"]) == len(region.EMPTY)

    play(scenario)

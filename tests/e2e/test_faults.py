"""Processes die at any moment, and NATS goes away: nothing is oversold, every pod settles, and every event is there once, in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import aiohttp
import pytest

from hami_protocol import assignment, events
from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import agent_process
from tests.e2e.conftest import CARD_MIB, World, a_pod, eventually, of_pod, runs

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ALLOCATED = "hami.io/vgpu-devices-allocated"


def booked(pods: list[Pod]) -> Counter[str]:
    """MiB by card, from the pods' annotations."""
    total: Counter[str] = Counter()
    for pod in pods:
        for entry in assignment.decode_entries(pod.metadata.annotations.get(ALLOCATED, "")):
            for share in entry:
                total[share.uuid] += share.memory_mib
    return total


async def test_services_killed_at_random_moments_leave_no_pod_stuck_and_no_card_oversold(world: World) -> None:
    chance = random.Random(7)
    victims = ["scheduler", "registry", "webhook", agent_process("locked"), agent_process("cdi")]
    manifests = [a_pod(f"k-{number}", mib=CARD_MIB // 4) for number in range(10)]
    for place, manifest in enumerate(manifests):
        await world.apply_again(manifest)
        if place % 2:
            victim = victims[(place // 2) % len(victims)]
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await world.rig.kill(victim)
            await world.rig.restart(victim)
    pods = await world.keep_running(*manifests)
    assert max(booked(pods).values()) <= CARD_MIB
    for pod in pods:
        assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{CARD_MIB // 4}m"
    # The ledger is exact: four cards hold sixteen quarters, so six more fit and no seventh.
    more = [f"more-{number}" for number in range(7)]
    await world.apply(*(a_pod(name, mib=CARD_MIB // 4) for name in more))
    later = await world.running_of(more, 6)
    assert set(booked([*pods, *later]).values()) == {CARD_MIB}


async def test_with_nats_away_pods_are_placed_and_every_event_arrives_once_in_order(world: World) -> None:
    names = [f"quiet-{number}" for number in range(6)]
    await world.rig.kill("nats")
    for name in names[:4]:
        await world.apply(a_pod(name, mib=2048))
    for name in names[:4]:
        await world.until(name, lambda pod: pod.status.phase == "Running")
    await world.rig.restart("nats")
    await world.apply(*(a_pod(name, mib=2048) for name in names[4:]))
    pods = await world.running(*names)
    async with world.log() as log:
        await eventually(lambda: all(events.AllocationSucceeded in of_pod(log, uid) for uid in uids(pods)))
    for uid in uids(pods):
        mine = of_pod(log, uid)
        assert [mine.count(kind) for kind in (events.PodAssigned, events.PodAllocating, events.AllocationSucceeded)] == [1, 1, 1]
        assert mine.index(events.PodAssigned) < mine.index(events.PodAllocating) < mine.index(events.AllocationSucceeded)


async def test_with_the_api_server_away_running_pods_stay_and_nothing_is_oversold(world: World) -> None:
    await world.apply(*(a_pod(f"early-{number}", mib=CARD_MIB // 2) for number in range(6)))
    early = await world.running(*(f"early-{number}" for number in range(6)))
    await world.apply(*(a_pod(f"late-{number}", mib=CARD_MIB // 2) for number in range(4)))
    async with aiohttp.ClientSession() as session, session.post(f"{world.api_url}/rig/down", json={"seconds": 3}) as answer:
        assert answer.status == 200
    await asyncio.sleep(3.5)
    late = await world.running_of([f"late-{number}" for number in range(4)], 2)
    now = [await world.pod(pod.metadata.name) for pod in early]
    assert [pod.metadata.uid for pod in now if runs(pod)] == [pod.metadata.uid for pod in early]
    assert set(booked([*now, *late]).values()) == {CARD_MIB}


async def test_kubelets_killed_and_started_again_go_on_with_their_pods(world: World) -> None:
    names = ["kept-locked", "kept-cdi"]
    await world.apply(*(a_pod(name, mib=2000, pool=name.removeprefix("kept-")) for name in names))
    before = await world.running(*names)
    await world.rig.kill("kubelets")
    await world.rig.restart("kubelets")
    for node in ("locked", "cdi"):
        await world.node_lists(node, "20")
    await world.apply(*(a_pod(f"new-{pool}", mib=3000, pool=pool) for pool in ("locked", "cdi")))
    for pod in await world.running("new-locked", "new-cdi"):
        assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    after = await world.running(*names)
    assert uids(after) == uids(before)
    for pod in after:
        assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
    held = [set(ids) for pod in await world.pods() for ids in world.ids(pod).values()]
    assert sum(len(each) for each in held) == len(set().union(*held)) == 4


def uids(pods: list[Pod]) -> set[str]:
    """Of the pods."""
    return {pod.metadata.uid for pod in pods}

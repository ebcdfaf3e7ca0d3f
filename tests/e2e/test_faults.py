"""Processes die at any moment, and NATS goes away: nothing is oversold, every pod settles, and every event is there once, in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from hami_protocol import assignment, events
from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import agent_process
from tests.e2e.conftest import CARD_MIB, SETTLE_SECONDS, World, a_pod, eventually, of_pod, runs, waits

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ALLOCATED = "hami.io/vgpu-devices-allocated"


async def settled(world: World, names: list[str]) -> list[Pod]:
    """The pods, once each runs or is refused for good."""
    return [await world.until(name, lambda pod: runs(pod) or (waits(pod) and not pod.spec.node_name), SETTLE_SECONDS) for name in names]


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
    names = [f"k-{number}" for number in range(10)]
    for place, name in enumerate(names):
        await world.apply_again(a_pod(name, mib=CARD_MIB // 4))
        if place % 2:
            victim = victims[(place // 2) % len(victims)]
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await world.rig.kill(victim)
            await world.rig.restart(victim)
    pods = await settled(world, names)
    assert all(runs(pod) for pod in pods)
    assert max(booked(pods).values()) <= CARD_MIB
    for pod in pods:
        assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{CARD_MIB // 4}m"
    # The ledger is exact: four cards hold sixteen quarters, so six more fit and no seventh.
    more = [f"more-{number}" for number in range(7)]
    await world.apply(*(a_pod(name, mib=CARD_MIB // 4) for name in more))
    later = await settled(world, more)
    assert [runs(pod) for pod in later].count(True) == 6
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


def uids(pods: list[Pod]) -> set[str]:
    """Of the pods."""
    return {pod.metadata.uid for pod in pods}

"""Any one of what decides or carries is lost at any moment: another goes on, with an exact ledger, and the log has every event once, in order."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from hami_protocol import events, subjects
from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import LOOPBACK
from tests.e2e.available import OTHER, SERVERS, AvailableRig
from tests.e2e.conftest import CARD_MIB, SETTLE_SECONDS, World, a_pod, eventually, of_each_mode, of_pod
from tests.e2e.test_faults import booked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]
ALLOCATED_METRIC = "GPUDeviceMemoryAllocated"
MIB = 1 << 20
LETTERS: dict[type[events.Event], str] = {
    events.PodAssigned: "A",
    events.AssignmentLapsed: "L",
    events.PodAllocating: "G",
    events.AllocationSucceeded: "S",
}
ONCE_EACH = "AGS"
"""Assigned, then granted, then served."""
SERVERS_OF_THE_BUS_DIED = "A(LA)*GS"
"""The same, but an agent that lost its connection with a server cannot be asked before a Binding: then the pod is assigned anew."""
LEADERS_DIED = "A(L?A)*GS"
"""The same, but what was reserved for a pod may have died with who had reserved it: then it is assigned anew, and never behind its grant."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig() -> AsyncIterator[AvailableRig]:
    """This module's rig, in place of the session's; ``world`` is on it."""
    async with of_each_mode(AvailableRig) as running:
        yield running


async def charged(rig: AvailableRig, replica: str) -> Counter[str]:
    """MiB by card, as a replica of the scheduler counts them."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{LOOPBACK}:{rig.ports[replica]['health']}/metrics") as answer:
        text = await answer.text()
    return Counter(
        {
            sample.labels["deviceuuid"]: round(sample.value / MIB)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == ALLOCATED_METRIC and sample.value
        }
    )


async def until_exact(world: World, rig: AvailableRig, *replicas: str) -> None:
    """Return once each replica charges what the pods' annotations say, no more and no less."""
    wanted = booked(await world.pods())
    found = [await charged(rig, each) for each in replicas]
    for _ in range(int(SETTLE_SECONDS / 0.1)):
        if all(each == wanted for each in found):
            return
        await asyncio.sleep(0.1)
        found = [await charged(rig, each) for each in replicas]
    pytest.fail(f"{dict(zip(replicas, found, strict=True))} are not {wanted}")


async def log_is_whole(world: World, pods: list[Pod], order: str = ONCE_EACH) -> None:
    """Every pod's events are in the log, in this ``order`` of letters."""
    uids = [pod.metadata.uid for pod in pods]
    async with world.log() as log:
        await eventually(lambda: all({"A", "G", "S"} <= set(letters(log, uid)) for uid in uids))
        await asyncio.sleep(0.5)  # for whatever might come twice
    assert {uid: told for uid in uids if not re.fullmatch(order, told := letters(log, uid))} == {}


def letters(log: list[events.Event], uid: str) -> str:
    """What the log tells of a pod, in letters."""
    return "".join(LETTERS.get(kind, "") for kind in of_pod(log, uid))


async def other_leads(world: World, rig: AvailableRig, killed: str) -> float:
    """Seconds until the other replica leads."""
    began = asyncio.get_running_loop().time()
    assert await rig.leader(world.cluster, killed.partition("-")[0], other_than=killed) == OTHER[killed]
    return asyncio.get_running_loop().time() - began


async def test_leaders_are_killed_at_any_moment_and_the_others_lead_with_an_exact_ledger(world: World, rig: AvailableRig) -> None:
    chance = random.Random(1)
    manifests = [a_pod(f"ha-{number}", mib=CARD_MIB // 4) for number in range(12)]
    for batch in range(0, len(manifests), 4):
        victims = [await rig.leader(world.cluster, service) for service in ("scheduler", "registry")]
        await rig.work_beside(OTHER[victims[0]])  # requests go to the replica that follows, which hands them to the leader
        moment = chance.randrange(4)
        async with asyncio.TaskGroup() as group:
            for place, manifest in enumerate(manifests[batch : batch + 4]):
                await world.apply(manifest)
                if place == moment:
                    await asyncio.sleep(chance.uniform(0.0, 0.15))
                    for victim in victims:
                        await rig.kill(victim)
                    taken = [group.create_task(other_leads(world, rig, victim)) for victim in victims]
        print(*(f"{OTHER[victim]} leads {task.result():.1f} s after" for victim, task in zip(victims, taken, strict=True)))
        for victim in victims:
            await rig.restart(victim)
    pods = await world.keep_running(*manifests)
    assert max(booked(pods).values()) <= CARD_MIB
    more = [f"more-{number}" for number in range(5)]  # twelve of sixteen quarters are taken
    await world.apply(*(a_pod(name, mib=CARD_MIB // 4) for name in more))
    later = await world.running_of(more, 4)
    assert set(booked([*pods, *later]).values()) == {CARD_MIB}
    await until_exact(world, rig, "scheduler", "scheduler-2")
    await log_is_whole(world, pods, order=LEADERS_DIED)


async def test_a_server_of_the_bus_and_then_the_leader_of_each_stream_are_killed_while_pods_are_placed(
    world: World, rig: AvailableRig
) -> None:
    names = [f"bus-{number}" for number in range(10)]
    led_by = await rig.stream_leaders()
    for place, name in enumerate(names):
        await world.apply(a_pod(name, mib=2048))
        if place % 2:
            victim = SERVERS[0] if place == 1 else led_by[subjects.STREAMS[place // 2 - 1].name]
            await rig.kill(victim)
            await asyncio.sleep(0.3)
            await rig.restart(victim)
            led_by = await rig.stream_leaders()
    pods = await world.running(*names)
    await log_is_whole(world, pods, order=SERVERS_OF_THE_BUS_DIED)
    await until_exact(world, rig, "scheduler", "scheduler-2")

"""Cards that are all taken, on the real kube-scheduler: who goes for whom, who does not, and groups that start together or not at all.

kube-scheduler finds no victim where only cards are short (it counts slots, of which there are plenty): the evictions are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from tests.cluster.conftest import CARD_MIB, CARDS
from tests.cluster.world import World, a_container, a_pod, shares_of, waits

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOW, MID, HIGH, PATIENT = "story-low", "story-mid", "story-high", "story-patient"
QUIET_SECONDS = 4.0
"""In which an eviction would long have happened."""


def a_class(name: str, value: int, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value, **fields}


@pytest_asyncio.fixture(loop_scope="session")
async def ranks(world: World) -> AsyncIterator[World]:
    """The cluster with classes of priority, and no disruption budget afterwards."""
    await world.apply(a_class(LOW, 5), a_class(MID, 50), a_class(HIGH, 1000), a_class(PATIENT, 1000, preemptionPolicy="Never"))
    yield world
    await world.gone("poddisruptionbudgets", "--all")


def whole(name: str, rank: str, *, cards: int = 1, **fields: Any) -> dict[str, Any]:
    """A pod that takes whole cards."""
    return a_pod(name, a_container(mib=CARD_MIB, count=cards), priorityClassName=rank, **fields)


async def holding(world: World, *pods: dict[str, Any]) -> None:
    """These pods run, and so take what they ask."""
    await world.apply(*pods)
    await world.running(*(pod["metadata"]["name"] for pod in pods))


async def leaving(world: World) -> set[str]:
    return {pod.metadata.name for pod in await world.pods() if pod.metadata.deletion_timestamp}


async def left(world: World) -> set[str]:
    return {pod.metadata.name for pod in await world.pods() if not pod.metadata.deletion_timestamp}


def card_of(pod: Pod) -> str:
    """The one card that a pod's one container holds a share of."""
    ((share,),) = shares_of(pod).values()
    return share.uuid


def goes(pod: Pod) -> bool:
    return bool(pod.metadata.deletion_timestamp)


async def test_one_pod_of_lower_priority_goes_and_its_card_is_the_preemptors(ranks: World) -> None:
    lows = [whole(f"low{number}", LOW) for number in range(CARDS - 1)]
    await holding(ranks, *lows, whole("mid", MID))
    await ranks.apply(whole("high", HIGH))
    (pod,) = await ranks.running("high")
    await ranks.check_grant(pod)
    there = await left(ranks)
    assert len(there & {low["metadata"]["name"] for low in lows}) == CARDS - 2
    assert {"mid", "high"} <= there
    assert "Preempting" in await ranks.told("high")


async def test_a_budget_that_is_used_up_sends_the_eviction_to_a_pod_of_higher_priority(ranks: World) -> None:
    guarded = [whole(f"guarded{number}", LOW, metadata={"labels": {"app": "guarded"}}) for number in range(CARDS - 1)]
    await holding(ranks, *guarded, whole("mid", MID))
    budget = {"minAvailable": CARDS - 1, "selector": {"matchLabels": {"app": "guarded"}}}
    await ranks.apply(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard", "namespace": "default"}, "spec": budget}
    )
    await ranks.kubectl("wait", "--for=jsonpath={.status.currentHealthy}=3", "poddisruptionbudget/guard", "--timeout=60s")
    await ranks.apply(whole("high", HIGH))
    await ranks.running("high")
    assert {pod["metadata"]["name"] for pod in guarded} <= await left(ranks)
    await ranks.apply(whole("second", HIGH))
    await ranks.until("second", waits)
    await asyncio.sleep(QUIET_SECONDS)
    assert {pod["metadata"]["name"] for pod in guarded} <= await left(ranks)


async def test_who_waits_on_principle_and_who_is_no_higher_evict_nobody(ranks: World) -> None:
    await holding(ranks, whole("mid", MID, cards=CARDS))
    await ranks.apply(whole("patient", PATIENT), whole("equal", MID), whole("lower", LOW))
    for name in ("patient", "equal", "lower"):
        await ranks.until(name, waits)
    await asyncio.sleep(QUIET_SECONDS)
    assert await leaving(ranks) == set()


async def test_what_was_freed_for_a_pod_that_is_deleted_meanwhile_is_anybodys(ranks: World) -> None:
    slow = a_container(mib=CARD_MIB, count=CARDS, command="trap '' TERM; while true; do sleep 1; done")
    await holding(ranks, a_pod("slow", slow, priorityClassName=LOW, terminationGracePeriodSeconds=6))
    await ranks.apply(whole("high", HIGH))
    await ranks.until("slow", goes)
    await ranks.kubectl("delete", "pod", "high", "--wait=false", "--grace-period=0", "--force")
    await ranks.apply(whole("humble", LOW, cards=CARDS))
    await ranks.running("humble")


async def test_a_group_starts_as_a_whole_or_not_at_all(ranks: World) -> None:
    await holding(ranks, whole("holder", MID, cards=2))
    group = {"annotations": {keys.VOLCANO_GROUP: "team", keys.GROUP_SIZE: "3"}}
    members = [f"member{number}" for number in range(3)]
    await ranks.apply(*(whole(name, HIGH, metadata=group) for name in members))
    for name in members:
        await ranks.until(name, waits)
    await asyncio.sleep(QUIET_SECONDS)
    pods = [await ranks.pod(name) for name in members]
    assert not any(pod.spec.node_name for pod in pods)
    assert await leaving(ranks) == set(), "a group evicts nobody"
    await ranks.gone("pod/holder")
    await ranks.running(*members)
    assert len({card_of(await ranks.pod(name)) for name in members}) == 3


async def test_small_victims_on_one_card_go_together_before_one_on_each(ranks: World) -> None:
    halves = [a_pod(f"half{number}", a_container(mib=CARD_MIB // 2), priorityClassName=LOW) for number in range(2 * CARDS)]
    await holding(ranks, *halves)
    holders: dict[str, set[str]] = {}
    for pod in await ranks.pods():
        holders.setdefault(card_of(pod), set()).add(pod.metadata.name)
    await ranks.apply(whole("high", HIGH))
    await ranks.running("high")
    there = await left(ranks)
    gone = [uuid for uuid, names in holders.items() if not names & there]
    assert len(gone) == 1
    assert all(names <= there for uuid, names in holders.items() if uuid not in gone)

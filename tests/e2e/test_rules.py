"""Priority and groups through all processes: kube-scheduler's stand-in asks, we evict and gather."""

from __future__ import annotations

from typing import Any

import pytest

from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from tests.e2e.conftest import CARD_MIB, World, a_pod, runs, waits

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def member(name: str, size: int, **asks: Any) -> dict[str, Any]:
    return a_pod(name, annotations={keys.VOLCANO_GROUP: "gang", keys.GROUP_SIZE: str(size)}, **asks)


async def test_one_pod_makes_room_for_an_important_one(world: World) -> None:
    names = [f"low-{number}" for number in range(4)]
    await world.apply(*(a_pod(name, mib=CARD_MIB, annotations={"rig.hami.io/stop-seconds": "1"}) for name in names))
    await world.running(*names)
    important = a_pod("important", mib=CARD_MIB)
    important["spec"]["priorityClassName"] = "system-cluster-critical"
    await world.apply(important)
    await world.until("important", runs, seconds=15)
    left = {pod.metadata.name for pod in await world.pods() if pod.status.phase == "Running"}
    assert len(left & set(names)) == 3


async def test_a_group_is_placed_together_or_waits_together(world: World) -> None:
    await world.apply(*(member(f"gang-{number}", 3, mib=CARD_MIB) for number in range(2)))
    for number in range(2):
        await world.until(f"gang-{number}", waits)
    await world.apply(member("gang-2", 3, mib=CARD_MIB))
    bound: list[Pod] = await world.running(*(f"gang-{number}" for number in range(3)))
    assert len({pod.metadata.annotations["hami.io/vgpu-devices-allocated"] for pod in bound}) == 3

"""A share as the programs of a real container meet it: stopped at the limit, its own view, an exact count after ``kill -9``, a whole neighbour."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hami_protocol.kubernetes import Pod
from tests.cluster.harness import images
from tests.cluster.world import LOOK_AGAIN_SECONDS, SETTLE_SECONDS, STAY, World, a_container, a_pod

pytestmark = pytest.mark.asyncio(loop_scope="session")
CARD = "export NVIDIA_VISIBLE_DEVICES=$(grep -a -o 'GPU-[0-9a-f-]*' /usr/local/vgpu/grant | sed -n 1p) FAKE_GPU_STATE=/tmp/cards.state\n"
HOLD_AND_LOOK = f"{CARD} trap exit TERM; vgpu-alloc --mib 1500 --hold-seconds -1 & while :; do vgpu-smi --json; sleep 1; done"
FILL_AND_KILL = f"""{CARD}
vgpu-alloc --mib 600 --hold-seconds -1 > /tmp/first & holder=$!
until grep -q allocated_mib /tmp/first; do sleep 0.1; done
cat /tmp/first
vgpu-alloc --mib 500
vgpu-smi --json
kill -9 $holder; wait $holder
vgpu-smi --json
vgpu-alloc --mib 2000 --step-mib 100
{STAY}
"""


def on_fake_cards(world: World, name: str, command: str, *, mib: int, pool: str) -> dict[str, Any]:
    """A pod whose program finds the fake driver with the node's cards. What a card holds is its container's own affair: pids differ by container."""
    container = a_container(mib=mib, command=command, image=images.TOOLS)
    container["env"] = [{"name": "FAKE_GPU_CONFIG", "value": "/cards.conf"}]
    container["volumeMounts"] = [{"name": "cards", "mountPath": "/cards.conf"}]
    volumes = [{"name": "cards", "hostPath": {"path": str(world.installation.nodes[pool].folder.cards), "type": "File"}}]
    return a_pod(name, container, volumes=volumes, pool=pool)


async def says(world: World, pod: Pod) -> list[dict[str, Any]]:
    """What the programs of a pod's container have said so far."""
    return [json.loads(line) for line in (await world.output(pod)).splitlines() if line.startswith("{") and line.endswith("}")]


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_a_container_is_stopped_at_its_limit_and_its_neighbour_keeps_what_it_has(world: World, pool: str) -> None:
    await world.apply(on_fake_cards(world, "neighbour", HOLD_AND_LOOK, mib=2000, pool=pool))
    (neighbour,) = await world.running("neighbour")
    await world.apply(on_fake_cards(world, "limited", FILL_AND_KILL, mib=1000, pool=pool))
    (limited,) = await world.running("limited")

    async def said(pod: Pod, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(SETTLE_SECONDS):
            while len(found := await says(world, pod)) < count:  # noqa: ASYNC110 - a file is looked at
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return found

    held, refused, full, after_kill, stopped = await said(limited, 5)
    assert (held["result"], held["free_mib"], held["total_mib"]) == (0, 400, 1000)
    assert (refused["result"], refused["call"], refused["free_mib"]) == (2, "cuMemAlloc", 400)
    (device,) = full["devices"]
    assert (device["total_mib"], device["used_mib"]) == (1000, 600)
    assert [(process["pid"], process["used_mib"]) for process in device["processes"]] == [(held["pid"], 600)]
    (device,) = after_kill["devices"]
    assert (device["used_mib"], device["free_mib"], device["processes"]) == (0, 1000, [])
    assert (stopped["result"], stopped["allocated_mib"]) == (2, 1000)

    seen = len(await says(world, neighbour))
    views = [one["devices"][0] for one in (await said(neighbour, seen + 2))[seen:]]
    assert {(view["total_mib"], view["used_mib"]) for view in views} == {(2000, 1500)}

"""A share as the programs of its container meet it, on a card shared with a neighbour: stopped at the limit, nobody else's memory seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_protocol import assignment
from hami_protocol.kubernetes import Pod
from tests.e2e.conftest import World, a_pod, eventually
from tests.e2e.test_resize import uses

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ALLOCATED = "hami.io/vgpu-devices-allocated"
ONE_CARD = {"rig.hami.io/process": "true", "hami.io/gpu-scheduler-policy": "binpack"}
HOLD_AND_LOOK = "vgpu-alloc --mib 1500 --hold-seconds -1 & while :; do vgpu-smi --json; sleep 0.2; done"
FILL_AND_KILL = """
first=$(mktemp)
vgpu-alloc --mib 600 --hold-seconds -1 > $first & holder=$!
until grep -q allocated_mib $first; do sleep 0.02; done
cat $first; rm $first
vgpu-alloc --mib 500
vgpu-smi --json
kill -9 $holder; wait $holder
vgpu-smi --json
vgpu-alloc --mib 1000
vgpu-alloc --mib 2000 --step-mib 100 --hold-seconds -1
"""


def says(world: World, pod: Pod) -> list[dict[str, Any]]:
    """What the programs of a pod's container have said so far."""
    log = world.rig.node_folder(pod.spec.node_name).containers / pod.metadata.uid / "main.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def card_of(pod: Pod) -> str:
    ((share,),) = assignment.decode_entries(pod.metadata.annotations[ALLOCATED])
    return share.uuid


@pytest.mark.parametrize("pool", ["locked", "cdi"])
async def test_a_container_is_stopped_at_its_limit_and_its_neighbour_keeps_what_it_has(world: World, pool: str) -> None:
    manifests = [a_pod("neighbour", mib=2000, pool=pool, annotations=ONE_CARD), a_pod("limited", mib=1000, pool=pool, annotations=ONE_CARD)]
    for manifest, script in zip(manifests, (HOLD_AND_LOOK, FILL_AND_KILL), strict=True):
        manifest["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    await world.apply(manifests[0])
    (neighbour,) = await world.running("neighbour")
    await eventually(lambda: any(said.get("devices", [{}])[0].get("used_mib") == 1500 for said in says(world, neighbour)))
    looked = len(says(world, neighbour))

    await world.apply(manifests[1])
    (limited,) = await world.running("limited")
    assert card_of(limited) == card_of(neighbour)
    await eventually(lambda: len(says(world, limited)) == 6)
    held, refused, full, after_kill, whole, stopped = says(world, limited)
    assert (held["result"], held["free_mib"], held["total_mib"]) == (0, 400, 1000)
    assert (refused["result"], refused["call"], refused["free_mib"]) == (2, "cuMemAlloc", 400)
    (device,) = full["devices"]
    assert (device["uuid"], device["total_mib"], device["used_mib"]) == (card_of(limited), 1000, 600)
    assert [(process["pid"], process["used_mib"]) for process in device["processes"]] == [(held["pid"], 600)]
    (device,) = after_kill["devices"]
    assert (device["used_mib"], device["free_mib"], device["processes"]) == (0, 1000, [])
    assert (whole["result"], whole["allocated_mib"]) == (0, 1000)
    assert (stopped["result"], stopped["allocated_mib"]) == (2, 1000)
    assert await uses(world.rig, pool, "limited") == 1000

    await eventually(lambda: len(says(world, neighbour)) > looked + 2)
    views = [said["devices"][0] for said in says(world, neighbour)[looked:] if "devices" in said]
    assert {(view["total_mib"], view["used_mib"]) for view in views} == {(2000, 1500)}
    assert await uses(world.rig, pool, "neighbour") == 1500

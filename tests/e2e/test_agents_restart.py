"""Agents are restarted and killed while a ReplicaSet asks for shares on their node: pods wait for the agent, and no storm of rejected ones comes."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import agent_process
from tests.e2e.conftest import World, a_pod, runs

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

REPLICAS = 12
SECONDS = 90.0


def replicas(count: int, pool: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "busy"}}, "spec": a_pod("busy", mib=100, pool=pool)["spec"]}
    spec = {"replicas": count, "selector": {"matchLabels": {"app": "busy"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "busy", "namespace": "default"}, "spec": spec}


async def of_set(world: World) -> list[Pod]:
    return [pod for pod in await world.pods() if pod.metadata.labels.get("app") == "busy"]


async def grown(world: World, pool: str) -> list[Pod]:
    """The pods that kubelet rejected, once all replicas run."""
    await world.apply(replicas(REPLICAS, pool))
    async with asyncio.timeout(SECONDS):
        while len([pod for pod in await of_set(world) if runs(pod)]) < REPLICAS:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.1)
    rejected = [pod for pod in await of_set(world) if pod.status.phase == "Failed"]
    await world.kubectl("delete", "replicaset", "busy")
    return rejected


@pytest.mark.parametrize("pool", ["locked", "cdi"])
@pytest.mark.parametrize(("kill", "most"), [(False, 0), (True, 1)], ids=["stopped", "killed"])
async def test_an_agent_goes_and_comes_back_while_a_replica_set_grows(world: World, pool: str, kill: bool, most: int) -> None:
    agent = agent_process(pool)
    for count in range(1, 5):
        await world.apply(replicas(count, pool))
    await world.rig.kill(agent, signal.SIGKILL if kill else signal.SIGTERM)
    for count in range(5, REPLICAS):
        await world.apply(replicas(count, pool))
    await asyncio.sleep(2)
    await world.rig.restart(agent)
    rejected = await grown(world, pool)
    assert len(rejected) <= most, [pod.status.message for pod in rejected]

"""Agents are rolled, stopped, killed, kubelets restarted, nodes rebooted, each while a Deployment scales: pods wait, and no storm of failures comes.

Kubelet fails a pod for good that it cannot give its devices, and the Deployment makes another one at once. So what counts is how many have failed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import agent_process
from tests.cluster.harness.installation import ROLL_SECONDS
from tests.cluster.world import SETTLE_SECONDS, World, a_container, a_deployment, runs

pytestmark = pytest.mark.asyncio(loop_scope="session")

POOLS = pytest.mark.parametrize("pool", ["cdi", "locked"])
MOST = 24
STEP_SECONDS = 0.5
AWAY_SECONDS = 4.0
"""As long as a container of an agent takes to be there again."""


@asynccontextmanager
async def scaling(world: World, pool: str) -> AsyncIterator[None]:
    """A Deployment that gets one replica more again and again, and in the end has them all running."""
    await world.apply(a_deployment("busy", a_container(mib=100, command="trap exit TERM; sleep 100000 & wait"), replicas=2, pool=pool))
    await world.serving(2, runs, app="busy")
    over = asyncio.Event()

    async def scale() -> int:
        replicas = 2
        while not over.is_set() and replicas < MOST:
            replicas += 1
            await world.kubectl("scale", "deployment/busy", f"--replicas={replicas}")
            await asyncio.sleep(STEP_SECONDS)
        return replicas

    growing = asyncio.create_task(scale())
    await asyncio.sleep(2 * STEP_SECONDS)
    yield
    await asyncio.sleep(4 * STEP_SECONDS)
    over.set()
    await world.serving(await growing, runs, app="busy")


async def failed(world: World) -> list[Pod]:
    """Pods that kubelet has rejected; none is removed meanwhile."""
    return [pod for pod in await world.pods(app="busy") if pod.status.phase == "Failed"]


@POOLS
async def test_rolling_updates_of_agents_fail_no_pod(world: World, pool: str) -> None:
    async with scaling(world, pool):
        for _ in range(3):
            await world.installation.roll(agent_process(pool))
    assert [pod.status.message for pod in await failed(world)] == []


@POOLS
async def test_an_agent_that_is_stopped_and_comes_back_fails_no_pod(world: World, pool: str) -> None:
    agent = world.installation.processes[agent_process(pool)]
    async with scaling(world, pool):
        await agent.stop(grace_seconds=ROLL_SECONDS)
        await asyncio.sleep(AWAY_SECONDS)
        await agent.start()
        await world.installation.able(agent_process(pool))
    assert [pod.status.message for pod in await failed(world)] == []


@POOLS
async def test_an_agent_that_is_killed_costs_one_pod_at_most(world: World, pool: str) -> None:
    agent = world.installation.processes[agent_process(pool)]
    async with scaling(world, pool):
        agent.send(signal.SIGKILL)
        await agent.wait()
        await asyncio.sleep(AWAY_SECONDS)
        await agent.start()
        await world.installation.able(agent_process(pool))
    assert len(await failed(world)) <= 1, [pod.status.message for pod in await failed(world)]


@POOLS
@pytest.mark.parametrize("what", ["kubelet restarts", "the node reboots"])
async def test_what_takes_kubelet_away_brings_no_storm(world: World, pool: str, what: str) -> None:
    """What runs at a reboot is failed by kubelet itself, which starts before any device plugin; of others one pod at most fails."""
    courses: dict[str, Callable[[], Awaitable[None]]] = {
        "kubelet restarts": world.installation.nodes[pool].restart_kubelet,
        "the node reboots": lambda: world.installation.reboot(pool),
    }
    async with scaling(world, pool):
        before = {pod.metadata.uid for pod in await world.pods(app="busy") if pod.status.phase == "Running"}
        await courses[what]()
        await world.installation.able(agent_process(pool))
    lost = [pod for pod in await failed(world) if pod.metadata.uid not in before]
    assert len(lost) <= 1, [pod.status.message for pod in lost]
    if what == "kubelet restarts":
        assert len(await failed(world)) == len(lost)


@POOLS
async def test_a_node_whose_agent_is_away_is_held_with_a_reason_and_back_by_itself(world: World, pool: str) -> None:
    agent = world.installation.processes[agent_process(pool)]
    await agent.stop(grace_seconds=ROLL_SECONDS)
    await world.apply(a_deployment("busy", a_container(mib=100), replicas=3, pool=pool))

    async with asyncio.timeout(SETTLE_SECONDS):
        while "its agent is about to stop" not in await world.kubectl("get", "events", "-o", "jsonpath={.items[*].message}"):  # noqa: ASYNC110
            await asyncio.sleep(STEP_SECONDS)
    assert not any(pod.spec.node_name for pod in await world.pods(app="busy"))
    await agent.start()
    await world.serving(3, runs, app="busy")
    assert await failed(world) == []

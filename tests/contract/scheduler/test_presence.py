"""A node whose agent does not serve pods takes none: what the agent says, what it does not answer, what kubelet rejects and what it can allocate."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from hami_protocol import subjects
from hami_protocol.agent_answer import AgentAnswer
from hami_protocol.devices import AllocationMode
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Pod
from hami_runtime.kube import cluster as api
from hami_scheduler.agents import ASK_SECONDS, CONNECTING_SECONDS
from hami_scheduler.presence import REJECTED_SECONDS
from tests.builders import a_device
from tests.contract.scheduler.world import GPU, World, asked, place, ref, settle, story

NOT_SERVING = {"n1": "node agent not serving"}


class Agent:
    """One node's agent, as far as the scheduler meets it."""

    def __init__(self, world: World, node: str = "n1", *, mode: AllocationMode = AllocationMode.CDI) -> None:
        self._world = world
        self._mode = mode
        self._stack = AsyncExitStack()
        self._said = 0
        self.node = node
        self.generation = 1
        self.asked = 0
        self.not_serving = ""
        self.hangs = False

    async def start(self) -> None:
        """Answer, and report."""

        async def answer(_question: bytes) -> bytes:
            self.asked += 1
            if self.hangs:
                await asyncio.sleep(3600)
            return msgspec.json.encode(AgentAnswer(not_serving=self.not_serving))

        await self._stack.enter_async_context(self._world.bus.answer(subjects.ask_agent(self.node, "nvidia"), answer))
        await self.report()

    async def report(self, *, answers: bool = True) -> None:
        self._said += 1
        event = DevicesReported(
            node=self.node,
            device_type="nvidia",
            generation=self.generation,
            devices=(a_device(f"GPU-{self.node}"),),
            allocation_mode=self._mode,
            not_serving=self.not_serving,
            answers=answers,
        )
        await self._world.say(event, f"{self.node}/{id(self)}/{self._said}")

    async def die(self) -> None:
        """Nobody subscribes to its subject any more; nothing is said."""
        await self._stack.aclose()


async def node_with_agent(world: World, name: str = "n1") -> Agent:
    await world.node(name)
    agent = Agent(world, name)
    await agent.start()
    return agent


async def connected_for_long() -> None:
    """Right after a connection was made, silence says nothing."""
    await asyncio.sleep(CONNECTING_SECONDS + 2)


async def rejected(world: World, pod: Pod) -> None:
    """Kubelet fails the pod, as it does without a device plugin."""
    status = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Pod was rejected: Allocate failed due to no healthy devices",
    }
    await world.admin.patch(api.PODS, pod.metadata.name, {"status": status}, namespace="default", subresource="status")
    await settle()


@story
async def test_an_agent_that_is_about_to_stop_gets_no_pod_until_the_next_one_serves(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=100)
        agent.not_serving = "the agent is about to stop"
        await agent.report()
        assert asked(scheduler, pod).failed == NOT_SERVING
        await agent.die()
        next_agent = Agent(world)
        next_agent.generation = 2
        next_agent.not_serving = "kubelet does not watch its devices"
        await next_agent.start()
        assert asked(scheduler, pod).failed == NOT_SERVING
        agent.not_serving = ""
        await agent.report()  # a late word of the one before
        assert asked(scheduler, pod).failed == NOT_SERVING
        next_agent.not_serving = ""
        await next_agent.report()
        assert await place(scheduler, pod) == "n1"
        assert ("n1", "NodeHeld") in {(name, reason) for name, reason, _ in await world.events()}


@story
async def test_a_killed_agent_gets_no_pod_from_the_next_bind_on_and_its_return_is_seen(world: World) -> None:
    agent = await node_with_agent(world)
    await world.node("n2", a_device("GPU-n2", memory_mib=1000))
    async with world.scheduler() as scheduler:
        await connected_for_long()
        first, second = await world.pod("p1", gpu=1, gpumem=100), await world.pod("p2", gpu=1, gpumem=100)
        await agent.die()
        assert (await place(scheduler, first)).startswith("not bound: node n1 takes no pods now: its agent does not answer on the bus")
        assert asked(scheduler, second).failed == NOT_SERVING
        assert await place(scheduler, second, "n1", "n2") == "n2"
        again = Agent(world)
        await again.start()
        assert await place(scheduler, first) == "n1"


@story
async def test_an_agent_that_answers_again_is_back_without_a_report(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        await connected_for_long()
        pod = await world.pod("p1", gpu=1, gpumem=100)
        agent.hangs = True
        started = world.clock.monotonic()
        assert (await place(scheduler, pod)).startswith("not bound: node n1 takes no pods now")
        assert world.clock.monotonic() - started < ASK_SECONDS + 1
        agent.hangs = False
        await asyncio.sleep(2 * ASK_SECONDS + 2)
        assert await place(scheduler, pod) == "n1"


@story
async def test_an_agent_that_says_that_kubelet_does_not_watch_it_gets_no_pod(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        pod = await world.pod("p1", gpu=1, gpumem=100)
        agent.not_serving = "kubelet does not watch its devices"  # not reported yet
        assert (await place(scheduler, pod)).startswith("not bound: node n1 takes no pods now: kubelet does not watch its devices")


@story
async def test_an_answer_that_nobody_can_read_holds_the_node(world: World) -> None:
    await world.node("n1")
    agent = Agent(world)
    await agent.report()

    async def rubbish(_question: bytes) -> bytes:
        return b'{"notServing": 3'

    async with world.scheduler() as scheduler, world.bus.answer(subjects.ask_agent("n1", "nvidia"), rubbish):
        assert "its answer on the bus cannot be read" in await place(scheduler, await world.pod("p1", gpu=1, gpumem=100))


@story
async def test_agents_of_earlier_versions_and_other_plugins_are_not_asked(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await Agent(world).report(answers=False)
    async with world.scheduler() as scheduler:
        await connected_for_long()
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=100), "n1") == "n1"
        assert await place(scheduler, await world.pod("p2", gpu=1, gpumem=100), "n2") == "n2"


@story
async def test_without_the_bus_annotations_serve_and_what_was_said_there_holds_nobody(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        agent.not_serving = "the agent is about to stop"
        await agent.report()
        await agent.die()
        world.bus.down()
        await asyncio.sleep(2)
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=100)) == "n1"
        world.bus.up()
        await asyncio.sleep(2)
        assert asked(scheduler, await world.pod("p2", gpu=1, gpumem=100)).failed == NOT_SERVING


@story
async def test_right_after_the_bus_is_back_silence_says_nothing(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        await connected_for_long()
        await agent.die()  # it has not connected again yet
        world.bus.down()
        await asyncio.sleep(2)
        world.bus.up()
        await asyncio.sleep(1)
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=100)) == "n1"


@story
async def test_after_one_pod_that_kubelet_rejects_no_second_one_goes_there_until_the_agent_registers(world: World) -> None:
    agent = await node_with_agent(world)
    async with world.scheduler() as scheduler:
        first, second = await world.pod("p1", gpu=1, gpumem=100), await world.pod("p2", gpu=1, gpumem=100)
        assert await place(scheduler, first) == "n1"
        await rejected(world, first)
        refused = asked(scheduler, second)
        assert refused.failed == NOT_SERVING
        assert "kubelet rejected pod default/p1 there" in scheduler.picture.presence.reason("n1", "NVIDIA")
        await asyncio.sleep(2 * REJECTED_SECONDS)
        assert asked(scheduler, second).failed == NOT_SERVING
        await agent.report()
        assert await place(scheduler, second) == "n1"


@story
async def test_where_no_agent_reports_a_rejected_pod_holds_its_node_for_a_while(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        first, second = await world.pod("p1", gpu=1, gpumem=100), await world.pod("p2", gpu=1, gpumem=100)
        assert await place(scheduler, first) == "n1"
        await rejected(world, first)
        assert asked(scheduler, second).failed == NOT_SERVING
        await asyncio.sleep(REJECTED_SECONDS + 2)
        assert await place(scheduler, second) == "n1"


@story
async def test_a_pod_that_failed_before_the_scheduler_started_holds_nobody(world: World) -> None:
    await node_with_agent(world)
    async with world.scheduler() as scheduler:
        first = await world.pod("p1", gpu=1, gpumem=100)
        assert await place(scheduler, first) == "n1"
        await rejected(world, first)
    async with world.scheduler() as scheduler:
        assert await place(scheduler, await world.pod("p2", gpu=1, gpumem=100)) == "n1"


@story
async def test_a_pod_that_stands_in_line_while_the_agent_dies_is_not_bound(world: World) -> None:
    await world.node("n1", mode="envvar")
    agent = Agent(world, mode=AllocationMode.ENVVAR)
    await agent.start()
    async with world.scheduler() as scheduler:
        await connected_for_long()
        first = await world.pod("p1", gpu=1, gpumem=100)
        assert await place(scheduler, first) == "n1"  # it has the lock, and its agent dies before it is served
        waiting = [await world.pod(f"w{number}", gpu=1, gpumem=100) for number in range(4)]
        for pod in waiting:
            assert asked(scheduler, pod).node_names == ["n1"]
        binds = [asyncio.create_task(scheduler.bind(ref(pod), "n1")) for pod in waiting]
        await settle()
        await agent.die()
        await rejected(world, first)
        errors = await asyncio.gather(*binds)
        assert all("takes no pods now" in error for error in errors), errors
        assert [(await world.get(pod)).spec.node_name for pod in waiting] == [""] * 4
        assert scheduler.picture.state.entry(waiting[0].metadata.uid) is None


@pytest.mark.parametrize(("allocatable", "placed"), [("0", 0), ("2", 2), (None, 0)])
@story
async def test_no_more_shares_than_kubelet_has_allocatable(world: World, allocatable: str | None, placed: int) -> None:
    await node_with_agent(world)
    status = {"allocatable": {GPU: allocatable}, "capacity": {GPU: allocatable}}
    await world.admin.patch(api.NODES, "n1", {"status": status}, subresource="status")
    await settle()
    async with world.scheduler() as scheduler:
        pods = [await world.pod(f"p{number}", gpu=1, gpumem=100) for number in range(3)]
        said = [await place(scheduler, pod) for pod in pods]
        assert said == ["n1"] * placed + ["refused: {'n1': 'NodeInsufficientAllocatable'}"] * (3 - placed)
        whole = {"status": {"allocatable": {GPU: "10"}, "capacity": {GPU: "10"}}}
        await world.admin.patch(api.NODES, "n1", whole, subresource="status")
        await settle()
        assert await place(scheduler, pods[-1]) == "n1"

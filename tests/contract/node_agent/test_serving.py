"""What an agent says of itself: on the bus before it stops, when kubelet watches it or not, and when it is asked."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from hami_node_agent.agent import LEAVE_SECONDS
from hami_node_agent.refusals import Refused
from hami_node_agent.registration import PERIOD_SECONDS, SILENT_SECONDS
from hami_node_agent.serving import STOPPING, UNWATCHED
from hami_protocol import subjects
from hami_protocol.agent_answer import AgentAnswer, decode
from hami_protocol.devices import AllocationMode
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Pod
from hami_runtime.bus.port import NoReply
from hami_runtime.kube.cluster import PODS
from tests.contract.node_agent.world import NODE, World, play

MODES = pytest.mark.parametrize("mode", AllocationMode, ids=str)


def last_report(world: World) -> DevicesReported:
    found = world.said(DevicesReported)
    assert isinstance(found[-1], DevicesReported)
    return found[-1]


async def asked(world: World) -> AgentAnswer:
    return decode(await world.bus.request(subjects.ask_agent(NODE, "nvidia"), b"", timeout_seconds=1))


async def status(world: World, pod: Pod, **fields: Any) -> None:
    await world.admin.patch(PODS, pod.metadata.name, {"status": fields}, namespace="default", subresource="status")
    await asyncio.sleep(0.01)


def test_an_agent_answers_while_it_runs_and_nobody_does_afterwards() -> None:
    async def scenario(world: World) -> None:
        assert last_report(world).answers
        assert await asked(world) == AgentAnswer()
        await world.stop()
        with pytest.raises(NoReply):
            await asked(world)

    play(scenario)


def test_kubelets_streams_are_reported_at_once_and_change_no_generation() -> None:
    async def scenario(world: World) -> None:
        generation = last_report(world).generation
        world.agent.serving.watched(1)
        world.agent.serving.watched(0)
        await asyncio.sleep(0.1)
        assert (last_report(world).not_serving, (await asked(world)).not_serving) == (UNWATCHED, UNWATCHED)
        world.agent.serving.watched(1)
        await asyncio.sleep(0.1)
        assert (last_report(world).not_serving, (await asked(world)).not_serving) == ("", "")
        assert last_report(world).generation == generation

    play(scenario)


def test_an_agent_without_its_shim_says_so() -> None:
    async def scenario(world: World) -> None:
        assert "the shim is not installed" in last_report(world).not_serving
        assert "the shim is not installed" in (await asked(world)).not_serving

    play(scenario, shim_required=True)


@MODES
def test_an_agent_that_is_to_stop_says_so_first_and_serves_the_pods_that_were_bound(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p1", main=[("GPU-a", 1000, 30)])
        await world.lock("p1")
        leaving = asyncio.create_task(world.agent.leave())
        await asyncio.sleep(1)
        assert (last_report(world).not_serving, (await asked(world)).not_serving) == (STOPPING, STOPPING)
        assert not leaving.done()  # the pod is bound, and kubelet has not asked for it yet
        answers = await world.kubelet.admit(world.agent, pod)
        assert set(answers) == {"main"}
        await asyncio.sleep(0.2)
        assert leaving.done()

    play(scenario, mode)


def test_a_pod_that_never_comes_to_kubelet_holds_nobody_up_for_long() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p1", main=[("GPU-a", 1000, 30)])
        started = world.clock.monotonic()
        await world.agent.leave()
        assert world.clock.monotonic() - started == pytest.approx(LEAVE_SECONDS)

    play(scenario)


def test_without_the_bus_and_without_pods_an_agent_leaves_soon() -> None:
    async def scenario(world: World) -> None:
        world.bus.down()
        started = world.clock.monotonic()
        await world.agent.leave()
        assert world.clock.monotonic() - started < 1

    play(scenario)


def test_an_agent_whose_reports_nobody_takes_is_not_ready_and_serves_all_the_same() -> None:
    """The registry calls a node unavailable after the same time."""

    async def scenario(world: World) -> None:
        registration = world.agent.registration
        assert registration.lacking() is None
        world.bus.down()
        await asyncio.sleep(SILENT_SECONDS - PERIOD_SECONDS)
        assert registration.lacking() is None
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert "the bus has taken no report" in (registration.lacking() or "")
        assert world.agent.not_ready() is None  # kubelet's calls are answered
        world.bus.up()
        await asyncio.sleep(PERIOD_SECONDS)
        assert registration.lacking() is None

    play(scenario)


async def reported_after(world: World, seconds: float) -> list[float]:
    """When reports come in the next ``seconds``, counted from now."""
    started, last = world.clock.monotonic(), world.agent.registration.reported_at
    found: list[float] = []
    while world.clock.monotonic() - started < seconds:
        await asyncio.sleep(0.1)
        if world.agent.registration.reported_at != last:
            last = world.agent.registration.reported_at
            found.append(round(world.clock.monotonic() - started, 1))
    return found


def test_a_pod_that_kubelet_rejects_brings_a_report_and_each_further_one_a_later_one() -> None:
    async def scenario(world: World) -> None:
        async def first_report_after_a_rejected_pod(name: str) -> float:
            pod = await world.pod(name, main=[("GPU-a", 100, 0)])
            await status(world, pod, phase="Failed", reason="UnexpectedAdmissionError")
            return (await reported_after(world, 5))[0]

        pauses = [await first_report_after_a_rejected_pod(f"p{number}") for number in range(4)]
        assert pauses == pytest.approx([0.5, 1, 2, 4], abs=0.2)
        well = await world.pod("well", main=[("GPU-a", 100, 0)])
        await status(world, well, phase="Running")
        assert await first_report_after_a_rejected_pod("again") == pytest.approx(0.5, abs=0.2)

    play(scenario)


def test_a_pod_that_is_served_again_after_kubelet_lost_its_checkpoint_is_named_in_an_event() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p1", main=[("GPU-a", 1000, 30)])
        await world.lock("p1")
        await world.kubelet.admit(world.agent, pod)
        await status(world, pod, phase="Running")
        world.kubelet.end(pod)  # kubelet's memory of it is lost, and it asks again
        with pytest.raises(Refused) as caught:
            await world.agent.allocate(["GPU-a-0"])
        message = (
            f"Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = {caught.value}, which is unexpected"
        )
        await status(world, pod, phase="Failed", reason="UnexpectedAdmissionError", message=message)
        assert ("p1", "AllocationRefused", str(caught.value)) in await world.complaints()

    play(scenario, AllocationMode.ENVVAR)


def test_reports_go_on_coming_in_their_period() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p1", main=[("GPU-a", 100, 0)])
        await status(world, pod, phase="Failed", reason="Evicted")
        found = await reported_after(world, 3 * PERIOD_SECONDS + 1)
        assert [round(later - earlier) for earlier, later in itertools.pairwise(found)] == [PERIOD_SECONDS] * (len(found) - 1)
        assert len(found) == 3

    play(scenario)


def test_a_refusal_of_the_agents_own_changes_nothing_of_what_it_says() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Refused):
            await world.agent.allocate([])
        assert await asked(world) == msgspec.convert({}, AgentAnswer)

    play(scenario)

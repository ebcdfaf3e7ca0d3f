"""Each loop of the node-agent: an item whose handler raises keeps the next item from nothing, and the agent goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hami_node_agent import republishing
from hami_node_agent.mig_hardware import FakeMig
from hami_node_agent.needs import HostPaths
from hami_node_agent.sharing import Sharing
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode, PodRef
from hami_protocol.envelope import EVENT_ID, open_message
from hami_protocol.events import DevicesReported, NodeUsage, PodReleased, ShareResizeApplied, ShareResized
from hami_protocol.pods import pod_ref
from tests.contract.node_agent.world import World, play
from tests.security.failing import ERRORS, fail

Scenario = Callable[[World, Exception], Awaitable[None]]
TYPE = "NVIDIA-A100-SXM4-40GB"
SHARE = [("GPU-a", 1000, 10)]


async def served(world: World, name: str, card: str = "GPU-a") -> Any:
    pod = await world.pod(name, main=[(card, 1000, 10)])
    await world.kubelet.admit(world.agent, pod)
    for container in ("main",):
        await world.agent.pre_start(world.kubelet.ids(pod, container))
    return pod


async def informers(world: World, error: Exception) -> None:
    seen: list[str] = []

    def stumble(_old: Any, new: Any) -> None:
        if new is not None and new.metadata.name == "bad":
            raise error
        if new is not None:
            seen.append(new.metadata.name)

    world.agent.pods.subscribe(stumble)
    await world.pod("bad", main=SHARE)
    await world.pod("good", main=SHARE)
    assert "good" in seen


async def grants(world: World, error: Exception) -> None:
    fail(world.agent.view, "_apply", lambda event: event.pod.name == "bad", error=error)
    bad, good = await world.pod("bad", main=SHARE), await world.pod("good", main=SHARE)
    assert world.agent.view.get(bad.metadata.uid, "NVIDIA") is None
    assert world.agent.view.get(good.metadata.uid, "NVIDIA") is not None


async def outbox(world: World, error: Exception) -> None:
    fail(world.bus, "publish", lambda message, **_: "bad" in message.headers[EVENT_ID], error=error)
    for name in ("bad", "good"):
        ref = PodRef(namespace="default", name=name, uid=name)
        world.agent.outbox.put(PodReleased(pod=ref, node="n1", reason="gone"), f"{name}/released")
    await asyncio.sleep(60)
    assert [event.pod.name for event in world.said(PodReleased)] == ["good"]
    assert world.agent.outbox.pending == 0


async def events(world: World, error: Exception) -> None:
    fail(world.client, "create", lambda _kind, body, **_: body.get("message") == "bad", error=error)
    for text in ("bad", "good"):
        world.agent.recorder.record(PodRef(namespace="default", name="p", uid="u"), "Warning", "Reason", text)
    assert [message for _, _, message in await world.complaints()] == ["good"]


async def hardware_events(world: World, error: Exception) -> None:
    fail(world.agent.devices, "_fault", lambda uuid, _xid: uuid == "GPU-a", error=error)
    for uuid in ("GPU-a", "GPU-b"):
        world.hardware.raise_xid(uuid, 79)
    await asyncio.sleep(0.1)
    assert set(world.agent.devices.unhealthy) == {"GPU-b"}


async def rescan(world: World, error: Exception) -> None:
    scanned = fail(world.hardware, "scan", times=1, error=error)
    await asyncio.sleep(100)
    assert scanned


async def recover(world: World, error: Exception) -> None:
    probed = fail(world.hardware, "probe", lambda uuid: uuid == "GPU-a", error=error)
    for uuid in ("GPU-a", "GPU-b"):
        world.hardware.raise_xid(uuid, 79)
    await asyncio.sleep(60)
    assert {args[0] for args in probed} == {"GPU-b"}


async def flags(world: World, error: Exception) -> None:
    await served(world, "p", "GPU-b")
    fail(world.agent, "_holders", lambda uuid: uuid == "GPU-a", error=error)
    for uuid in ("GPU-a", "GPU-b"):
        world.hardware.raise_xid(uuid, 79)
        await asyncio.sleep(0.1)
    assert "DeviceUnhealthy" in [reason for _, reason, _ in await world.complaints()]


async def registration(world: World, error: Exception) -> None:
    (before,) = world.said(DevicesReported)
    fail(world.agent.registration, "_next_generation", times=1, error=error)
    world.hardware.raise_xid("GPU-a", 79)
    await asyncio.sleep(60)
    (after,) = world.said(DevicesReported)
    assert after.generation > before.generation


async def questions(world: World, _error: Exception) -> None:
    """What is asked is not read: any bytes get the answer."""
    for question in (b"\xff" * 100_000, b"[" * 100_000, b""):
        assert await world.bus.request(subjects.ask_agent("n1", "nvidia"), question, timeout_seconds=1)


async def cleanup(world: World, error: Exception) -> None:
    bad, good = await served(world, "bad"), await served(world, "good")
    fail(world.files, "remove", lambda path: bad.metadata.uid in path, error=error)
    for pod in (bad, good):
        world.kubelet.end(pod)
        await world.delete(pod)
    await asyncio.sleep(200)
    left = {path for path in world.files.contents if "/containers/" in path or "/grants/" in path}
    assert any(bad.metadata.uid in path for path in left)
    assert not any(good.metadata.uid in path for path in left)


async def resizes(world: World, error: Exception) -> None:
    fail(world.agent.resizer, "_answer", lambda resize, _pod: resize.pod.name == "bad", error=error)
    for name in ("bad", "good"):
        pod = await served(world, name)
        held = world.assignment({}, {"main": [("GPU-a", 500, 10)]}, ())
        await world.publish(ShareResized(pod=pod_ref(pod), node="n1", assignments=(held,), generation=1))
    await asyncio.sleep(1)
    assert [event.pod.name for event in world.said(ShareResizeApplied)] == ["good"]


async def lost_outcomes(world: World, error: Exception) -> None:
    """Both outcomes are lost, and each is published again at the second look that finds no record of it."""
    for name in ("bad", "good"):
        pod = await served(world, name)
        held = world.assignment({}, {"main": [("GPU-a", 1000, 10)]}, ())
        await world.publish(ShareResized(pod=pod_ref(pod), node="n1", assignments=(held,), generation=1))
        await asyncio.sleep(1)
    world.bus.lose_tail(subjects.ALLOCATIONS, len(world.bus.kept(subjects.ALLOCATIONS)))
    fail(world.agent.republishing, "_publish", lambda pod, *_: pod.metadata.name == "bad", error=error)
    await asyncio.sleep(2 * republishing.LOOK_SECONDS)
    assert [event.pod.name for event in world.said(ShareResizeApplied)] == ["good"]


async def monitor(world: World, error: Exception) -> None:
    fail(world.agent.monitor, "_look_at", lambda watched, _: watched.pod.name == "bad", error=error)
    await served(world, "bad")
    await served(world, "good")
    await asyncio.sleep(20)
    assert [watched.pod.name for watched in world.agent.monitor.containers.values()] == ["good"]
    last = open_message(world.bus.kept(subjects.USAGE)[-1])
    assert isinstance(last, NodeUsage)
    assert [each.pod.name for each in last.containers] == ["good"]


async def region_sizes(world: World, error: Exception) -> None:
    bad, good = await served(world, "bad"), await served(world, "good")
    fail(world.agent._region_size, "_report", lambda name, _: bad.metadata.uid in name, error=error)
    for pod in (bad, good):
        world.files.contents[f"{HostPaths().regions}/{pod.metadata.uid}_main"] += bytes(2**21)
    await asyncio.sleep(3)
    assert [name for name, reason, _ in await world.complaints() if reason == "RegionTooLarge"] == ["good"]


async def instances(world: World, error: Exception) -> None:
    looked = fail(world.agent._instances, "_look", times=1, error=error)
    await asyncio.sleep(30)
    assert looked


LOOPS: dict[str, Scenario] = {
    "NodePods.run_pods": informers,
    "NodePods.run_node": informers,
    "GrantsView.follow": grants,
    "Outbox.run": outbox,
    "EventRecorder.run": events,
    "NodeDevices.watch": hardware_events,
    "NodeDevices.rescan": rescan,
    "NodeDevices.recover": recover,
    "NodeAgent.flag_running_pods": flags,
    "NodeAgent.report_devices": registration,
    "Registration.answer": questions,
    "Cleanup.run": cleanup,
    "Resizer.run": resizes,
    "Republishing.run": lost_outcomes,
    "Monitor.run": monitor,
    "RegionSize.run": region_sizes,
    "MigInstances.run": instances,
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_item_that_fails_keeps_the_next_from_nothing(loop: str, error: Exception) -> None:
    async def scenario(world: World) -> None:
        await LOOPS[loop](world, error)
        assert world._running is not None
        assert not world._running.done()

    options = {"mig": FakeMig({"GPU-a": TYPE}), "sharing": Sharing(mode="mig")} if loop == "MigInstances.run" else {}
    play(scenario, AllocationMode.CDI, **options)


def test_no_loop_of_the_agent_is_forgotten_here() -> None:
    async def scenario(world: World) -> None:
        assert {loop.__qualname__ for loop in world.agent.loops} == set(LOOPS)  # type: ignore[attr-defined]

    play(scenario, started=False)


def test_a_container_whose_grant_cannot_be_read_is_unenforced_and_reported_once() -> None:
    async def scenario(world: World) -> None:
        pod = await served(world, "p")
        path = world.options.get("paths", HostPaths()).grant(f"{pod.metadata.uid}_main")
        world.files.contents[path] = b"\0" * 5
        await asyncio.sleep(30)
        event = open_message(world.bus.kept(subjects.USAGE)[-1])
        assert isinstance(event, NodeUsage)
        assert [(each.pod.name, each.enforced) for each in event.containers] == [("p", False)]
        told = [message for name, reason, message in await world.complaints() if (name, reason) == ("p", "ShareUnenforced")]
        assert len(told) == 1
        assert "its grant cannot be read" in told[0]

    play(scenario)

"""Devices on the bus and at kubelet: every 30 s and at once on change; sick cards, cards that come back, a bus that is away."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from hami_node_agent import profile
from hami_node_agent.hardware import HardwareError, Inventory
from hami_node_agent.profile import ProfileFile
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.envelope import open_message
from hami_protocol.events import DevicesReported
from hami_runtime.kube.cluster import NODES
from tests.contract.node_agent.world import CARDS, World, play

SICK = CARDS.replace("uuid: GPU-a,", "uuid: GPU-a, healthy: false,")


class Reports:
    """Every report that reaches the bus, with its time; the stream keeps only the last."""

    def __init__(self, world: World) -> None:
        self.seen: list[tuple[float, DevicesReported]] = []
        self._world = world

    async def follow(self) -> None:
        async with self._world.bus.consume(subjects.DEVICES, subjects=[subjects.ALL_DEVICES]) as deliveries:
            async for delivery in deliveries:
                event = open_message(delivery.message)
                assert isinstance(event, DevicesReported)
                self.seen.append((self._world.clock.monotonic(), event))


def watched(world: World) -> tuple[Reports, asyncio.Task[None]]:
    reports = Reports(world)
    return reports, asyncio.create_task(reports.follow())


def test_devices_are_reported_every_30_seconds_with_one_generation_while_nothing_changes() -> None:
    async def scenario(world: World) -> None:
        reports, task = watched(world)
        await asyncio.sleep(100)
        task.cancel()
        assert len(reports.seen) == 4
        times = [time for time, _ in reports.seen]
        assert [round(later - earlier) for earlier, later in pairwise(times)] == [30, 30, 30]
        first = reports.seen[0][1]
        assert {event.generation for _, event in reports.seen} == {1}
        assert [device.uuid for device in first.devices] == ["GPU-a", "GPU-b"]
        assert (first.node, first.device_type, first.allocation_mode) == ("n1", "nvidia", AllocationMode.CDI)

    play(scenario)


def test_a_card_that_becomes_sick_is_reported_and_advertised_at_once_with_all_its_shares() -> None:
    async def scenario(world: World) -> None:
        reports, task = watched(world)
        await asyncio.sleep(5)
        before = world.clock.monotonic()
        world.hardware.become(profile.read(SICK))
        await asyncio.sleep(0.1)
        task.cancel()
        time, event = reports.seen[-1]
        assert time - before < 0.1
        assert event.generation == 2
        assert [device.healthy for device in event.devices] == [False, True]
        assert [device.healthy for device in world.agent.devices.advertised] == [False] * 10 + [True] * 10

    play(scenario)


def test_a_card_that_the_profile_calls_healthy_again_is_back_at_once() -> None:
    async def scenario(world: World) -> None:
        world.hardware.become(profile.read(SICK))
        await asyncio.sleep(1)
        world.hardware.become(profile.read(CARDS))
        await asyncio.sleep(0.1)
        assert world.agent.devices.unhealthy == {}

    play(scenario)


def test_a_fatal_xid_takes_the_card_out_tells_its_pods_and_it_comes_back_after_good_probes() -> None:
    async def scenario(world: World) -> None:
        await world.pod("holder", main=[("GPU-a", 500, 10)])
        await world.pod("other", main=[("GPU-b", 500, 10)])
        world.hardware.raise_xid("GPU-a", 79)
        await asyncio.sleep(0.1)
        assert world.agent.devices.unhealthy == {"GPU-a": "XID 79"}
        assert [(name, reason) for name, reason, _ in await world.complaints()] == [("holder", "DeviceUnhealthy")]
        await asyncio.sleep(30)
        assert world.agent.devices.unhealthy == {}
        assert [incident.what for incident in world.agent.devices.history("GPU-a")] == ["XID 79 (fatal)", "back after 2 good probes"]

    play(scenario)


def test_an_applications_xid_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        reports, task = watched(world)
        for xid in (13, 31, 43, 45, 68, 94, 8, 63):
            world.hardware.raise_xid("GPU-a", xid)
        await asyncio.sleep(1)
        task.cancel()
        assert world.agent.devices.unhealthy == {}
        assert len(reports.seen) == 1

    play(scenario)


def test_a_card_that_was_out_is_out_after_a_restart_of_the_agent_too() -> None:
    async def scenario(world: World) -> None:
        world.hardware.raise_xid("GPU-a", 79)
        await asyncio.sleep(0.1)
        await world.kill()
        await world.start()
        assert world.agent.devices.unhealthy == {"GPU-a": "XID 79"}

    play(scenario)


def test_xids_that_are_added_to_a_profile_are_raised_once() -> None:
    async def scenario(world: World) -> None:
        text = CARDS.replace("uuid: GPU-a,", "uuid: GPU-a, xids: [79],")
        world.hardware.become(profile.read(text))
        await asyncio.sleep(0.1)
        assert "GPU-a" in world.agent.devices.unhealthy
        await asyncio.sleep(40)
        world.hardware.become(profile.read(text + "split_count: 5\n"))
        await asyncio.sleep(0.1)
        assert world.agent.devices.unhealthy == {}

    play(scenario)


def test_the_generation_goes_above_whatever_anybody_has_seen_although_the_disk_was_lost() -> None:
    async def scenario(world: World) -> None:
        await world.admin.patch(NODES, "n1", {"metadata": {"annotations": {"hami.io/node-nvidia-generation": "41"}}})
        await world.publish(DevicesReported(node="n1", device_type="nvidia", generation=17, devices=()))
        await world.start()
        await asyncio.sleep(1)
        assert world.said(DevicesReported)[-1].generation == 42
        await world.kill()
        await world.start()
        await asyncio.sleep(1)
        assert world.said(DevicesReported)[-1].generation == 43

    play(scenario, started=False)


@pytest.mark.parametrize("text", ["", "-5", "1e9", "9" * 400, "\u0663"])
def test_a_hostile_generation_is_no_generation(text: str) -> None:
    async def scenario(world: World) -> None:
        await world.admin.patch(NODES, "n1", {"metadata": {"annotations": {"hami.io/node-nvidia-generation": text}}})
        await world.start()
        await asyncio.sleep(1)
        assert world.said(DevicesReported)[-1].generation == 1

    play(scenario, started=False)


def test_devices_are_reported_although_the_api_server_has_been_away_since_the_start() -> None:
    async def scenario(world: World) -> None:
        world.client.down()
        await world.start()
        await asyncio.sleep(15)
        assert len(world.said(DevicesReported)[-1].devices) == 2

    play(scenario, started=False)


def test_an_agent_that_waits_for_everything_stops_at_once() -> None:
    async def scenario(world: World) -> None:
        world.client.down()
        world.bus.down()
        await world.start()
        before = world.clock.monotonic()
        await world.stop()
        assert world.clock.monotonic() - before < 0.5

    play(scenario, started=False)


def test_while_the_bus_is_away_nothing_piles_up_and_the_newest_state_goes_out_when_it_is_back() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1)
        world.bus.down()
        for text in (SICK, CARDS, SICK):
            world.hardware.become(profile.read(text))
            await asyncio.sleep(60)
        reports, task = watched(world)
        world.bus.up()
        await asyncio.sleep(6)
        task.cancel()
        fresh = [event for _, event in reports.seen if event.generation > 1]
        assert len(fresh) == 1
        assert [device.healthy for device in fresh[0].devices] == [False, True]

    play(scenario)


def test_hardware_that_cannot_be_asked_takes_all_cards_out_and_forgets_none() -> None:
    async def scenario(world: World) -> None:
        async def fail() -> Inventory:
            raise HardwareError("no driver")

        scan = world.hardware.scan
        world.hardware.scan = fail  # type: ignore[method-assign]
        await asyncio.sleep(31)
        assert [device.healthy for device in world.agent.devices.registered] == [False, False]
        assert "no driver" in (world.agent.not_ready() or "")
        world.hardware.scan = scan  # type: ignore[method-assign]
        await asyncio.sleep(31)
        assert [device.healthy for device in world.agent.devices.registered] == [True, True]
        assert world.agent.not_ready() is None

    play(scenario)


def test_the_agent_writes_nothing_but_events_to_the_api_server() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        world.hardware.raise_xid("GPU-a", 79)
        await world.phase(pod, "Succeeded")
        await asyncio.sleep(60)
        written = {key for key in world.client.calls if key[0] not in {"list", "watch", "get"}}
        assert written <= {("create", "events"), ("patch", "events")}

    play(scenario)


async def test_a_profile_file_is_followed_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("count: 1")
    hardware = ProfileFile(path, node="n1")
    events = hardware.events()
    path.write_text("count: [")
    path.write_text("count: 2\n# longer, so that the change is seen whatever the clock's grain")
    await asyncio.wait_for(anext(events), 10)
    assert len((await hardware.scan()).devices) == 2

"""What the registry makes of nodes, through its ports (HAMi#1839, HAMi#1430)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from hami_protocol import events, keys, subjects
from hami_protocol.envelope import Message, open_message
from hami_protocol.inventory import Inventory
from hami_runtime.kube.store_resources import EVENTS, NODES
from hami_runtime.telemetry import Telemetry

from .conftest import Scenario, World, a_report, beating

TEXT = "GPU-n1,10,24576,100,NVIDIA-A10,0,true:"


def test_a_report_becomes_the_record_and_the_handshake_of_its_node(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry(), beating(world, "n1"):
            await asyncio.sleep(5)
            found = world.annotations()
            assert found[keys.register("nvidia")] == TEXT
            assert found[keys.generation("nvidia")] == "1"
            assert found[keys.ALLOCATION_MODE] == "envvar"
            assert found[keys.handshake("nvidia")].startswith("Reported 2026-01-01 00:00:0")
            assert world.liveness() is True

    play(scenario)


def test_a_silent_node_is_unavailable_after_60_seconds_and_back_with_one_heartbeat(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry():
            async with beating(world, "n1"):
                await asyncio.sleep(305)
                assert world.liveness() is True
            await asyncio.sleep(54.5)  # the last heartbeat was at 300
            assert world.liveness() is True
            await asyncio.sleep(1)
            assert world.liveness() is False
            await asyncio.sleep(600)
            assert world.annotations()[keys.register("nvidia")] == TEXT
            await world.say(a_report())
            await asyncio.sleep(0.1)
            assert world.liveness() is True

    play(scenario)


def test_clocks_that_are_wrong_change_nothing(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry(), beating(world, "n1"):
            for minutes in (10, -10, 60):
                world.clock.skew = timedelta(minutes=minutes)
                await asyncio.sleep(120)
                assert world.liveness() is True

    play(scenario)


def test_nobody_expires_while_the_bus_is_away(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry(), beating(world, "n1"):
            await asyncio.sleep(10)
            world.bus.down()
            await asyncio.sleep(600)
            world.bus.up()
            await asyncio.sleep(100)
            kept = [open_message(m) for m in world.bus.kept(subjects.DEVICES) if "liveness" in m.subject]
            assert [event.alive for event in kept if isinstance(event, events.LivenessChanged)] == [True]

    play(scenario)


def test_nobody_expires_while_the_api_server_is_away(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node(**{keys.register("nvidia"): TEXT, keys.handshake("nvidia"): "Reported 2026-01-01"})
        async with world.registry() as registry:
            await asyncio.sleep(10)
            world.clusters[0].down()
            await asyncio.sleep(600)
            assert [view.alive for view in registry.mirror.rules.inventory(0, world.clock.utc())] == [True]
            world.clusters[0].up()
            await asyncio.sleep(50)
            assert [view.alive for view in registry.mirror.rules.inventory(0, world.clock.utc())] == [True]
            await asyncio.sleep(30)
            assert [view.alive for view in registry.mirror.rules.inventory(0, world.clock.utc())] == [False]

    play(scenario)


def test_a_restarted_registry_patches_nothing_that_is_there_and_leaves_the_unavailable_unavailable(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        world.add_node("n2")
        async with world.registry("r1"):
            await world.say(a_report("n2"))
            async with beating(world, "n1"):
                await asyncio.sleep(100)
        assert (world.liveness("n1"), world.liveness("n2")) == (True, False)
        records = world.annotations("n2")
        async with world.registry("r2") as registry, beating(world, "n1"):
            await asyncio.sleep(40)
            assert (world.liveness("n1"), world.liveness("n2")) == (True, False)
            assert world.annotations("n2") == records
            assert {view.node: view.alive for view in registry.mirror.rules.inventory(0, world.clock.utc())} == {"n1": True, "n2": False}

    play(scenario)


def test_two_replicas_write_as_one_and_the_second_takes_over(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with beating(world, "n1"), world.registry("r2") as second:
            async with world.registry("r1") as first:
                await asyncio.sleep(20)
                assert first.elector.is_leader != second.elector.is_leader
                assert world.calls("patch", "nodes") <= 5
            await asyncio.sleep(200)
            assert second.elector.is_leader
            assert world.liveness() is True
        await asyncio.sleep(1)

    play(scenario)


def test_a_deleted_node_leaves_nothing_on_the_bus(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node("n1")
        world.add_node("n2")
        async with world.registry() as registry:
            await world.say(a_report("n1"))
            await world.say(a_report("n2"))
            await asyncio.sleep(10)
            world.store.delete(NODES, "n1")
            await asyncio.sleep(1)
            assert {message.subject for message in world.bus.kept(subjects.DEVICES)} == {
                subjects.devices("n2", "nvidia"),
                subjects.liveness("n2", "nvidia"),
            }
            assert [node.name for node in registry.inventory().nodes] == ["n2"]

    play(scenario)


def test_a_third_partys_annotations_reach_the_bus(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            world.add_node(**{keys.register("nvidia"): TEXT})
            await asyncio.sleep(5)
            (message,) = [m for m in world.bus.kept(subjects.DEVICES) if m.subject == subjects.devices("n1", "nvidia")]
            event = open_message(message)
            assert isinstance(event, events.DevicesReported)
            assert event.third_party
            assert [device.uuid for device in event.devices] == ["GPU-n1"]
            assert world.liveness() is True

    play(scenario)


def test_a_record_that_cannot_be_read_is_an_event_and_a_metric_and_nothing_is_published(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("registry")
        async with world.registry(telemetry=telemetry):
            world.add_node(**{keys.register("nvidia"): "GPU-1,ten,24576,100,A10,0,true:"})
            await asyncio.sleep(10)
            (event,) = world.store.select(EVENTS)
            assert event.body["reason"] == "UnreadableRegistration"
            assert "count is 'ten'" in event.body["message"]
            assert event.body["involvedObject"]["name"] == "n1"
            assert world.bus.kept(subjects.DEVICES) == ()
            assert b"hami_registry_unreadable_records_total 1.0" in telemetry.prometheus_text()
        telemetry.close()

    play(scenario)


def test_a_record_too_large_for_the_bus_is_in_nobodys_way(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            world.add_node("huge", **{keys.register("nvidia"): "".join(f"{'G' * 40}-{n},1,1,1,A,0,true:" for n in range(4500))})
            world.add_node("n1")
            await asyncio.sleep(5)
            await world.say(a_report())
            await asyncio.sleep(5)
            assert world.liveness("n1") is True
            assert world.annotations()[keys.register("nvidia")] == TEXT

    play(scenario)


def test_a_message_that_does_not_decode_is_terminated_counted_and_in_nobodys_way(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("registry")
        world.add_node()
        async with world.registry(telemetry=telemetry):
            await asyncio.sleep(5)
            for data in (b"", b"\xff", b'{"type":"devices_reported"}', b'{"type":"unheard_of"}', b"[" * 5000):
                await world.bus.publish(Message(subject=subjects.devices("n1", "nvidia"), data=data))
                await asyncio.sleep(0.1)  # or it is overwritten before it is read
            await world.say(a_report())
            await asyncio.sleep(1)
            assert world.annotations()[keys.register("nvidia")] == TEXT
            expected = b'hami_registry_unreadable_messages_total{stream="HAMI_DEVICES"} 5.0'
            assert expected in telemetry.prometheus_text()
        telemetry.close()

    play(scenario)


def test_the_inventory_is_answered_on_the_bus_by_the_leader(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry("r1"), world.registry("r2"):
            await world.say(a_report())
            await asyncio.sleep(10)
            reply = await world.bus.request(subjects.ASK_INVENTORY, b"", timeout_seconds=1)
            (node,) = msgspec.json.decode(reply, type=Inventory).nodes
            (group,) = node.device_groups
            assert (node.name, group.device_type, group.alive, group.devices[0].memory_mib) == ("n1", "nvidia", True, 24576)
            assert group.since == "2026-01-01T00:00:00Z"

    play(scenario)


def test_a_patch_that_fails_comes_again(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry(), beating(world, "n1"):
            await asyncio.sleep(3)
            world.annotate_node("n1", **{keys.register("nvidia"): None})
            await asyncio.sleep(1)
            world.clusters[0].down()
            await asyncio.sleep(20)
            world.clusters[0].up()
            await asyncio.sleep(40)
            assert world.annotations()[keys.register("nvidia")] == TEXT

    play(scenario)


def test_the_registry_starts_without_bus_and_api_server_and_finds_both(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        world.bus.down()
        async with world.registry() as registry:
            world.clusters[0].down()
            await asyncio.sleep(30)
            assert registry.lacking is not None
            world.clusters[0].up()
            world.bus.up()
            await asyncio.sleep(20)
            assert registry.lacking is None
            await world.say(a_report())
            await asyncio.sleep(5)
            assert world.annotations()[keys.register("nvidia")] == TEXT

    play(scenario)

"""The monitor over the real agent: what containers use is said on the bus, priority gets its turn through the grant, damage costs nobody else."""

from __future__ import annotations

import asyncio

from hami_node_agent import shim_layout as layout
from hami_node_agent.monitor import LOOK_SECONDS, SAY_AGAIN_SECONDS
from hami_node_agent.needs import folder_name
from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.events import NodeUsage
from hami_protocol.kubernetes import Pod
from tests.contract.node_agent.world import World, play

MIB = 2**20


async def running(world: World, pod: Pod) -> str:
    """Start the pod's containers; the name of its only container's files."""
    answers = await world.kubelet.admit(world.agent, pod)
    for container in answers:
        await world.agent.pre_start(world.kubelet.ids(pod, container))
    return folder_name(pod.metadata.uid, "main")


def use(world: World, name: str, mib: int, *, launches: int = 0, busy_ns: int = 0, uuid: str = "GPU-a") -> None:
    """What the container's processes write."""
    data = bytearray(layout.REGION.size)
    head = {
        "identity": layout.REGION_MAGIC,
        "version": layout.REGION_VERSION,
        "size": layout.REGION.size,
        "device_count": 1,
        "slot_high_water": 1,
    }
    for field, value in head.items():
        layout.write_uint(data, layout.REGION, field, value)
    layout.write_text(data, layout.REGION_DEVICE, "uuid", uuid, base=layout.REGION.offset("devices"))
    slot = layout.REGION.offset("slots")
    layout.write_uint(data, layout.REGION_SLOT, "owner", 10 | 99 << layout.REGION_PID_BITS, base=slot)
    layout.write_uint(data, layout.REGION_USE, "used", mib * MIB, base=slot + layout.REGION_SLOT.offset("use"))
    layout.write_uint(data, layout.REGION_USE, "launches", launches, base=slot + layout.REGION_SLOT.offset("use"))
    layout.write_uint(data, layout.REGION_USE, "busy_ns", busy_ns, base=slot + layout.REGION_SLOT.offset("use"))
    world.files.contents[region_path(world, name)] = bytes(data)


def region_path(world: World, name: str) -> str:
    inside = layout.read_text(grant(world, name), layout.GRANT, "region_path")
    return world.agent.options.paths.region(name, inside)


def grant(world: World, name: str) -> bytes:
    return world.files.contents[world.agent.options.paths.grant(name)]


def said(world: World) -> NodeUsage:
    event = open_message(world.bus.kept(subjects.USAGE)[-1])
    assert isinstance(event, NodeUsage)
    return event


def test_what_a_container_uses_is_on_the_bus() -> None:
    async def scenario(world: World) -> None:
        name = await running(world, await world.pod("p", main=[("GPU-a", 1000, 30)]))
        use(world, name, 300)
        await world.agent.monitor.look()
        (container,) = said(world).containers
        (device,) = container.devices
        assert (container.pod.name, container.container, container.enforced) == ("p", "main", True)
        assert (device.uuid, device.memory_used_mib, device.memory_limit_mib) == ("GPU-a", 300, 1000)

    play(scenario)


def test_unchanged_use_is_not_said_at_every_look() -> None:
    async def scenario(world: World) -> None:
        use(world, await running(world, await world.pod("p", main=[("GPU-a", 1000, 30)])), 300)
        await world.agent.monitor.look()
        before = world.bus.kept(subjects.USAGE)[-1]
        await world.agent.monitor.look()
        assert world.bus.kept(subjects.USAGE)[-1] == before

    play(scenario)


def test_a_region_that_its_tenant_damaged_hides_nothing_of_the_others() -> None:
    async def scenario(world: World) -> None:
        bad = await running(world, await world.pod("bad", main=[("GPU-a", 1000, 30)]))
        good = await running(world, await world.pod("good", main=[("GPU-a", 2000, 30)]))
        world.files.contents[region_path(world, bad)] = b"\xff" * layout.REGION.size
        use(world, good, 700)
        await world.agent.monitor.look()
        found = {one.pod.name: one.devices[0].memory_used_mib for one in said(world).containers}
        assert found == {"bad": 0, "good": 700}

    play(scenario)


def test_cards_that_only_the_tenant_names_are_not_remembered() -> None:
    async def scenario(world: World) -> None:
        name = await running(world, await world.pod("p", main=[("GPU-a", 1000, 30)]))
        for look in range(5):
            use(world, name, 300, uuid=f"GPU-of-look-{look}")
            await world.agent.monitor.look()
        use(world, name, 300)
        await world.agent.monitor.look()
        (watched,) = world.agent.monitor.containers.values()
        assert set(watched.busy_ns) | set(watched.sm_percent) == {"GPU-a"}

    play(scenario)


def test_a_lone_container_has_the_card_and_two_that_are_active_are_held_to_their_shares() -> None:
    async def scenario(world: World) -> None:
        one = await running(world, await world.pod("one", main=[("GPU-a", 1000, 30)]))
        two = await running(world, await world.pod("two", main=[("GPU-a", 1000, 30)]))
        for launches, switch in ((1, 0), (2, 1), (2, 0)):
            use(world, one, 1, launches=launches)
            use(world, two, 1, launches=launches)
            await world.agent.monitor.look()
            assert [layout.read_uint(grant(world, name), layout.GRANT, "core_switch") for name in (one, two)] == [switch] * 2

    play(scenario)


def test_a_live_word_does_not_make_the_grant_a_new_file_at_the_next_start() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        await world.agent.monitor.look()
        path = world.agent.options.paths.grant(name)
        before = world.files.stamp(path)
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        assert world.files.stamp(path) == before
        assert layout.read_uint(grant(world, name), layout.GRANT, "core_switch") == 0

    play(scenario)


def test_the_region_is_made_once_and_left_as_it_is() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        made = world.files.contents[region_path(world, name)]
        assert (len(made), layout.read_uint(made, layout.REGION, "identity")) == (layout.REGION.size, layout.REGION_MAGIC)
        use(world, name, 300)
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))  # the container restarts
        await world.agent.monitor.look()
        assert said(world).containers[0].devices[0].memory_used_mib == 300

    play(scenario)


def test_use_that_the_stream_has_lost_is_published_again_within_a_minute() -> None:
    async def scenario(world: World) -> None:
        use(world, await running(world, await world.pod("p", main=[("GPU-a", 1000, 30)])), 300)
        await asyncio.sleep(20)
        before = said(world)
        world.bus.lose_tail(subjects.USAGE, len(world.bus.kept(subjects.USAGE)))
        assert world.bus.kept(subjects.USAGE) == ()
        await asyncio.sleep(SAY_AGAIN_SECONDS + 2 * LOOK_SECONDS)
        assert said(world) == before

    play(scenario)

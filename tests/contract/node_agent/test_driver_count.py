"""What the monitor does where the driver's own count and the region differ: memory beyond the share, and kernel time beside neighbours."""

from __future__ import annotations

import asyncio

from hami_node_agent import grant_file
from hami_node_agent.feedback import LEASE_SECONDS
from hami_node_agent.hardware import DeviceProcess
from hami_node_agent.monitor import LOOK_SECONDS
from hami_protocol.kubernetes import Pod
from hami_runtime.telemetry import Telemetry
from tests.contract.node_agent.test_monitor import MIB, grant, running, said, use
from tests.contract.node_agent.world import World, play

CARDS = """
devices:
  - {uuid: GPU-a, memory_mib: 24576, model: NVIDIA-A10, memory_used_mib: 700, busy_percent: 30}
"""
FIRST_PID = 4000


def counts(world: World, pod: Pod, mib: int, *, sm_percent: int | None = None, pid: int = FIRST_PID) -> None:
    """The driver counts one process of the pod on GPU-a."""
    others = tuple(one for one in world.hardware.processes.get("GPU-a", ()) if one.pid != pid)
    world.hardware.processes["GPU-a"] = (*others, DeviceProcess(pid=pid, memory_mib=mib, sm_percent=sm_percent))
    world.processes.owners[pid] = (pod.metadata.uid, "")


async def looks(count: int = 1) -> None:
    """So many rounds of the agent's own loop."""
    await asyncio.sleep(count * LOOK_SECONDS)


async def exceeded_events(world: World) -> list[tuple[str, str]]:
    return [(pod, message) for pod, reason, message in await world.complaints() if reason == "ShareExceeded"]


def exceeded_gauge(telemetry: Telemetry) -> float:
    (line,) = [each for each in telemetry.prometheus_text().decode().splitlines() if each.startswith("hami_agent_exceeded_containers")]
    return float(line.split()[-1])


def test_memory_beyond_the_share_is_an_event_and_a_metric_and_counts_against_the_share() -> None:
    telemetry = Telemetry("test")

    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        use(world, name, 300)
        counts(world, pod, 1500)
        await looks(2)
        assert await exceeded_events(world) == []  # two looks may lie on both sides of a free
        await looks(2)
        (event,) = await exceeded_events(world)
        assert event == ("p", "container main: 1500 MiB of GPU-a are in use, 1000 MiB granted, 300 MiB charged")
        assert exceeded_gauge(telemetry) == 1
        assert grant_file.live(grant(world, name)).overhead_bytes[0] == 1000 * MIB  # never more than the share
        assert said(world).containers[0].devices[0].memory_used_mib == 1500
        await looks(5)
        assert len(await exceeded_events(world)) == 1  # not at every look
        counts(world, pod, 400)
        await looks(1)
        assert exceeded_gauge(telemetry) == 0
        await looks(3)
        assert grant_file.live(grant(world, name)).overhead_bytes[0] == 100 * MIB
        counts(world, pod, 2000)
        await looks(4)
        assert len(await exceeded_events(world)) == 2

    play(scenario, cards=CARDS, telemetry=telemetry)
    telemetry.close()


def test_memory_within_the_share_that_no_function_reports_is_no_excess() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 1000, 30)])
        name = await running(world, pod)
        use(world, name, 300)
        counts(world, pod, 1000)
        await looks(5)
        assert await exceeded_events(world) == []
        assert grant_file.live(grant(world, name)).overhead_bytes[0] == 700 * MIB

    play(scenario, cards=CARDS)


def test_kernel_time_beside_a_neighbour_is_charged_as_the_driver_counts_it() -> None:
    async def scenario(world: World) -> None:
        pods = [await world.pod(name, main=[("GPU-a", 1000, 50)]) for name in ("one", "two")]
        names = [await running(world, pod) for pod in pods]

        async def round_of(number: int, charged_percent: int, ran_percent: int | None, *, both: bool = True) -> list[grant_file.Live]:
            for place, (pod, name) in enumerate(zip(pods, names, strict=True)):
                active = both or place == 0
                at[place] += int(charged_percent / 100 * LOOK_SECONDS * 1e9) if active else 0
                use(world, name, 10, launches=number if active else 3, busy_ns=at[place])
                counts(world, pod, 10, sm_percent=ran_percent if active else 0, pid=FIRST_PID + place)
            await looks()
            return [grant_file.live(grant(world, name)) for name in names]

        at = [0, 0]
        await round_of(1, 50, 35)
        for live in await round_of(2, 50, 35):  # from now on both are known to be active
            assert live.shared_until_ns > int((world.clock.monotonic() + LEASE_SECONDS - 2 * LOOK_SECONDS) * 1e9)
            assert live.charge_permille[0] == 1000  # what was charged before was the whole wait
        for live in await round_of(3, 50, 35):
            assert live.charge_permille[0] == 710
        alone, idle = await round_of(4, 50, 49, both=False)
        assert (alone.shared_until_ns, alone.charge_permille[0]) == (0, 710)
        assert idle.shared_until_ns > 0  # it has a neighbour, should it start
        await round_of(5, 50, None)
        for live in await round_of(6, 50, None):  # the driver does not count: each is charged what was measured
            assert live.shared_until_ns == 0

    play(scenario, cards=CARDS)

"""Two agents on one host, as in a rolling update: one acts at a time, kubelet always has one, and neither takes away what is the other's."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami_node_agent.agent import NodeAgent
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.handover import Handover, SuccessorLost
from hami_node_agent.kubelet import KubeletConnection
from hami_node_agent.seat import Seat, SeatTaken
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.events import DevicesReported
from hami_rig.kubelet.devices import DeviceLedger
from hami_rig.kubelet.plugins import DevicePlugins
from hami_runtime.kube.cluster import NODES
from hami_runtime.lifecycle import serve
from tests.contract.node_agent.world import GPU, NODE, World

CARDS = 20
PATIENCE_SECONDS = 20.0


class Host:
    """A kubelet's device manager on real sockets, and any number of agents over one disk."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.world = world
        self.ledger = DeviceLedger(rng=random.Random(3))
        self.fewest = CARDS
        """Healthy devices that kubelet had at worst since it had all."""
        self.plugins = DevicePlugins(folder, self.ledger, on_change=self._changed)

    def _changed(self) -> None:
        self.fewest = min(self.fewest, self.healthy)

    @property
    def healthy(self) -> int:
        return len(self.ledger.resources[GPU].healthy) if GPU in self.ledger.resources else 0

    @property
    def sockets(self) -> set[str]:
        return {path.name for path in self.folder.glob("nvidia-gpu-*.sock")}

    def agent(self) -> Agent:
        return Agent(self)

    async def allocate(self, *ids: str) -> str:
        """Kubelet's Allocate; the CDI name that is answered."""
        return api.ContainerAllocateResponse.FromString(await self.plugins.allocate(GPU, ids)).cdi_devices[0].name


class Agent:
    """One agent's process."""

    def __init__(self, host: Host) -> None:
        self.agent: NodeAgent = host.world.new_agent()
        self.connection = KubeletConnection(self.agent, host.world.clock, folder=host.folder, poll_seconds=0.02)
        self.seat = Seat(host.folder / "agent", poll_seconds=0.02)
        self.handover = Handover(self.agent, self.connection, self.seat, host.world.clock, grace_seconds=2)
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def acts(self) -> bool:
        return self.agent.acting.is_set()

    async def start(self) -> None:
        self._running = asyncio.create_task(serve(self.handover.run, self.connection.run, grace_seconds=5, stop=self._stop))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110 - processes are looked at
                await asyncio.sleep(0.01)

    async def until_ready(self) -> None:
        await self.until(lambda: self.handover.not_ready() is None)

    async def stop(self) -> None:
        """As at SIGTERM."""
        await self.handover.leave()
        self._stop.set()
        assert self._running is not None
        await self._running
        self._running = None

    async def kill(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self.seat.release()

    async def fails(self) -> BaseException:
        assert self._running is not None
        with pytest.raises(ExceptionGroup) as caught:
            await self._running
        self._running = None
        return caught.value.exceptions[0]

    async def end(self) -> None:
        if self._running is not None:
            await self.kill()


@asynccontextmanager
async def a_host() -> AsyncIterator[Host]:
    with tempfile.TemporaryDirectory(prefix="hami") as name:
        world = World(AllocationMode.CDI)
        await world.bus.ensure_streams(subjects.STREAMS)
        await world.admin.create(NODES, {"metadata": {"name": NODE}})
        host = Host(Path(name), world)
        await host.plugins.start()
        try:
            yield host
        finally:
            await host.plugins.stop()


async def story(tell: Callable[[Host, Agent, Agent], Awaitable[None]]) -> None:
    """An agent that acts, and one that has not started yet."""
    async with a_host() as host:
        first, second = host.agent(), host.agent()
        await first.start()
        await first.until_ready()
        await first.until(lambda: host.healthy == CARDS)
        host.fewest = CARDS
        try:
            await tell(host, first, second)
        finally:
            await asyncio.gather(first.end(), second.end())


async def test_a_rolling_update_leaves_kubelet_no_moment_without_healthy_devices() -> None:
    async def tell(host: Host, first: Agent, second: Agent) -> None:
        generation = host.world.said(DevicesReported)[-1].generation
        await second.start()
        await second.until_ready()
        assert not first.acts
        assert first.handover.not_ready() == "a newer agent acts on this node"
        await first.stop()
        assert len(host.sockets) == 1
        await asyncio.sleep(0.2)
        assert second.handover.not_ready() is None
        assert (host.healthy, host.fewest) == (CARDS, CARDS)
        last = host.world.said(DevicesReported)[-1]
        assert last.generation > generation
        assert last.not_serving == ""

    await story(tell)


async def test_an_agent_that_cannot_report_is_not_ready_so_that_a_rollout_stops_there() -> None:
    async def tell(host: Host, first: Agent, second: Agent) -> None:
        host.world.bus.down()
        await second.start()
        await second.until(lambda: second.acts and second.connection.registered and second.agent.not_ready() is None)
        assert second.handover.not_ready() == "the bus has taken no report of this agent yet"
        assert await host.allocate("GPU-a-0")
        host.world.bus.up()
        await second.until_ready()

    await story(tell)


async def test_what_the_first_has_answered_the_second_knows() -> None:
    async def tell(host: Host, first: Agent, second: Agent) -> None:
        before = await host.allocate("GPU-a-0")
        await second.start()
        await second.until_ready()
        during = await host.allocate("GPU-a-1")
        await first.stop()
        after = await host.allocate("GPU-a-2")
        names = [call.name for call in second.agent.journal.calls]
        assert names == [before, during, after]
        assert len(set(names)) == 3

    await story(tell)


async def test_calls_go_on_through_ten_rolling_updates_and_none_fails() -> None:
    async with a_host() as host:
        agent = host.agent()
        await agent.start()
        await agent.until_ready()
        await agent.until(lambda: host.healthy == CARDS)
        host.fewest = CARDS
        answered: list[str] = []
        over = asyncio.Event()

        async def call() -> None:
            while not over.is_set():
                answered.append(await host.allocate(f"GPU-a-{len(answered) % 10}"))
                await asyncio.sleep(0.01)

        calling = asyncio.create_task(call())
        for _ in range(10):
            newer = host.agent()
            await newer.start()
            await newer.until_ready()
            await agent.stop()
            agent = newer
        over.set()
        await calling
        assert host.fewest == CARDS
        assert len(answered) == len(set(answered)) > 10
        assert [call.name for call in agent.agent.journal.calls] == answered
        await agent.stop()


async def test_an_agent_whose_successor_dies_starts_anew() -> None:
    async def tell(_host: Host, first: Agent, second: Agent) -> None:
        await second.start()
        await second.until_ready()
        await second.kill()
        assert isinstance(await first.fails(), SuccessorLost)

    await story(tell)


async def test_a_killed_agent_leaves_its_seat_to_the_next_one() -> None:
    async def tell(host: Host, first: Agent, second: Agent) -> None:
        await first.kill()
        await second.start()
        await second.until_ready()
        await second.until(lambda: host.healthy == CARDS)

    await story(tell)


async def test_an_agent_that_hangs_keeps_the_seat_and_the_one_that_comes_says_so() -> None:
    with tempfile.TemporaryDirectory(prefix="hami") as name:
        stop = asyncio.Event()
        hanging, coming = Seat(Path(name), poll_seconds=0.01), Seat(Path(name), poll_seconds=0.01, take_seconds=0.1)
        assert await hanging.take(stop)
        with pytest.raises(SeatTaken, match="has not given it up within"):
            await coming.take(stop)
        hanging.release()
        assert await coming.take(stop)


async def test_of_several_that_come_at_once_each_gets_its_turn() -> None:
    with tempfile.TemporaryDirectory(prefix="hami") as name:
        stop = asyncio.Event()
        seats = [Seat(Path(name), poll_seconds=0.01) for _ in range(5)]
        sitting: list[int] = []
        served: list[int] = []

        async def one(number: int) -> None:
            assert await seats[number].take(stop)
            sitting.append(number)
            assert len(sitting) == 1
            if len(served) < len(seats) - 1:
                await seats[number].wanted(stop)
            served.append(number)
            sitting.remove(number)
            seats[number].release()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*map(one, range(5)))
        assert sorted(served) == list(range(5))

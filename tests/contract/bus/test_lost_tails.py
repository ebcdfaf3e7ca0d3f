"""A server that comes back from an older disk: every stream may end before the place that its readers have reached."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from hami_runtime.bus import StartAt, jetstream
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.telemetry import Telemetry
from tests.contract.bus.conftest import NatsServer
from tests.contract.bus.test_bus import LOG, a_message, taken
from tests.contract.bus.test_outages import publish_through


class OldDisk:
    """A server's disk as it was, to be put back."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._copy = server.folder / "older"

    async def keep(self) -> None:
        await self._server.kill()
        shutil.copytree(self._server.folder / "data", self._copy)
        await self._server.start()

    async def put_back(self, *, without_consumers: bool = False, said_meanwhile: int = 0) -> None:
        """Kill the server and start it with the older disk; ``said_meanwhile`` messages are kept there before its readers are back."""
        await self._server.kill()
        data = self._server.folder / "data"
        if without_consumers:
            for old in self._copy.rglob("msgs"):
                new = data / old.relative_to(self._copy)
                shutil.rmtree(new)
                shutil.copytree(old, new)
        else:
            shutil.rmtree(data)
            shutil.copytree(self._copy, data)
        if said_meanwhile:
            port, self._server.port = self._server.port, -1
            await self._server.start()
            async with jetstream.connect(self._server.url, name="other") as other:
                await other.wait_connected()
                for number in range(said_meanwhile):
                    await other.publish(a_message("log.m", f"meanwhile {number}"))
            await self._server.kill()
            self._server.port = port
        await self._server.start()


async def said(bus: jetstream.JetStreamBus, *texts: str) -> None:
    for text in texts:
        await bus.publish(a_message(f"log.{text}", text))


@pytest.mark.nats
@pytest.mark.parametrize("said_meanwhile", [0, 1, 9], ids=["nothing", "less than was lost", "more than was lost"])
async def test_a_reader_goes_on_with_what_was_kept_since(server: NatsServer, said_meanwhile: int) -> None:
    telemetry, losses, disk = Telemetry("test"), [], OldDisk(server)
    async with jetstream.connect(server.url, name="test", telemetry=telemetry) as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        await said(bus, "a", "b", "c")
        async with bus.consume(LOG, subjects=["log.>"], on_loss=lambda: losses.append(1)) as deliveries:
            assert await taken(deliveries, 3) == ["a", "b", "c"]
            await disk.keep()
            for text in ("lost 1", "lost 2", "lost 3", "lost 4"):
                await publish_through(bus, "log.lost", text)
            assert await taken(deliveries, 4) == ["lost 1", "lost 2", "lost 3", "lost 4"]
            await disk.put_back(said_meanwhile=said_meanwhile)
            await publish_through(bus, "log.after", "after")
            assert await taken(deliveries, said_meanwhile + 1) == [*(f"meanwhile {n}" for n in range(said_meanwhile)), "after"]
        assert losses == [1]
        assert 'hami_bus_stream_losses_total{stream="LOG"} 1.0' in telemetry.prometheus_text().decode()


@pytest.mark.nats
async def test_a_reader_of_a_state_reads_it_anew(server: NatsServer) -> None:
    losses, disk = [], OldDisk(server)
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        await said(bus, "a", "b")
        async with bus.consume(LOG, subjects=["log.>"], start=StartAt.LAST_PER_SUBJECT, on_loss=lambda: losses.append(1)) as deliveries:
            assert await taken(deliveries, 2) == ["a", "b"]
            await disk.keep()
            await publish_through(bus, "log.a", "newer a")
            assert await taken(deliveries, 1) == ["newer a"]
            await disk.put_back()
            assert await taken(deliveries, 2) == ["a", "b"]
        assert losses == [1]


@pytest.mark.nats
async def test_a_durable_consumer_beyond_the_end_begins_anew(server: NatsServer) -> None:
    losses, disk = [], OldDisk(server)
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        await said(bus, "a")
        async with bus.consume(LOG, subjects=["log.>"], durable="d", on_loss=lambda: losses.append(1)) as deliveries:
            assert await taken(deliveries, 1) == ["a"]
            await disk.keep()
            for text in ("lost 1", "lost 2", "lost 3"):
                await publish_through(bus, "log.lost", text)
            assert await taken(deliveries, 3) == ["lost 1", "lost 2", "lost 3"]
            await asyncio.sleep(0.5)  # the server writes acknowledgements a little later
            await disk.put_back(without_consumers=True)
            await publish_through(bus, "log.after", "after")
            found = []
            while "after" not in found:
                found += await taken(deliveries, 1)


@pytest.mark.nats
async def test_without_a_loss_no_reader_is_told_of_one(server: NatsServer) -> None:
    losses: list[int] = []
    async with jetstream.connect(server.url, name="test") as bus:
        await bus.ensure_streams([LOG])
        await bus.wait_connected()
        async with (
            bus.consume(LOG, subjects=["log.>"], on_loss=lambda: losses.append(1)) as deliveries,
            bus.consume(LOG, subjects=["log.>"], durable="d", on_loss=lambda: losses.append(1)) as durable,
            bus.consume(LOG, subjects=["log.>"], start=StartAt.LAST_PER_SUBJECT, on_loss=lambda: losses.append(1)) as state,
        ):
            for number in range(6):
                await publish_through(bus, "log.a", str(number))
                for each in (deliveries, durable, state):
                    assert (await taken(each, 1))[-1:] == [str(number)]
                await server.kill()
                if number == 3:
                    await server.start()
                    await bus.wait_connected()
                    await bus.purge(LOG, "log.a")
                    await server.kill()
                await server.start()
    assert losses == []


async def test_the_bus_in_memory_loses_its_tail_alike() -> None:
    bus, losses = MemoryBus(), []
    await bus.ensure_streams([LOG])
    for text in ("a", "b", "lost"):
        await bus.publish(a_message(f"log.{text}", text))
    async with (
        bus.consume(LOG, subjects=["log.>"], on_loss=lambda: losses.append("log")) as log,
        bus.consume(LOG, subjects=["log.>"], durable="d") as durable,
        bus.consume(LOG, subjects=["log.>"], start=StartAt.LAST_PER_SUBJECT, on_loss=lambda: losses.append("state")) as state,
    ):
        for each in (log, durable, state):
            assert await taken(each, 3) == ["a", "b", "lost"]
        bus.lose_tail(LOG, 1)
        assert losses == ["log", "state"]
        assert await bus.publish(a_message("log.c", "c")) == 3
        assert await taken(log, 1) == await taken(durable, 1) == ["c"]
        assert await taken(state, 3) == ["a", "b", "c"]

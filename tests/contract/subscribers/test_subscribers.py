"""Programs in other languages, and NATS' own command line, follow a real server, with nothing of this project but its JSON Schema."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hami_protocol import subjects
from hami_protocol.envelope import Message
from hami_runtime.bus import jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from tests.contract.bus.conftest import NatsServer
from tests.contract.subscribers import building

pytestmark = [pytest.mark.subscribers]

WIRE = Path(__file__).parents[1] / "wire"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
GRANT = f"default/train-0 main on gpu-node.example: 3000 MiB 30 % of {GPU}"
PROGRAMS = {"go": [str(building.GO)], "javascript": ["node", str(building.JAVASCRIPT / "follow.mjs")]}


class Bus:
    """A real server with the project's streams, and what it is told."""

    def __init__(self, server: NatsServer, bus: JetStreamBus) -> None:
        self._bus = bus
        self.environ = {**os.environ, "NATS_URL": server.url, "HAMI_EVENT_SCHEMA": str(building.SCHEMA)}

    async def tell(self, name: str, **changes: str) -> None:
        """Publish the recorded event ``name``, with other words in its body and subject."""
        recorded = json.loads((WIRE / f"0.1-{name}.json").read_text())
        headers = {**recorded["headers"], "Nats-Msg-Id": f"{name}-{changes}"}
        subject, text = recorded["subject"], json.dumps(recorded["body"])
        for word, other in changes.items():
            subject, text = (part.replace(word.replace("_", "-"), other) for part in (subject, text))
        await self._bus.publish(Message(subject=subject, data=text.encode(), headers=headers))

    async def tell_nonsense(self) -> None:
        """Publish what no subscriber can read."""
        await self._bus.publish(Message(subject="hami.v1.allocations.n.d.p.grant", data=b"{torn", headers={"Nats-Msg-Id": "torn"}))
        await self._bus.publish(
            Message(subject="hami.v1.allocations.n.d.p.grant", data=b'{"type":"later"}', headers={"Nats-Msg-Id": "later"})
        )

    async def run(self, *arguments: str) -> list[str]:
        """The lines that a program prints until it ends by itself."""
        process = await asyncio.create_subprocess_exec(
            *arguments, env=self.environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode().splitlines()


@pytest_asyncio.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    server = NatsServer(tmp_path)
    await server.start()
    async with jetstream.connect(server.url, name="subscribers") as connected:
        await connected.wait_connected()
        await connected.ensure_streams(subjects.STREAMS)
        yield Bus(server, connected)
    await server.kill()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
async def test_each_grant_is_shown_once_over_restarts_and_what_cannot_be_read_stops_nobody(bus: Bus, program: list[str]) -> None:
    for name in ("pod_assigned", "pod_allocating", "allocation_succeeded", "pod_released"):
        await bus.tell(name)
    await bus.tell_nonsense()
    assert await bus.run(*program, "board", "--once") == [GRANT]
    await bus.tell("pod_allocating", train_0="train-1")
    assert await bus.run(*program, "board", "--once") == [GRANT.replace("train-0", "train-1")]
    assert await bus.run(*program, "another", "--once") == [GRANT, GRANT.replace("train-0", "train-1")]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
async def test_what_comes_is_shown_as_it_comes_until_interrupted(bus: Bus, program: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*program, "live", env=bus.environ, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        for name in ("train-0", "train-7"):
            await bus.tell("pod_allocating", train_0=name)
            assert (await process.stdout.readline()).decode().strip() == GRANT.replace("train-0", name)
        process.terminate() if program[0] == "node" else process.send_signal(2)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_nats_own_command_line_shows_the_log_and_one_pod_of_it(bus: Bus) -> None:
    await bus.tell("pod_assigned")
    await bus.tell("pod_allocating")
    everything = await bus.run(*_nats("sub", "--stream", "HAMI_ALLOCATIONS", "--all", "--count", "2", "--raw", "hami.v1.allocations.>"))
    assert [json.loads(line)["type"] for line in everything if line] == ["pod_assigned", "pod_allocating"]
    one = await bus.run(
        *_nats("sub", "--stream", "HAMI_ALLOCATIONS", "--all", "--count", "1", "--raw", "hami.v1.allocations.*.default.train-0.*")
    )
    assert json.loads(one[0])["pod"]["name"] == "train-0"
    streams = await bus.run(*_nats("stream", "ls", "--names"))
    assert {spec.name for spec in subjects.STREAMS} <= set(streams)


def _nats(*arguments: str) -> list[str]:
    return [str(building.NATS), *arguments]

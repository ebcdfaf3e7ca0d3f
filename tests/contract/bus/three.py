"""Three real NATS servers that are one cluster, as in production but for TLS and accounts."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import BusUnavailable, api
from hami_runtime.bus.jetstream import JetStreamBus
from tests.contract.bus.conftest import NatsServer

NAMES = ("one", "two", "three")


@dataclass(frozen=True, slots=True)
class Three:
    """The servers, by name."""

    servers: dict[str, NatsServer]

    @property
    def url(self) -> str:
        """All of them."""
        return ",".join(server.url for server in self.servers.values())

    async def formed(self, bus: JetStreamBus) -> None:
        """Return once the servers have chosen who leads them; before that nobody answers."""
        session = await bus.session()
        async with asyncio.timeout(30):
            while True:
                with suppress(BusUnavailable, TimeoutError):
                    await session.ask(f"{api.PREFIX}INFO", b"", timeout_seconds=0.2)
                    return
                await asyncio.sleep(0.05)

    async def leader(self, bus: JetStreamBus, spec: StreamSpec) -> str:
        """Which server leads a stream, once one does and the others keep up with it."""
        async with asyncio.timeout(30):
            while True:
                try:
                    session = await bus.session()
                    answer = await session.ask(f"{api.PREFIX}STREAM.INFO.{spec.name}", b"", timeout_seconds=2)
                except (BusUnavailable, TimeoutError):
                    continue
                found = json.loads(answer.data).get("cluster", {})
                whole = [each["name"] for each in found.get("replicas", ()) if each.get("current")]
                if found.get("leader") and {found["leader"], *whole} == set(self.servers):
                    return str(found["leader"])
                await asyncio.sleep(0.05)


async def start(make_server: Callable[..., NatsServer]) -> Three:
    """Start them, and wait for nothing but their ports."""
    found = [socket.socket() for _ in NAMES]
    for each in found:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers: dict[str, NatsServer] = {}
    for name, port in zip(NAMES, ports, strict=True):
        clustered = ["--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{port}", "--routes", routes]
        servers[name] = make_server("--name", name, *clustered)
        await servers[name].start()
    return Three(servers)

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest


class NatsServer:
    """A real NATS server with JetStream, which can be killed and started again on the same port and data."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self.port = -1

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        ports = self.folder / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.iterdir():
            old.unlink()
        program = Path(sys.executable).with_name("nats-server")
        listen = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "data"), "--ports_file_dir", str(ports)]
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(program, *listen, *self._arguments, stdout=log, stderr=log)
        async with asyncio.timeout(20):
            while not (files := list(ports.glob("*.ports"))) or not (text := files[0].read_text()):
                assert self._process.returncode is None, (self.folder / "log").read_text()
                await asyncio.sleep(0.02)
        self.port = int(json.loads(text)["nats"][0].rpartition(":")[2])

    def reload(self) -> None:
        """Have it read its configuration again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> None:
        """Ask it to stop."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """How it ended."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture
async def make_server(tmp_path: Path) -> AsyncIterator[Callable[..., NatsServer]]:
    made: list[NatsServer] = []

    def make(*arguments: str) -> NatsServer:
        folder = tmp_path / f"nats-{len(made)}"
        folder.mkdir()
        made.append(NatsServer(folder, *arguments))
        return made[-1]

    yield make
    for server in made:
        await server.kill()


@pytest.fixture
async def server(make_server: Callable[..., NatsServer]) -> NatsServer:
    server = make_server()
    await server.start()
    return server

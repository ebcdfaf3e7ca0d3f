"""A user's shell at a running rig."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from structlog.testing import capture_logs
from typer.testing import CliRunner

from hami_cli.exits import FOUND
from hami_cli.main import app

TRIES = 40
PAUSE_SECONDS = 0.25
FOLLOW_SECONDS = 60.0


class Said(Struct, frozen=True, kw_only=True):
    """What a command said."""

    code: int
    out: str
    err: str

    def rows(self, *, after: str = "") -> list[list[str]]:
        """The lines in words, from that which begins with ``after``."""
        lines = [line.split() for line in self.out.splitlines()]
        start = next((place for place, words in enumerate(lines) if words and words[0] == after), 0)
        return lines[start:]


class Shell:
    """A user's shell, with ``KUBECONFIG`` to go by, and what else is given."""

    def __init__(self, kubeconfig: Path, **environ: str) -> None:
        self._kubeconfig = kubeconfig
        self._given = environ
        self._environ: dict[str, str | None] = {key: None for key in os.environ if key.startswith(("HAMI_", "NATS_"))}
        self._environ |= {"KUBECONFIG": str(kubeconfig), **environ}

    def where(self, **environ: str) -> Shell:
        """One more, to which something else is given besides."""
        return Shell(self._kubeconfig, **(self._given | environ))

    async def hami(self, *arguments: str, given: str = "") -> Said:
        """Run ``hami`` in this process, in a thread and with an event loop of its own: a new interpreter would take longer than most commands."""
        with capture_logs():
            result = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=given, env=self._environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Said(code=result.exit_code, out=result.stdout, err=result.stderr)

    async def program(self, *arguments: str) -> Said:
        """Run it as a program."""
        process = await self._start(*arguments)
        out, err = await process.communicate()
        return Said(code=process.returncode or 0, out=out.decode(), err=err.decode())

    @asynccontextmanager
    async def following(self, *arguments: str) -> AsyncIterator[AsyncIterator[str]]:
        """Run a program that goes on, give its lines as they come, and interrupt it at the end."""
        process = await self._start(*arguments)
        assert process.stdout is not None

        async def lines(stdout: asyncio.StreamReader) -> AsyncIterator[str]:
            async for line in stdout:
                yield line.decode()

        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                yield lines(process.stdout)
        finally:
            process.send_signal(signal.SIGINT)
            await process.communicate()

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        environ = {key: value for key, value in {**os.environ, **self._environ}.items() if value is not None}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hami_cli.main", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
        )

    async def findings(self, pod: str, *, tries: int = TRIES) -> list[dict[str, Any]]:
        """What ``hami diagnose`` finds, once it finds anything."""
        for _ in range(tries):
            said = await self.hami("diagnose", pod, "-o", "json")
            if said.code == FOUND:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        found: list[dict[str, Any]] = json.loads(said.out)["findings"]
        return found

    async def each(self, *commands: str) -> list[Said]:
        """Run several, one after the other."""
        return [await self.hami(*command.split()) for command in commands]

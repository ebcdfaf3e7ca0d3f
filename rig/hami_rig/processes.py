"""How the rig starts programs so that none outlives it, knows when they are ready, and shows what they said last.

Each program has a session of its own (so that Ctrl-C reaches the rig alone, which then stops them in order) and dies when its parent does, even
by SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
LOOK_AGAIN_SECONDS = 0.02
LOG_TAIL_LINES = 15


class ProcessFailed(Exception):  # noqa: N818 - reads as the condition it names
    """A program of the rig did not start, or ended; the text has its last log lines."""


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent is gone: for ``preexec_fn``, in the child, before it becomes the program.

    The kernel counts the parent's *thread*: start children from the main thread, which ends last.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ManagedProcess:
    """One program of the rig; started, stopped and started again by it alone."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self.ready_file = folder / "ready" / f"{name}.json"
        self.environ = dict(environ)
        self.command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False
        self.ready_content: dict[str, Any] | None = None
        """Given for a program that knows no ready file: where it listens, known by other means."""

    @property
    def pid(self) -> int:
        """Of the running program; 0 where it does not run."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    @property
    def ended_unasked(self) -> bool:
        """Whether it has ended although nobody stopped it."""
        return self._process is not None and self._process.returncode is not None and not self._ending

    async def start(self) -> None:
        """Start the program, its output appended to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.parent.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        self._ending = False
        with self.log.open("ab") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environ,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            except OSError as exc:
                raise ProcessFailed(f"{self.name} cannot be started: {self.command[0]}: {exc.strerror}") from exc

    async def ready(self, *, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the program says in its ready file where it listens, and return that.

        Raises:
            ProcessFailed: it ended first, or took too long.
        """
        if self.ready_content is not None:
            return self.ready_content
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self.ready_file.exists():
                    if not self.pid:
                        raise ProcessFailed(self.obituary())
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError as exc:
            raise ProcessFailed(f"{self.name} is not ready after {timeout_seconds:.0f} s\n{self.log_tail()}") from exc
        content: dict[str, Any] = msgspec.json.decode(self.ready_file.read_bytes())
        return content

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the program, if it runs."""
        if self.pid:
            self._ending = self._ending or signum in (signal.SIGTERM, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    async def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        return await self._process.wait() if self._process else 0

    async def stop(self, *, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL to everything it started."""
        if self._process is None or not self.pid:
            return
        group = self._process.pid
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            await self._process.wait()

    def obituary(self) -> str:
        """How it ended, and what it said last."""
        code = self._process.returncode if self._process else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"
        return f"{self.name} {how}\n{self.log_tail()}"

    def log_tail(self) -> str:
        """Its last log lines."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"    {line[:1000]}" for line in lines[-LOG_TAIL_LINES:])

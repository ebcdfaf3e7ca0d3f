"""A process that is started, dies, and is started again: what kubelet or systemd does for each of the services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hami_runtime.virtual import VirtualClock
from tests.simulation.faults import Faults, Killed, Process

Main = Callable[[Process], Awaitable[None]]


class Supervisor:
    """One service through all its lives.

    Attributes:
        process: the life that it lives now; None between two.
        clock: of its machine.
        ended: why a life ended that nobody had killed; empty while all is well.
    """

    def __init__(self, name: str, faults: Faults, main: Main) -> None:
        self.name = name
        self.clock = VirtualClock()
        self.process: Process | None = None
        self.ended = ""
        self.lives = 0
        self.longest_pause_seconds = 3.0
        self._faults = faults
        self._main = main

    @property
    def alive(self) -> bool:
        """Whether it lives now."""
        return self.process is not None and self.process.alive

    async def run(self) -> None:
        """Start it, and again whenever it is dead."""
        try:
            while True:
                await self._live()
                await asyncio.sleep(self._faults.random.uniform(0.0, self.longest_pause_seconds) if self._faults.active else 0.1)
        finally:
            if self.process is not None:
                self.process.alive = False

    async def _live(self) -> None:
        self.lives += 1
        process = self.process = Process(f"{self.name}#{self.lives}", self._faults, fuse=self._faults.fuse())
        self._faults.tell(f"{process.name} starts")
        life = asyncio.ensure_future(self._main(process))
        died = asyncio.ensure_future(process.died.wait())
        try:
            await asyncio.wait((life, died), return_when=asyncio.FIRST_COMPLETED)
            if process.alive:
                self.ended = f"{process.name} ended by itself: {_why(life)}"
        finally:
            self.process = None
            process.alive = False
            life.cancel()
            died.cancel()
            await process.bury()
            await asyncio.gather(life, died, return_exceptions=True)

    def kill(self) -> None:
        """Kill it now, where it lives."""
        if self.process is not None:
            self.process.kill()


def _why(life: asyncio.Future[None]) -> str:
    if life.cancelled():
        return "cancelled"
    failure = life.exception()
    if isinstance(failure, BaseExceptionGroup):
        failure = _first(failure)
    return "it returned" if failure is None else f"{type(failure).__name__}: {failure}"


def _first(group: BaseExceptionGroup) -> BaseException:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            return _first(each)
        if not isinstance(each, Killed | asyncio.CancelledError):
            return each
    return group

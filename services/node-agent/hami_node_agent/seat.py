"""The seat of a node's agent: of two agents on one host, as in a rolling update, exactly one acts. Its means are locks on two files of the host.

Who acts holds ``seat``. Who starts holds ``next`` while it waits for the seat, and who acts gives the seat up when it sees that. The kernel gives
both up with the process that holds them, however it ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

from hami_runtime.lifecycle import sleep_until

POLL_SECONDS: Final = 0.1
TAKE_SECONDS: Final = 20.0
"""An agent that holds the seat and does not give it up in that time hangs."""


class SeatTaken(OSError):  # noqa: N818 - reads as the condition it names
    """Another agent acts on this host, and does not give up the seat."""


class Seat:
    """This process's part in who acts."""

    def __init__(self, folder: Path, *, poll_seconds: float = POLL_SECONDS, take_seconds: float = TAKE_SECONDS) -> None:
        self._seat = _Lock(folder / "seat")
        self._next = _Lock(folder / "next")
        self._poll_seconds = poll_seconds
        self._take_seconds = take_seconds

    def taken(self) -> bool:
        """Whether another process holds the seat now."""
        return self._seat.is_held_elsewhere()

    async def take(self, stop: asyncio.Event) -> bool:
        """Ask for the seat and wait for it; False where ``stop`` came first.

        Raises:
            SeatTaken: who holds it does not give it up.
            OSError: the files cannot be used.
        """
        try:
            async with asyncio.timeout(self._take_seconds):
                return await self._locked(self._next, stop) and await self._locked(self._seat, stop)
        except TimeoutError:
            raise SeatTaken(f"another agent holds {self._seat.path} and has not given it up within {self._take_seconds:g} s") from None
        finally:
            self._next.release()

    async def wanted(self, stop: asyncio.Event) -> bool:
        """Return True once another process asks for the seat; False at ``stop``."""
        while not await sleep_until(stop, self._poll_seconds):
            if self._next.is_held_elsewhere():
                return True
        return False

    def release(self) -> None:
        """Give the seat up."""
        self._seat.release()

    async def deserted(self, stop: asyncio.Event) -> bool:
        """Return True once nobody holds the seat or asks for it any more; False at ``stop``."""
        while not await sleep_until(stop, 10 * self._poll_seconds):
            if not self._next.is_held_elsewhere() and not self._seat.is_held_elsewhere():
                return True
        return False

    async def _locked(self, lock: _Lock, stop: asyncio.Event) -> bool:
        while not lock.acquire():
            if await sleep_until(stop, self._poll_seconds):
                return False
        return True


class _Lock:
    """An exclusive lock on one file, which is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take it if it is free; True where this process holds it."""
        if self._descriptor is not None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it up, if this process holds it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_held_elsewhere(self) -> bool:
        """Whether another process holds it."""
        if self._descriptor is not None:
            return False
        if not self.acquire():
            return True
        self.release()
        return False

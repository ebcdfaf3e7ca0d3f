"""A bell: who waits for something to change is woken by every ring, and looks again. Nothing is carried, so nothing can be missed or kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Bell:
    """Rung by whoever changes state, on the event loop."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._handlers: list[Callable[[], None]] = []
        self.rings = 0

    def subscribe(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` at every ring."""
        self._handlers.append(handler)

    def ring(self) -> None:
        """Wake everybody who waits now."""
        self.rings += 1
        self._rung.set()
        self._rung = asyncio.Event()
        for handler in self._handlers:
            handler()

    @property
    def next_ring(self) -> asyncio.Event:
        """Set by the next ring after now, however late somebody begins to wait for it."""
        return self._rung

    async def wait(self) -> None:
        """Return at the next ring."""
        await self._rung.wait()

    async def each(self) -> AsyncIterator[None]:
        """Once now, then after every ring; rings that come while the receiver is at work are one."""
        while True:
            seen = self.rings
            yield
            while self.rings == seen:
                await self.wait()

    async def pause(self, stop: asyncio.Event, seconds: float) -> None:
        """Return at the next ring after this call, after ``seconds``, or when ``stop`` is set."""
        await pause(stop, seconds, (self,))

    async def until(self, look: Callable[[], T | None], *, seconds: float) -> T | None:
        """What ``look`` finds, now or after a ring; None where it has found nothing after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while (found := look()) is None:
                    await self.wait()
        except TimeoutError:
            return look()
        return found


async def pause(stop: asyncio.Event, seconds: float, bells: Sequence[Bell]) -> None:
    """Return at the next ring of any of ``bells`` after this call, after ``seconds``, or when ``stop`` is set."""
    waiting = [asyncio.ensure_future(_set(bell.next_ring)) for bell in bells]
    waiting.append(asyncio.ensure_future(_set(stop)))
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()


async def _set(event: asyncio.Event) -> None:
    await event.wait()

"""Time that jumps: an event loop whose clock moves to the next timer as soon as nothing is ready. For simulations and tests.

Invariants: no real time passes while waiting; equal programs run in equal order; and nothing outside the process is
read, so nothing there can disturb the order. A program that waits for what can never come raises ``Stuck`` instead of hanging.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Where virtual wall clocks start."""


class Stuck(RuntimeError):  # noqa: N818 - reads as the condition it names
    """Every task waits, and no timer is set: nothing can ever happen again."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0."""

    def __init__(self) -> None:
        self._now_seconds = 0.0
        super().__init__(_NoIO(self._jump))

    @property
    def _clock_resolution(self) -> float:
        """No timer runs before its time, however little: who then asks the time and waits for the rest would wait for ever, in no time."""
        return math.ulp(self._now_seconds)

    @_clock_resolution.setter
    def _clock_resolution(self, seconds: float) -> None:
        """The system's own, which asyncio sets, means nothing here."""

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_seconds

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            raise Stuck("every task waits and no timer is set")
        self._now_seconds += max(0.0, seconds)


class VirtualClock:
    """The clock port over a virtual loop.

    Attributes:
        skew: how far this machine's wall clock is off; may change at any time, and ``monotonic`` does not notice.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, start: datetime = EPOCH) -> None:
        """Start the wall clock at ``start`` when the loop's time is 0; without a loop, the running one is meant."""
        self._time: Callable[[], float] = loop.time if loop else lambda: asyncio.get_running_loop().time()
        self._start = start
        self.skew = timedelta()

    def monotonic(self) -> float:
        """The loop's time."""
        return self._time()

    def utc(self) -> datetime:
        """The start plus the loop's time plus ``skew``."""
        return self._start + timedelta(seconds=self._time()) + self.skew


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` in virtual time on a loop of its own.

    Raises:
        Stuck: it waits for what can never come.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class _NoIO(selectors.BaseSelector):
    """Accepts the loop's own wake-up pipe, and nothing else. "Selecting" moves the time."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        self._jump = jump
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._keys:
            raise RuntimeError(f"{fileobj!r}: a virtual loop does no I/O; use the ports' adapters in memory")
        descriptor: int = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return self._keys[descriptor]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

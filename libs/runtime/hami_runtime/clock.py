"""Time as a port. Durations are measured on ``monotonic``; ``utc`` is only ever written down, never compared with another machine's.

Waiting is asyncio's (``asyncio.sleep``, ``asyncio.timeout``): under the virtual clock of the simulation the event loop itself jumps,
and ``monotonic`` is that loop's time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds that only go forward, from an arbitrary start."""
        ...

    def utc(self) -> datetime:
        """The wall clock, timezone-aware, in UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds since some point in the past."""
        return time.monotonic()

    def utc(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)

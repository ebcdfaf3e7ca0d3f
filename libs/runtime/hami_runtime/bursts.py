"""Whether things happen faster than so many a second, and how long what nobody waits for gives way to them. Pure; times are given."""

from __future__ import annotations

from collections import deque
from typing import Final

LONGEST_WAIT_SECONDS: Final = 5.0
"""Whoever gives way to a burst does so for no longer (docs/decisions/0012)."""


class Bursts:
    """Counts one kind of thing. There is a burst while more than ``most_per_second`` of them lie within one second."""

    def __init__(self, most_per_second: int) -> None:
        self._times: deque[float] = deque(maxlen=most_per_second + 1)

    def happened(self, now: float) -> None:
        """One more, at ``now`` (monotonic seconds)."""
        self._times.append(now)

    def lasts_until(self, now: float) -> float:
        """When the burst is over if nothing more happens; ``now`` where there is none."""
        times = self._times
        return max(now, times[0] + 1.0) if len(times) == times.maxlen else now

    def seconds_to_wait(self, since: float, now: float) -> float:
        """How long, from ``now``, what has waited since ``since`` still gives way; 0 or less for not at all."""
        return min(self.lasts_until(now), since + LONGEST_WAIT_SECONDS) - now

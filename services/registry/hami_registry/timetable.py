"""When what is due, and how much may be done at a time. Pure: times are given, in seconds of one monotonic clock.

Invariant: in any window of one second a budget lets no more through than it was made for.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timetable(Generic[K]):
    """One time per key; the earliest comes first, equal ones in the order in which they were set."""

    def __init__(self) -> None:
        self._at: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at: float) -> None:
        """``key`` is due at ``at``, whatever was said before."""
        self._count += 1
        self._at[key] = (at, self._count)
        heapq.heappush(self._heap, (at, self._count, key))

    def hasten(self, key: K, at: float) -> None:
        """``key`` is due at ``at``, or earlier where it was already."""
        if key not in self._at or self._at[key][0] > at:
            self.set(key, at)

    def cancel(self, key: K) -> None:
        """``key`` is not due any more."""
        self._at.pop(key, None)

    def next_at(self) -> float | None:
        """When the first key is due; None where there is none."""
        while self._heap:
            at, count, key = self._heap[0]
            if self._at.get(key) == (at, count):
                return at
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> K | None:
        """Take out the first key that is due by ``now``; None where there is none."""
        at = self.next_at()
        if at is None or at > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._at[key]
        return key


class Budget:
    """So many a second, in every window of a second."""

    def __init__(self, per_second: int) -> None:
        self._spent: deque[float] = deque(maxlen=per_second)

    def free_at(self, now: float) -> float:
        """When the next one may go: ``now``, or the moment at which the window has room again."""
        full = len(self._spent) == self._spent.maxlen
        return max(now, self._spent[0] + 1.0) if full else now

    def spend(self, now: float) -> None:
        """One has gone."""
        self._spent.append(now)

"""Keeps the failure of one item (a pod, a node, a message, a file) from every other item and from the loop that handles them.

Every loop of a service handles each item inside ``Isolation.item``. What the handler raises is logged once, counted, and remembered with a
backoff; the loop goes on with the next item. ``RecursionError`` and ``MemoryError`` are failures of the item too: oversized input causes both.
``CancelledError``, ``KeyboardInterrupt`` and ``SystemExit`` are no ``Exception`` and pass.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from msgspec import Struct

from hami_runtime.clock import Clock
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0
REMEMBERED: Final = 1_000
"""Items that fail at a time; the oldest is forgotten first, and logged again if it fails again."""
_ERROR_CHARACTERS: Final = 300
_FRAMES: Final = 6
_LONGEST_DOUBLINGS: Final = 10


class _Failure(Struct):
    error: str
    count: int
    retry_at: float


class Isolation:
    """The items of one loop that fail.

    Attributes:
        loop: name of the loop, in logs and as a label of ``hami_item_failures_total``.
    """

    def __init__(self, loop: str, clock: Clock, telemetry: Telemetry = OFF) -> None:
        self.loop = loop
        self._clock = clock
        self._failing: OrderedDict[str, _Failure] = OrderedDict()
        self._failures = telemetry.counter("hami_item_failures", "failures of single items (pods, nodes, messages), by loop")
        telemetry.gauge("hami_failing_items", "items whose last attempt failed, by loop", lambda: [(len(self._failing), {"loop": loop})])

    @contextmanager
    def item(self, name: object) -> Iterator[None]:
        """Handle the item ``name`` inside; an exception ends with the block."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - the purpose of this class
            self.failed(str(name), exc)
        else:
            self._failing.pop(str(name), None)

    def failed(self, name: str, exc: Exception) -> None:
        """Count a failure of ``name``; log it unless its last failure was the same."""
        self._failures.add(1, {"loop": self.loop})
        error = f"{type(exc).__name__}: {exc}"[:_ERROR_CHARACTERS]
        before = self._failing.pop(name, None)
        count = 1 if before is None else before.count + 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(count - 1, _LONGEST_DOUBLINGS), LONGEST_PAUSE_SECONDS)
        self._failing[name] = _Failure(error, count, self._clock.monotonic() + pause)
        if len(self._failing) > REMEMBERED:
            self._failing.popitem(last=False)
        if before is None or before.error != error:
            log.error("item failed", loop=self.loop, item=name, error=error, where=_where(exc), retry_seconds=pause)
        else:
            log.debug("item failed again", loop=self.loop, item=name, error=error, times=count)

    def times(self, name: object) -> int:
        """How often in succession ``name`` has failed."""
        failure = self._failing.get(str(name))
        return 0 if failure is None else failure.count

    def due(self, name: object) -> bool:
        """Whether ``name`` may be tried: it has not failed, or its backoff is over."""
        return self.pause_seconds(name) <= 0

    def pause_seconds(self, name: object) -> float:
        """How long the backoff of ``name`` still takes; 0 for one that does not fail."""
        failure = self._failing.get(str(name))
        return 0.0 if failure is None else max(0.0, failure.retry_at - self._clock.monotonic())

    def forget(self, name: object) -> None:
        """The item is gone."""
        self._failing.pop(str(name), None)

    @property
    def failing(self) -> tuple[str, ...]:
        """The items whose last attempt failed."""
        return tuple(self._failing)


def _where(exc: Exception) -> str:
    """The innermost frames. Not the whole traceback: that of a ``RecursionError`` has a thousand."""
    frames = traceback.extract_tb(exc.__traceback__, limit=-_FRAMES)
    return " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames))

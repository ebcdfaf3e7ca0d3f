"""Keeps Python's cycle collector out of filter's way: a full collection over a large cluster's objects takes 200 ms and stops every filter.

What the scheduler keeps has no cycles; reference counts free it. So once the cluster is read its objects are set aside (``gc.freeze``), and from
time to time those that came since, after a collection that then has only these to look at.
"""

from __future__ import annotations

import asyncio
import gc

from hami_runtime.lifecycle import run_until, sleep_until
from hami_scheduler.service import Scheduler

EVERY_SECONDS = 300.0
YOUNG_OBJECTS = 20_000
"""How many more objects there must be before the young ones are looked at; Python's own 700 would be several times per filter call."""


async def keep_calm(scheduler: Scheduler, stop: asyncio.Event) -> None:
    """Set aside what is there when the cluster has been read, and every five minutes what has come since, until ``stop``."""
    await run_until(stop, _read(scheduler))
    while not stop.is_set():
        set_aside()
        await sleep_until(stop, EVERY_SECONDS)


def set_aside() -> None:
    """Collect once, then never look at what is left again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


async def _read(scheduler: Scheduler) -> None:
    await scheduler.nodes.synced.wait()
    await scheduler.pods.synced.wait()

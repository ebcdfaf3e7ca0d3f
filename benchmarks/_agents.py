"""Kubelet's part and the agents': every grant is reported allocated as soon as it is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hami_protocol import subjects
from hami_protocol.envelope import open_message
from hami_protocol.events import AllocationSucceeded, PodAllocating
from hami_runtime.bus.port import Bus, StartAt
from hami_runtime.clock import SystemClock
from hami_runtime.outbox import Outbox


@asynccontextmanager
async def agents(bus: Bus) -> AsyncIterator[None]:
    """Play them for as long as the context lasts; there must be streams."""
    outbox = Outbox(bus, SystemClock(), source="/hami/node-agent/benchmark")

    async def serve() -> None:
        async with bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_GRANTS], start=StartAt.NEW) as deliveries:
            async for delivery in deliveries:
                granted = open_message(delivery.message)
                if isinstance(granted, PodAllocating):
                    outbox.put(AllocationSucceeded(pod=granted.pod, node=granted.node), f"{granted.pod.uid}-success")

    tasks = [asyncio.create_task(serve()), asyncio.create_task(outbox.run(asyncio.Event()))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

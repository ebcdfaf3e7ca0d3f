"""Kubelet's part and the agents': every grant is reported allocated as soon as it is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from hami_protocol import subjects
from hami_protocol.envelope import open_message, seal
from hami_protocol.events import AllocationSucceeded, PodAllocating
from hami_runtime.bus.port import Bus, StartAt


@asynccontextmanager
async def agents(bus: Bus) -> AsyncIterator[None]:
    """Play them for as long as the context lasts; there must be streams."""

    async def serve() -> None:
        async with bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_GRANTS], start=StartAt.NEW) as deliveries:
            async for delivery in deliveries:
                granted = open_message(delivery.message)
                if isinstance(granted, PodAllocating):
                    event = AllocationSucceeded(pod=granted.pod, node=granted.node)
                    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
                    name = f"{granted.pod.uid}-success"
                    await bus.publish(seal(event, event_id=name, source="/hami/node-agent/benchmark", time=now, by_agent=True))

    task = asyncio.create_task(serve())
    yield
    task.cancel()
    await asyncio.wait([task])

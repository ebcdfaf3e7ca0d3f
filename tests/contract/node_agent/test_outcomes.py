"""After an outage an outcome goes out behind the grant that it answers; nothing waits for a grant that never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hami_node_agent.grants_view import GrantsView
from hami_node_agent.outcomes import GRACE_SECONDS, BehindGrants
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.events import AllocationSucceeded, Event, PodAllocating
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.outbox import Outbox
from hami_runtime.virtual import VirtualClock

POD = PodRef(namespace="default", name="p", uid="u")
SUCCESS = AllocationSucceeded(pod=POD, node="n1")
GRANT = PodAllocating(pod=POD, node="n1", assignments=(), bind_time_seconds=1)

Story = Callable[[MemoryBus, Outbox], Coroutine[Any, Any, None]]


def tell(story: Story) -> list[str]:
    """Run ``story`` beside an agent's outbox; what the log then has, by event type."""

    async def run() -> list[str]:
        bus, clock, stop = MemoryBus(), VirtualClock(), asyncio.Event()
        await bus.ensure_streams([subjects.ALLOCATIONS])
        view = GrantsView(bus, node="n1")
        outbox = Outbox(BehindGrants(bus, view, clock), clock, source="/hami/node-agent/n1")
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(loop(stop)) for loop in (view.follow, outbox.run)]
            await story(bus, outbox)
            stop.set()
            await asyncio.wait(loops)
        return [message.headers["ce-type"].rpartition(".")[2] for message in bus.kept(subjects.ALLOCATIONS)]

    return virtual.run(run())


async def say(bus: MemoryBus, event: Event) -> None:
    await bus.publish(seal(event, event_id=type(event).__name__, source="/hami/scheduler", time="2026-01-01T00:00:00Z"))


def test_an_outcome_waits_for_its_grant_after_an_outage() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        bus.down()
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(60)
        bus.up()
        await asyncio.sleep(2)
        await say(bus, GRANT)
        await asyncio.sleep(0.1)

    assert tell(story) == ["pod_allocating", "allocation_succeeded"]


def test_it_does_not_wait_longer_than_a_scheduler_may_take_and_later_not_at_all() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(GRACE_SECONDS - 0.1)
        assert bus.kept(subjects.ALLOCATIONS) == ()
        await asyncio.sleep(0.2)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 1
        outbox.put(AllocationSucceeded(pod=PodRef(namespace="default", name="q", uid="v"), node="n1"), "v/succeeded")
        await asyncio.sleep(0.01)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 2

    assert tell(story) == ["allocation_succeeded", "allocation_succeeded"]


def test_with_its_grant_seen_an_outcome_goes_out_at_once() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        await say(bus, GRANT)
        await asyncio.sleep(0.01)
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(0.01)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 2

    assert tell(story) == ["pod_allocating", "allocation_succeeded"]

"""An outcome goes out behind the grant that it answers, and waits no longer than it must for one that never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import pytest

from hami_node_agent.grants_view import GrantsView
from hami_node_agent.outcomes import GRACE_SECONDS, patience_seconds
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message, seal
from hami_protocol.events import AllocationFailed, AllocationSucceeded, Event, PodAllocating, PodReleased
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.outbox import Outbox
from hami_runtime.virtual import VirtualClock

POD = PodRef(namespace="default", name="p", uid="u")
SUCCESS = AllocationSucceeded(pod=POD, node="n1")
GRANT = PodAllocating(pod=POD, node="n1", assignments=(), bind_time_seconds=1)

Story = Callable[[MemoryBus, Outbox], Coroutine[Any, Any, None]]


def tell(story: Story, *, grants_expected: bool = True, pods: Collection[str] = ()) -> list[str]:
    """Run ``story`` beside an agent's outbox, on a node with ``pods`` (UIDs); return the log's event types in order."""

    def patience(event: Event) -> float:
        return patience_seconds(event, told=view.told, lives=pods.__contains__, grants_expected=grants_expected)

    async def run() -> list[str]:
        stop = asyncio.Event()
        await bus.ensure_streams([subjects.ALLOCATIONS])
        outbox = Outbox(bus, VirtualClock(), source="/hami/node-agent/n1", patience=patience)
        view.changed.subscribe(outbox.look_again)
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(loop(stop)) for loop in (view.follow, outbox.run)]
            await story(bus, outbox)
            stop.set()
            await asyncio.wait(loops)
        return [message.headers["ce-type"].rpartition(".")[2] for message in bus.kept(subjects.ALLOCATIONS)]

    bus = MemoryBus()
    view = GrantsView(bus, VirtualClock(), node="n1", pods=lambda: [POD], pods_known=lambda: asyncio.sleep(0))
    return virtual.run(run())


def sealed(event: Event) -> Message:
    return seal(event, event_id=type(event).__name__, source="/hami/scheduler", time="2026-01-01T00:00:00Z")


async def say(bus: MemoryBus, event: Event) -> None:
    await bus.publish(sealed(event))


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


def test_success_of_a_pod_that_lives_is_never_before_its_grant() -> None:
    """Where no scheduler led for longer than the grace time, the log had the outcome first."""

    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(10 * GRACE_SECONDS)
        assert bus.kept(subjects.ALLOCATIONS) == ()
        await say(bus, GRANT)
        await asyncio.sleep(0.1)

    assert tell(story, pods={"u"}) == ["pod_allocating", "allocation_succeeded"]


def test_a_grant_that_no_stream_could_keep_is_not_in_the_log() -> None:
    """A server of the bus was killed: the grant was published live, so that the pod started, and kept only after the next attempt."""

    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        bus.publish_unkept(sealed(GRANT))
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(60)
        assert bus.kept(subjects.ALLOCATIONS) == ()
        await say(bus, GRANT)
        await asyncio.sleep(0.1)

    assert tell(story, pods={"u"}) == ["pod_allocating", "allocation_succeeded"]


def test_a_grant_that_came_before_it_was_kept_is_found_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it was kept is not received live: it is looked up, once a minute."""

    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        bus.publish_unkept(sealed(GRANT))
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(1)
        monkeypatch.setattr(bus, "_publish_live", lambda *_: None)
        await say(bus, GRANT)
        await asyncio.sleep(61)

    assert tell(story, pods={"u"}) == ["pod_allocating", "allocation_succeeded"]


def test_success_of_a_pod_that_ends_meanwhile_is_published_without_its_grant() -> None:
    pods = {"u"}

    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(10 * GRACE_SECONDS)
        pods.clear()
        outbox.look_again()
        await asyncio.sleep(0.1)

    assert tell(story, pods=pods) == ["allocation_succeeded"]


def test_it_waits_as_long_as_a_scheduler_may_take_and_no_longer() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(GRACE_SECONDS - 0.1)
        assert bus.kept(subjects.ALLOCATIONS) == ()
        await asyncio.sleep(0.2)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 1

    assert tell(story) == ["allocation_succeeded"]


def test_a_pod_whose_grant_does_not_come_holds_up_no_other_pod() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        outbox.put(AllocationFailed(pod=PodRef(namespace="default", name="q", uid="v"), node="n1", reason=""), "v/failed")
        outbox.put(SUCCESS, "u/succeeded")
        await say(bus, GRANT)
        await asyncio.sleep(0.1)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 2
        await asyncio.sleep(GRACE_SECONDS)

    assert tell(story) == ["pod_allocating", "allocation_succeeded", "allocation_failed"]


def test_with_its_grant_seen_an_outcome_goes_out_at_once() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        await say(bus, GRANT)
        await asyncio.sleep(0.01)
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(0.01)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 2

    assert tell(story) == ["pod_allocating", "allocation_succeeded"]


def test_once_its_release_is_in_the_log_there_is_no_grant_to_wait_for() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        await say(bus, PodReleased(pod=POD, node="n1"))
        await asyncio.sleep(0.01)
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(0.01)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 2

    assert tell(story) == ["pod_released", "allocation_succeeded"]


def test_beside_a_scheduler_that_says_nothing_no_outcome_waits() -> None:
    async def story(bus: MemoryBus, outbox: Outbox) -> None:
        bus.down()
        outbox.put(SUCCESS, "u/succeeded")
        await asyncio.sleep(60)
        bus.up()
        await asyncio.sleep(6)
        assert len(bus.kept(subjects.ALLOCATIONS)) == 1

    assert tell(story, grants_expected=False) == ["allocation_succeeded"]

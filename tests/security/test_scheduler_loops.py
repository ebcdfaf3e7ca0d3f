"""Each loop of the scheduler: an item whose handler raises keeps the next item from nothing, and the replica goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.events import DevicesReported, PodReleased
from hami_runtime import virtual
from hami_runtime.kube import cluster as api
from hami_scheduler.presence import Key
from hami_scheduler.service import Options, Scheduler
from tests.builders import a_device
from tests.contract.scheduler.world import World, place, ref, settle
from tests.security.failing import ERRORS, fail

Scenario = Callable[[World, Scheduler, Exception], Awaitable[None]]
BAD, GOOD = (PodRef(namespace="default", name=name, uid=name) for name in ("bad", "good"))


async def informers(world: World, scheduler: Scheduler, error: Exception) -> None:
    fail(scheduler.picture.pods, "changed", lambda _, new: new is not None and new.metadata.name == "bad", error=error)
    await world.pod("bad", gpu=1, gpumem=100)
    assert await place(scheduler, await world.pod("good", gpu=1, gpumem=100)) == "n1"


async def preemption(_world: World, scheduler: Scheduler, error: Exception) -> None:
    preempting: Any = scheduler._preempting
    passed = fail(preempting, "_make_room", lambda wanting: wanting.pod == BAD, error=error)
    preempting._wanting |= {pod.uid: SimpleNamespace(pod=pod, nodes={}) for pod in (BAD, GOOD)}
    preempting._bell.set()
    await settle()
    assert [wanting.pod for (wanting,) in passed] == [GOOD]


async def groups(_world: World, scheduler: Scheduler, error: Exception) -> None:
    gathering: Any = scheduler._gathering
    passed = fail(gathering, "_read", lambda group: group == "bad", error=error)
    gathering._unread |= {"bad": None, "good": None}
    gathering._bell.set()
    await settle()
    gathering._unread.clear()
    assert ("good",) in passed


async def adoption(world: World, scheduler: Scheduler, error: Exception) -> None:
    fail(scheduler._adopting, "_adopt", lambda pod: pod.metadata.name == "bad", error=error)
    for name in ("bad", "good"):
        pod = await world.pod(name, spec={"schedulerName": "volcano"}, gpu=1, gpumem=100)
        await world.admin.bind(ref(pod), "n1", annotations={}, labels={})
    await asyncio.sleep(0.1)
    assert [entry.pod.name for entry in scheduler.picture.state.entries()] == ["good"]


async def events(world: World, scheduler: Scheduler, error: Exception) -> None:
    recorder = scheduler._events
    fail(recorder._cluster, "create", lambda _kind, body, **_: body.get("message") == "bad", error=error)
    for text in ("bad", "good"):
        recorder.record(GOOD, "Warning", "Reason", text)
    await asyncio.sleep(0.1)
    assert [message for _, _, message in await world.events()] == ["good"]


async def publishing(world: World, scheduler: Scheduler, error: Exception) -> None:
    fail(world.bus, "publish", lambda message, **_: "bad" in message.subject, error=error)
    for pod in (BAD, GOOD):
        scheduler._say(PodReleased(pod=pod, node="n1", reason="gone"), f"{pod.uid}/released")
    await asyncio.sleep(60)
    assert [event.pod.name for event in world.log() if isinstance(event, PodReleased)] == ["good"]


async def devices(world: World, scheduler: Scheduler, error: Exception) -> None:
    await followed(world, scheduler, error, "device_event")


async def allocations(world: World, scheduler: Scheduler, error: Exception) -> None:
    await followed(world, scheduler, error, "allocation_event")


async def followed(world: World, scheduler: Scheduler, error: Exception, handler: str) -> None:
    """Messages are handed to the reader as the bus hands them."""
    passed = fail(scheduler.picture, handler, lambda event, *_: event.node == "bad", error=error)
    feeds: Any = scheduler._feeds
    kind: Any = device_message if handler == "device_event" else allocation_message
    for node in ("bad", "good"):
        await world.bus.publish(kind(node))
    await settle()
    assert [args[0].node for args in passed] == ["good"]
    assert feeds._isolation.failing


def device_message(node: str) -> Any:
    event = DevicesReported(node=node, device_type="nvidia", generation=1, devices=(a_device(f"GPU-{node}"),))
    return seal(event, event_id=f"{node}/1", source="test", time="2026-01-01T00:00:00Z")


def allocation_message(node: str) -> Any:
    event = PodReleased(pod=PodRef(namespace="default", name=node, uid=node), node=node, reason="gone")
    return seal(event, event_id=f"{node}/released", source="test", time="2026-01-01T00:00:00Z")


async def tending(_world: World, scheduler: Scheduler, error: Exception) -> None:
    passed = fail(scheduler.picture, "tend", times=1, error=error)
    await asyncio.sleep(5)
    assert passed


async def bindings(_world: World, scheduler: Scheduler, error: Exception) -> None:
    binder: Any = scheduler._binder
    passed = fail(binder, "_look_for", lambda bound: bound.binding.pod == BAD, error=error)
    fail(binder, "_settle")
    binder._unshown |= {pod.uid: SimpleNamespace(binding=SimpleNamespace(pod=pod), sent_seconds=0.0) for pod in (BAD, GOOD)}
    await asyncio.sleep(3)
    binder._unshown.clear()
    assert {bound.binding.pod for (bound,) in passed} == {GOOD}


async def locks(_world: World, scheduler: Scheduler, error: Exception) -> None:
    shared: Any = scheduler.locks._shared
    passed = fail(shared, "_remove", lambda node: node == "bad", error=error)
    shared._to_release |= {"bad", "good"}
    shared._release_wanted.set()
    await settle()
    assert ("good",) in passed


async def presence(_world: World, scheduler: Scheduler, error: Exception) -> None:
    agents: Any = scheduler._agents
    fail(agents, "_question", lambda key: key.node == "bad", error=error)
    fail(agents._presence, "look", times=1, error=error)
    asked = fail(agents, "_look_at", lambda _: False)
    for node in ("bad", "good"):
        await agents._ask(Key(node=node, device_type="nvidia"))
    await asyncio.sleep(5)
    assert [key.node for (key,) in asked][:2] == ["bad", "good"]


async def election(_world: World, scheduler: Scheduler, error: Exception) -> None:
    elector: Any = scheduler._elector
    fail(elector, "_acquire_or_renew", times=3, error=error)
    await asyncio.sleep(60)
    assert scheduler.leads()


LOOPS: dict[str, Scenario | None] = {
    "Informer.run": informers,
    "Preempting.run": preemption,
    "Gathering.run": groups,
    "Adopting.run": adoption,
    "EventRecorder.run": events,
    "Scheduler._publish": publishing,
    "Feeds.follow_devices": devices,
    "Feeds.follow_allocations": allocations,
    "Tending.run": tending,
    "Binder.run": bindings,
    "Agents.run": presence,
    "Locks.run": locks,
    "LeaderElector.run": election,
    "Scheduler._read_pods_anew": None,  # it has no items: it waits for the informer
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("loop", [name for name, scenario in LOOPS.items() if scenario])
def test_an_item_that_fails_keeps_the_next_from_nothing(loop: str, error: Exception) -> None:
    async def main() -> None:
        world = World()
        await world.node("n1")
        options = Options(adopted_schedulers=frozenset({"volcano"}))
        async with world.scheduler(options=options, elect="s1") as scheduler:
            await asyncio.sleep(10)
            scenario = LOOPS[loop]
            assert scenario is not None
            await scenario(world, scheduler, error)
            await world.admin.list(api.NODES)
        # leaving the context waits for the replica, and raises what would have ended it

    virtual.run(main())


def test_no_loop_of_the_scheduler_is_forgotten_here() -> None:
    async def main() -> None:
        async with World().scheduler(elect="s1") as scheduler:
            assert {loop.__qualname__ for loop in scheduler.loops} == set(LOOPS)  # type: ignore[attr-defined]

    virtual.run(main())

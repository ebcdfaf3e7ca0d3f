import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_protocol.kubernetes import Pod
from hami_runtime import virtual
from hami_runtime.kube.cluster import PODS, Body
from hami_runtime.kube.informer import Informer
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_resources import PODS as POD_RESOURCE
from hami_runtime.telemetry import Telemetry
from hami_runtime.virtual import EPOCH, VirtualClock

NS = "default"


class World:
    """A store, one client of it, and an informer that writes down what it tells."""

    def __init__(self, *, telemetry: Telemetry | None = None) -> None:
        self.store = ObjectStore(now=lambda: EPOCH, rng=random.Random(1), history=20)
        self.cluster = MemoryCluster(self.store)
        options: dict[str, Any] = {"telemetry": telemetry} if telemetry else {}
        self.informer: Informer[Pod] = Informer(self.cluster, PODS, clock=VirtualClock(), **options)
        self.told: list[tuple[str, str]] = []
        self.informer.subscribe(self.hear)

    def hear(self, old: Pod | None, new: Pod | None) -> None:
        what = "add" if old is None else "delete" if new is None else "update"
        pod = new if new is not None else old
        assert pod is not None
        self.told.append((what, pod.metadata.name))

    def create(self, name: str) -> None:
        self.store.create(POD_RESOURCE, a_pod(name), NS)

    def label(self, name: str, value: str) -> None:
        self.store.merge_patch(POD_RESOURCE, name, {"metadata": {"labels": {"l": value}}}, NS)

    def delete(self, name: str) -> None:
        self.store.delete(POD_RESOURCE, name, NS)

    def names(self) -> dict[str, str]:
        return {name: pod.metadata.uid for (_, name), pod in self.informer.objects.items()}

    def truth(self) -> dict[str, str]:
        return {each.body["metadata"]["name"]: each.body["metadata"]["uid"] for each in self.store.select(POD_RESOURCE)}


def a_pod(name: str) -> Body:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def follow(world: World, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(world.informer.run(stop))
            await story(world)
            stop.set()

    virtual.run(main())


def test_everything_is_told_once_before_it_is_synced() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        assert world.told == [("add", "p1"), ("add", "p2")]

    world = World()
    world.create("p1")
    world.create("p2")
    follow(world, story)


def test_an_object_has_its_life_told_in_order() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        world.create("p")
        world.label("p", "1")
        world.delete("p")
        await asyncio.sleep(1)
        assert world.told == [("add", "p"), ("update", "p"), ("update", "p"), ("delete", "p")]  # it is marked before it goes
        assert world.informer.objects == {}

    follow(World(), story)


def test_who_subscribes_late_is_told_what_is_there() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        late: list[str] = []
        world.informer.subscribe(lambda _old, new: late.append(new.metadata.name if new else ""))
        assert late == ["p"]

    world = World()
    world.create("p")
    follow(world, story)


def test_what_went_unseen_is_told_with_its_last_version() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        world.cluster.down()
        await asyncio.sleep(1)
        assert not world.informer.connected
        world.delete("p1")
        world.label("p2", "1")
        world.create("p3")
        world.store.compact()
        world.told.clear()
        world.cluster.up()
        await asyncio.sleep(60)
        assert world.told == [("delete", "p1"), ("update", "p2"), ("add", "p3")]
        assert world.informer.connected

    world = World()
    world.create("p1")
    world.create("p2")
    follow(world, story)


@pytest.mark.parametrize("expired", [True, False])
def test_a_namesake_goes_and_appears(expired: bool) -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        world.cluster.down()
        await asyncio.sleep(1)
        world.delete("p")
        world.create("p")
        if expired:
            world.store.compact()
        world.told.clear()
        world.cluster.up()
        await asyncio.sleep(60)
        assert world.told[-2:] == [("delete", "p"), ("add", "p")]

    world = World()
    world.create("p")
    follow(world, story)


def test_while_the_server_is_away_the_copy_stays_and_the_server_is_asked_now_and_then() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        world.cluster.down()
        await asyncio.sleep(3600)
        assert set(world.names()) == {"p"}
        world.cluster.up()
        world.create("q")
        await asyncio.sleep(11)
        assert set(world.names()) == {"p", "q"}
        assert world.cluster.calls["list", "pods"] == 1

    world = World()
    world.create("p")
    follow(world, story)


def test_a_server_that_ends_every_watch_at_once_is_not_stormed() -> None:
    async def story(world: World) -> None:
        await world.informer.synced.wait()
        for _ in range(600):
            await asyncio.sleep(0.1)
            world.cluster.close_watches()
        assert world.cluster.calls["watch", "pods"] < 60

    follow(World(), story)


def test_a_handler_that_stumbles_keeps_nothing_from_the_others() -> None:
    async def story(world: World) -> None:
        def stumble(_old: Pod | None, new: Pod | None) -> None:
            if new is not None and new.metadata.name == "bad":
                raise KeyError("bad")

        world.informer.subscribe(stumble)
        await world.informer.synced.wait()
        world.create("bad")
        world.create("good")
        await asyncio.sleep(0.5)
        assert set(world.names()) == {"bad", "good"}
        assert 'hami_item_failures_total{loop="informer of pods"} 1.0' in telemetry.prometheus_text().decode()

    telemetry = Telemetry("test")
    follow(World(telemetry=telemetry), story)


def test_a_handler_that_fails_is_called_again_and_misses_no_objects_life() -> None:
    """It fails the first three times over each object: it sees a life with fewer versions, in which every object comes before it goes."""
    seen: list[tuple[str | None, str | None]] = []
    failures: dict[str, int] = {}

    def version(pod: Pod | None) -> str | None:
        return None if pod is None else pod.metadata.labels.get("l", "0")

    def stumble(old: Pod | None, new: Pod | None) -> None:
        name = (new or old).metadata.name  # type: ignore[union-attr]
        failures[name] = failures.get(name, 0) + 1
        if failures[name] <= 3:
            raise RecursionError(name)
        seen.append((version(old), version(new)))

    async def story(world: World) -> None:
        world.informer.subscribe(stumble)
        await world.informer.synced.wait()
        world.create("changes")
        await asyncio.sleep(0.1)
        world.label("changes", "1")
        world.label("changes", "2")
        await asyncio.sleep(60)
        assert seen == [(None, "2")]
        world.label("changes", "3")
        await asyncio.sleep(1)
        assert seen[1:] == [("2", "3")]
        failures.clear()
        world.delete("changes")
        await asyncio.sleep(0.1)
        world.create("changes")
        await asyncio.sleep(60)
        assert seen[2:] == [("3", None), (None, "0")]

    follow(World(), story)


ACTIONS: dict[str, Callable[[World, str], None]] = {
    "create": lambda world, name: None if name in world.truth() else world.create(name),
    "label": lambda world, name: world.label(name, str(world.store.revision)) if name in world.truth() else None,
    "delete": lambda world, name: world.delete(name) if name in world.truth() else None,
    "down": lambda world, _name: world.cluster.down(),
    "up": lambda world, _name: world.cluster.up(),
    "close": lambda world, _name: world.cluster.close_watches(),
    "compact": lambda world, _name: world.store.compact(),
}
steps = st.lists(st.tuples(st.sampled_from([*ACTIONS, "wait"]), st.integers(0, 3)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_happens_the_copy_becomes_the_truth_and_was_told_completely(script: list[tuple[str, int]]) -> None:
    alive: dict[str, str] = {}
    wrong: list[tuple[Pod | None, Pod | None]] = []  # what a handler raises would only be logged

    def keep_books(old: Pod | None, new: Pod | None) -> None:
        if old is not None and alive.pop(old.metadata.name, "") != old.metadata.uid:
            wrong.append((old, new))
        if new is not None:
            if new.metadata.name in alive or (old is not None and old.metadata.uid != new.metadata.uid):
                wrong.append((old, new))
            alive[new.metadata.name] = new.metadata.uid

    async def story(world: World) -> None:
        world.informer.subscribe(keep_books)
        for what, which in script:
            if what == "wait":
                await asyncio.sleep(which)
            else:
                ACTIONS[what](world, f"p{which}")
        world.cluster.up()
        await asyncio.sleep(120)
        assert world.names() == world.truth() == alive
        assert wrong == []

    follow(World(), story)

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_runtime import virtual
from hami_runtime.kube.cluster import LEASES, Body, Kind, Unavailable
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import EPOCH, VirtualClock

NS = "default"


class Replica:
    """An elector with a connection and a clock of its own."""

    def __init__(self, store: ObjectStore, name: str, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster(store)
        self.clock = VirtualClock()
        self.elector = LeaderElector(self.cluster, self.clock, name="scheduler", namespace=NS, identity=name)
        self.told: list[bool] = []
        self.elector.on_change(self.told.append)
        self.stop = asyncio.Event()


def a_store() -> ObjectStore:
    return ObjectStore(now=lambda: EPOCH, rng=random.Random(1))


def run(main: Coroutine[Any, Any, None]) -> None:
    virtual.run(main)


def test_the_first_leads_and_the_second_waits() -> None:
    async def main() -> None:
        store = a_store()
        first, second = Replica(store, "first"), Replica(store, "second")
        async with asyncio.TaskGroup() as group:
            group.create_task(first.elector.run(first.stop))
            await first.elector.wait_leading()
            group.create_task(second.elector.run(second.stop))
            await asyncio.sleep(600)
            assert (first.elector.is_leader, second.elector.is_leader) == (True, False)
            assert second.elector.leader_identity == "first"
            assert (first.told, second.told) == ([True], [])
            first.stop.set()
            second.stop.set()

    run(main())


@given(st.floats(2.0, 12.0), st.floats(0.0, 1.0))
def test_when_who_leads_is_killed_at_any_moment_the_other_leads_in_less_than_five_seconds(moment: float, later: float) -> None:
    async def main() -> None:
        store = a_store()
        first, second = Replica(store, "first"), Replica(store, "second")
        running = asyncio.ensure_future(first.elector.run(first.stop))
        await first.elector.wait_leading()
        await asyncio.sleep(later)
        following = asyncio.ensure_future(second.elector.run(second.stop))
        await asyncio.sleep(moment)
        first.cluster.down()  # the dead say nothing more
        running.cancel()
        async with asyncio.timeout(5.0):
            await second.elector.wait_leading()
        second.stop.set()
        await following

    run(main())


def test_who_stops_hands_over_at_once() -> None:
    async def main() -> None:
        store = a_store()
        first, second = Replica(store, "first"), Replica(store, "second")
        async with asyncio.TaskGroup() as group:
            group.create_task(first.elector.run(first.stop))
            await first.elector.wait_leading()
            group.create_task(second.elector.run(second.stop))
            await asyncio.sleep(2)
            first.stop.set()
            async with asyncio.timeout(1.5):
                await second.elector.wait_leading()
            assert first.told == [True, False]
            second.stop.set()

    run(main())


def test_who_is_cut_off_stops_before_another_starts() -> None:
    async def main() -> None:
        store = a_store()
        first, second = Replica(store, "first"), Replica(store, "second")
        async with asyncio.TaskGroup() as group:
            group.create_task(first.elector.run(first.stop))
            await first.elector.wait_leading()
            group.create_task(second.elector.run(second.stop))
            await asyncio.sleep(10)
            first.cluster.down()
            lost_at = await noted(first, False)
            won_at = await noted(second, True)
            assert lost_at < won_at < lost_at + 4
            first.cluster.up()
            await asyncio.sleep(10)
            assert (first.elector.is_leader, first.elector.leader_identity) == (False, "second")
            first.stop.set()
            second.stop.set()

    run(main())


async def noted(replica: Replica, leads: bool) -> float:
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[float] = loop.create_future()
    replica.elector.on_change(lambda now: heard.set_result(loop.time()) if now is leads and not heard.done() else None)
    return await heard


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    async def main() -> None:
        store = a_store()
        first, second = Replica(store, "first"), Replica(store, "second")
        async with asyncio.TaskGroup() as group:
            group.create_task(first.elector.run(first.stop))
            await first.elector.wait_leading()
            second.clock.skew = EPOCH.replace(year=2030) - EPOCH
            group.create_task(second.elector.run(second.stop))
            await asyncio.sleep(60)
            first.clock.skew = -second.clock.skew
            await asyncio.sleep(60)
            assert (first.told, second.told) == ([True], [])
            first.stop.set()
            second.stop.set()

    run(main())


def test_a_write_whose_answer_was_lost_is_looked_up() -> None:
    class Forgetful(MemoryCluster):
        async def create(self, kind: Kind[Any], body: Body, *, namespace: str | None = None) -> Any:
            await super().create(kind, body, namespace=namespace)
            raise Unavailable("the answer was lost", maybe_applied=True)

    async def main() -> None:
        store = a_store()
        only = Replica(store, "only", Forgetful(store))
        async with asyncio.TaskGroup() as group:
            group.create_task(only.elector.run(only.stop))
            async with asyncio.timeout(3):
                await only.elector.wait_leading()
            only.stop.set()

    run(main())


def test_a_call_that_hangs_does_not_make_a_leader_believe_in_itself() -> None:
    class Hanging(MemoryCluster):
        hangs = False

        async def get(self, kind: Kind[Any], name: str, *, namespace: str | None = None) -> Any:
            if self.hangs:
                await asyncio.sleep(1_000)
            return await super().get(kind, name, namespace=namespace)

    async def main() -> None:
        store = a_store()
        cluster = Hanging(store)
        only = Replica(store, "only", cluster)
        async with asyncio.TaskGroup() as group:
            group.create_task(only.elector.run(only.stop))
            await only.elector.wait_leading()
            cluster.hangs = True
            await asyncio.sleep(5)
            assert only.told == [True, False]
            cluster.hangs = False
            await only.elector.wait_leading()
            only.stop.set()

    run(main())


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"renew_seconds": 4}, "retry_seconds, renew_seconds, lease_seconds: 1, 4, 4 are not accepted"),
        ({"retry_seconds": 3}, "accepted: each greater than the one before"),
        ({"identity": ""}, "identity: '' is not accepted"),
    ],
)
def test_times_that_do_not_fit_are_refused(times: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"name": "l", "namespace": NS, "identity": "a", **times}
    with pytest.raises(ValueError, match=said):
        LeaderElector(MemoryCluster(a_store()), VirtualClock(), **arguments)


cuts = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans(), st.floats(0.1, 6)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(cuts)
def test_there_are_never_two_leaders_and_in_the_end_there_is_one(script: list[tuple[str, bool, float]]) -> None:
    async def main() -> None:
        store = a_store()
        replicas = {name: Replica(store, name) for name in "abc"}
        stop_watching = asyncio.Event()

        async def watch() -> None:
            while not stop_watching.is_set():
                assert sum(replica.elector.is_leader for replica in replicas.values()) <= 1
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            for replica in replicas.values():
                group.create_task(replica.elector.run(replica.stop))
            for name, up, seconds in script:
                replicas[name].cluster.up() if up else replicas[name].cluster.down()
                await asyncio.sleep(seconds)
            for replica in replicas.values():
                replica.cluster.up()
            await asyncio.sleep(12)
            assert sum(replica.elector.is_leader for replica in replicas.values()) == 1
            for replica in replicas.values():
                replica.stop.set()
            stop_watching.set()

    run(main())


def test_the_lease_says_who_since_when_and_how_often() -> None:
    async def main() -> None:
        store = a_store()
        first = Replica(store, "first")
        async with asyncio.TaskGroup() as group:
            group.create_task(first.elector.run(first.stop))
            await first.elector.wait_leading()
            await asyncio.sleep(2.5)
            lease = await first.cluster.get(LEASES, "scheduler", namespace=NS)
            assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds, lease.spec.lease_transitions) == ("first", 4, 0)
            assert (lease.spec.acquire_time, lease.spec.renew_time) == ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:02.000000Z")
            first.stop.set()

    run(main())

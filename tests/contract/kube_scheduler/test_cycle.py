"""The stand-in behaves towards an extender as a real kube-scheduler 1.37 was measured to, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from hami_protocol.kubernetes import Pod
from hami_rig.scheduler import configuration
from hami_rig.scheduler.extender import CallTransport, Extender, ExtenderError
from hami_rig.scheduler.stand_in import KubeScheduler
from hami_runtime import virtual
from hami_runtime.kube.cluster import EVENTS, NODES, PODS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock

GPU = "nvidia.com/gpu"


class World:
    """A cluster, an extender whose answers a test decides, and the stand-in between them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.cluster = MemoryCluster(ObjectStore(now=self.clock.utc, rng=random.Random(1)))
        self.calls: list[tuple[str, float, dict[str, Any]]] = []
        self.filter: Callable[[dict[str, Any]], Any] = lambda body: {"NodeNames": body["NodeNames"]}
        self.prioritize: Callable[[dict[str, Any]], Any] = lambda body: []
        self.preempt: Callable[[dict[str, Any]], Any] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
        self.bind: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] = self._bind
        verbs = {verb: self._verb(verb) for verb in ("filter", "prioritize", "preempt", "bind")}
        text = msgspec.json.encode(configuration.generate([GPU], extender_url="http://extender")).decode()
        config = configuration.load(text)
        extender = Extender(config.extenders[0], CallTransport(verbs))
        self.scheduler = KubeScheduler(self.cluster, self.clock, config, extender, rng=random.Random(2))

    def _verb(self, name: str) -> Callable[[bytes], Awaitable[bytes]]:
        async def call(body: bytes) -> bytes:
            decoded = msgspec.json.decode(body)
            self.calls.append((name, self.clock.monotonic(), decoded))
            await asyncio.sleep(0.001)
            answer = await self.bind(decoded) if name == "bind" else getattr(self, name)(decoded)
            return msgspec.json.encode(answer)

        return call

    async def _bind(self, body: dict[str, Any]) -> dict[str, Any]:
        pod = await self.cluster.get(PODS, body["PodName"], namespace=body["PodNamespace"])
        await self.cluster.bind(_ref(pod), body["Node"], annotations={}, labels={})
        return {"Error": ""}

    def times(self, verb: str) -> list[float]:
        """When the extender was called, to a tenth of a second."""
        return [round(time, 1) for name, time, _ in self.calls if name == verb]

    async def add_node(self, name: str, **allocatable: str) -> None:
        resources = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
        await self.cluster.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": resources, "capacity": resources}})

    async def add_pod(self, name: str, *, gpu: bool = True, priority: int = 0, cpu: str = "", scheduler: str = "hami-scheduler") -> None:
        limits = {**({GPU: "1"} if gpu else {}), **({"cpu": cpu} if cpu else {})}
        containers = [{"name": "c", "image": "x", "resources": {"limits": limits, "requests": limits}}]
        spec = {"schedulerName": scheduler, "priority": priority, "containers": containers}
        metadata = {"name": name, "namespace": "default"}
        await self.cluster.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}, namespace="default")

    async def pod(self, name: str) -> Pod:
        return await self.cluster.get(PODS, name, namespace="default")

    async def condition(self, name: str) -> tuple[str, str, str]:
        for each in (await self.pod(name)).status.conditions or ():
            if each.type == "PodScheduled":
                return each.status, each.reason or "", each.message or ""
        return "", "", ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(self.scheduler.run(stop))
        await asyncio.sleep(0.5)
        yield
        stop.set()
        await task


def _ref(pod: Pod) -> Any:
    from hami_protocol.pods import pod_ref

    return pod_ref(pod)


def refuse(reason: str) -> Callable[[dict[str, Any]], Any]:
    return lambda body: {"NodeNames": None, "FailedNodes": dict.fromkeys(body["NodeNames"], reason)}


def test_a_pod_is_filtered_then_bound_by_the_extender_and_an_event_says_so() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("a")
            await asyncio.sleep(3.0)
        assert [name for name, _, _ in world.calls] == ["filter", "bind"]
        assert (await world.pod("a")).spec.node_name == "m1"
        events = [(event["reason"], event["message"]) for event in (await world.cluster.list(EVENTS)).items]
        assert events == [("Scheduled", "Successfully assigned default/a to m1")]

    virtual.run(story())


def test_a_pod_without_a_managed_resource_never_reaches_the_extender() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("a", gpu=False)
            await asyncio.sleep(1.0)
        assert world.calls == []
        assert (await world.pod("a")).spec.node_name == "m1"

    virtual.run(story())


def test_a_stable_reason_is_asked_about_twice_and_a_changing_one_for_ever() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        world.filter = refuse("no GPU")
        async with world.running():
            await world.add_pod("a")
            await asyncio.sleep(60.0)
            assert len(world.times("filter")) == 2
            assert await world.condition("a") == (
                "False",
                "Unschedulable",
                "0/1 nodes are available: 1 no GPU. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            )
            await asyncio.sleep(300.0)
            assert len(world.times("filter")) == 3
            counter = iter(range(10_000))
            world.filter = lambda body: {"FailedNodes": {"m1": f"{next(counter)} MiB short"}}
            await world.cluster.patch(NODES, "m1", {"metadata": {"labels": {"x": "y"}}})
            await asyncio.sleep(0.1)
            assert len(world.times("filter")) > 50

    virtual.run(story())


def test_changes_that_may_help_wake_a_refused_pod_and_others_do_not() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        await world.add_node("m2")
        async with world.running():
            await world.add_pod("holder")
            await asyncio.sleep(2.0)
            world.filter = refuse("no GPU")
            await world.add_pod("a")
            await asyncio.sleep(60.0)

            async def woken_by(change: Awaitable[Any]) -> bool:
                before = len(world.times("filter"))
                await change
                await asyncio.sleep(0.05)
                return len(world.times("filter")) > before

            holder = {"namespace": "default"}
            cluster = world.cluster
            assert await woken_by(cluster.patch(PODS, "holder", {"metadata": {"annotations": {"x": "1"}}}, **holder))
            assert await woken_by(cluster.patch(NODES, "m2", {"metadata": {"annotations": {"x": "1"}}}))
            assert await woken_by(cluster.patch(NODES, "m2", {"status": {"allocatable": {GPU: "10"}}}, subresource="status"))
            assert await woken_by(cluster.patch_conditions(_ref(await world.pod("a")), [{"type": "hami.io/wake", "status": "True"}]))
            assert not await woken_by(cluster.patch(NODES, "m2", {"status": {"capacity": {GPU: "11"}}}, subresource="status"))
            assert not await woken_by(cluster.patch(NODES, "m2", {"metadata": {"annotations": {"x": "1"}}}))
            assert not await woken_by(world.add_pod("b", scheduler="another"))
            assert await woken_by(cluster.patch(PODS, "holder", {"status": {"phase": "Succeeded"}}, subresource="status", **holder))

    virtual.run(story())


def test_an_error_is_tried_again_with_back_off_whatever_happens() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        world.filter = lambda body: {"Error": "not leader"}
        async with world.running():
            await world.add_pod("a")
            await asyncio.sleep(9.0)
        assert [round(time - world.times("filter")[0]) for time in world.times("filter")] == [0, 1, 3, 5, 7]
        assert await world.condition("a") == ("False", "SchedulerError", "not leader")

    virtual.run(story())


def test_binds_overlap_each_other_and_later_filters() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        running: list[int] = [0, 0]

        async def slow_bind(body: dict[str, Any]) -> dict[str, Any]:
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(5.0)
            running[0] -= 1
            return await world._bind(body)

        world.bind = slow_bind
        async with world.running():
            for name in ("a", "b", "c"):
                await world.add_pod(name)
            await asyncio.sleep(6.0)
        assert running[1] == 3
        assert len(set(world.times("filter"))) == 1, "while binds take 5 s, filters go on"

    virtual.run(story())


def test_a_failed_bind_gives_the_room_back_and_is_tried_again() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1", pods="1")
        answers = iter(["node lock not free"])

        async def bind(body: dict[str, Any]) -> dict[str, Any]:
            for error in answers:
                return {"Error": error}
            return await world._bind(body)

        world.bind = bind
        async with world.running():
            await world.add_pod("a")
            await asyncio.sleep(0.5)
            assert await world.condition("a") == ("False", "SchedulerError", "node lock not free")
            await asyncio.sleep(1.0)
            assert (await world.pod("a")).spec.node_name == "m1"

    virtual.run(story())


def test_names_are_sent_in_an_order_that_differs() -> None:
    async def story() -> None:
        world = World()
        for number in range(6):
            await world.add_node(f"m{number}")
        async with world.running():
            for number in range(4):
                await world.add_pod(f"p{number}")
            await asyncio.sleep(1.0)
        sent = [tuple(body["NodeNames"]) for name, _, body in world.calls if name == "filter"]
        assert len(set(sent)) == 4
        assert len({frozenset(names) for names in sent}) == 1

    virtual.run(story())


def test_the_extenders_points_weigh_ten_times_their_number() -> None:
    async def story() -> None:
        world = World()
        for name in ("m1", "m2", "m3"):
            await world.add_node(name)
        world.prioritize = lambda body: [{"Host": "m2", "Score": 10}, {"Host": "m1", "Score": 7}, {"Host": "nobody", "Score": 100}]
        async with world.running():
            await world.add_pod("a", cpu="2")
            await asyncio.sleep(1.0)
        assert (await world.pod("a")).spec.node_name == "m2"

    virtual.run(story())


def test_a_refusal_by_the_extender_alone_never_evicts() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("victim")
            await asyncio.sleep(1.0)
            world.filter = refuse("2/2 CardInsufficientMemory")
            await world.add_pod("high", priority=1000)
            await asyncio.sleep(3.0)
            assert await world.condition("high") == (
                "False",
                "Unschedulable",
                '0/1 nodes are available: 1 2/2 CardInsufficientMemory. preemption: expected at least one victim pod on node "m1"',
            )
            world.filter = lambda body: {"FailedAndUnresolvableNodes": dict.fromkeys(body["NodeNames"], "CardTypeMismatch")}
            await world.cluster.patch(NODES, "m1", {"metadata": {"labels": {"x": "y"}}})
            await asyncio.sleep(3.0)
            assert (await world.condition("high"))[2].endswith(
                "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
            )
        assert world.times("preempt") == []
        assert not (await world.pod("victim")).metadata.deletion_timestamp

    virtual.run(story())


def test_a_pod_short_of_cpu_too_asks_the_extender_and_evicts_whom_it_agrees_to() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        async with world.running():
            await world.add_pod("victim", cpu="3")
            await asyncio.sleep(1.0)
            await world.add_pod("high", priority=1000, cpu="3")
            await asyncio.sleep(1.0)
            assert len(world.times("preempt")) == 1
            assert (await world.pod("victim")).metadata.deletion_timestamp
            assert (await world.pod("high")).status.nominated_node_name == "m1"
            filters = len(world.times("filter"))
            await world.cluster.delete(PODS, "victim", namespace="default", grace_seconds=0)
            await asyncio.sleep(1.0)
            assert (await world.pod("high")).spec.node_name == "m1"
            assert [body["NodeNames"] for name, _, body in world.calls if name == "filter"][filters:] == [["m1"]]

    virtual.run(story())


def test_an_extender_that_agrees_to_nobody_keeps_everybody_alive() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")
        world.preempt = lambda body: {}
        async with world.running():
            await world.add_pod("victim", cpu="3")
            await asyncio.sleep(1.0)
            await world.add_pod("high", priority=1000, cpu="3")
            await asyncio.sleep(1.0)
        assert not (await world.pod("victim")).metadata.deletion_timestamp
        assert (await world.condition("high"))[2].endswith("preemption: no candidate node for preemption")

    virtual.run(story())


def test_an_extender_that_is_down_keeps_pods_waiting_and_places_none() -> None:
    async def story() -> None:
        world = World()
        await world.add_node("m1")

        def down(body: dict[str, Any]) -> Any:
            raise ExtenderError('Post "http://extender/filter": connection refused')

        world.filter = down
        async with world.running():
            await world.add_pod("a")
            await asyncio.sleep(2.0)
            assert (await world.pod("a")).spec.node_name == ""
            world.filter = lambda body: {"NodeNames": body["NodeNames"]}
            await asyncio.sleep(3.0)
            assert (await world.pod("a")).spec.node_name == "m1"

    virtual.run(story())

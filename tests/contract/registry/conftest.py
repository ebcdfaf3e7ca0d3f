"""A registry over the bus and the cluster in memory, in virtual time; agents and schedulers are the tests themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import envelope, events, subjects
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, RegisteredDevice, VendorAssignment
from hami_registry.service import Registry
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_resources import NODES, PODS
from hami_runtime.telemetry import OFF, Telemetry
from hami_runtime.virtual import EPOCH, VirtualClock


class World:
    """A cluster and a bus, without anybody in it yet."""

    def __init__(self) -> None:
        self.store = ObjectStore(now=lambda: EPOCH + timedelta(seconds=asyncio.get_running_loop().time()), rng=random.Random(1))
        self.bus = MemoryBus()
        self.clock = VirtualClock()
        self.published = 0
        self.clusters: list[MemoryCluster] = []

    @asynccontextmanager
    async def registry(self, identity: str = "r1", telemetry: Telemetry = OFF, **options: Any) -> AsyncIterator[Registry]:
        cluster = MemoryCluster(self.store)
        self.clusters.append(cluster)
        registry = Registry(
            self.bus, cluster, self.clock, Catalog(), identity=identity, namespace="kube-system", telemetry=telemetry, **options
        )
        stop = asyncio.Event()
        running = asyncio.create_task(registry.run(stop))
        await asyncio.sleep(0)
        try:
            yield registry
        finally:
            stop.set()
            await running

    def add_node(self, name: str = "n1", **annotations: str) -> None:
        self.store.create(NODES, {"metadata": {"name": name, "annotations": annotations}})

    def annotate_node(self, name: str, **annotations: str | None) -> None:
        self.store.merge_patch(NODES, name, {"metadata": {"annotations": annotations}})

    def annotations(self, name: str = "n1") -> dict[str, str]:
        return self.store.get(NODES, name).body["metadata"].get("annotations") or {}  # type: ignore[no-any-return]

    def add_pod(self, name: str = "p1", node: str = "n1", **annotations: str) -> PodRef:
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "pause"}]},
        }
        stored = self.store.create(PODS, body, "default")
        return PodRef(namespace="default", name=name, uid=stored.body["metadata"]["uid"])

    def pod_annotations(self, name: str = "p1") -> dict[str, str]:
        return self.store.get(PODS, name, "default").body["metadata"].get("annotations") or {}  # type: ignore[no-any-return]

    async def say(self, event: events.Event, **options: Any) -> None:
        self.published += 1
        message = envelope.seal(event, event_id=f"test/{self.published}", source="/test", time="2026-01-01T00:00:00Z", **options)
        await self.bus.publish(message)

    async def heartbeats(self, *nodes: str, every_seconds: float = 30.0) -> None:
        while True:
            for node in nodes:
                if self.bus.connected:
                    await self.say(a_report(node))
            await asyncio.sleep(every_seconds)

    def liveness(self, node: str = "n1") -> bool | None:
        kept = [message for message in self.bus.kept(subjects.DEVICES) if message.subject == subjects.liveness(node, "nvidia")]
        event = envelope.open_message(kept[-1]) if kept else None
        return event.alive if isinstance(event, events.LivenessChanged) else None

    def calls(self, verb: str, kind: str) -> int:
        return sum(cluster.calls[verb, kind] for cluster in self.clusters)


def a_report(node: str = "n1", **fields: Any) -> events.DevicesReported:
    device = RegisteredDevice(uuid=f"GPU-{node}", shares=10, memory_mib=24576, cores=100, type="NVIDIA-A10")
    return events.DevicesReported(**{"node": node, "device_type": "nvidia", "generation": 1, "devices": (device,), **fields})


def an_assignment(*memory_mib: int) -> VendorAssignment:
    containers = tuple(
        ContainerShares(
            container=f"c{place}",
            kind=ContainerKind.APP,
            shares=(DeviceShare(uuid="GPU-n1", type="NVIDIA", memory_mib=amount, cores=0),) if amount else (),
        )
        for place, amount in enumerate(memory_mib)
    )
    return VendorAssignment(vendor="NVIDIA", containers=containers)


def a_grant(pod: PodRef, *memory_mib: int, node: str = "n1") -> events.PodAllocating:
    return events.PodAllocating(pod=pod, node=node, assignments=(an_assignment(*memory_mib),), bind_time_seconds=1716199325)


Scenario = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play() -> Scenario:
    """Runs a scenario in virtual time, in a world of its own."""

    def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            world = World()
            await world.bus.ensure_streams(subjects.STREAMS)
            await scenario(world)

        virtual.run(main())

    return run


@asynccontextmanager
async def beating(world: World, *nodes: str) -> AsyncIterator[asyncio.Task[None]]:
    """Agents that report every 30 s while the context is open."""
    task = asyncio.create_task(world.heartbeats(*nodes))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

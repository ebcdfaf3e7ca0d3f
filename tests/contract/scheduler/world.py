"""A scheduler over the ports in memory, in virtual time, with what kube-scheduler, the registry and an agent would do as methods."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hami_devices.catalog import Catalog
from hami_protocol import envelope, keys, registration, subjects
from hami_protocol.devices import PodRef, RegisteredDevice
from hami_protocol.events import Event
from hami_protocol.kubernetes import Pod
from hami_runtime import virtual
from hami_runtime.bus import Bus
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.clock import Clock
from hami_runtime.kube import cluster as api
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock
from hami_scheduler.service import Options, Scheduler
from hami_scheduler.wire import ExtenderArgs, FilterAnswer
from tests.builders import a_device

GPU = "nvidia.com/gpu"


class World:
    """One cluster, one bus, and any number of schedulers on them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.store = ObjectStore(now=self.clock.utc, rng=random.Random(1))
        self.admin = MemoryCluster(self.store)
        self.bus = MemoryBus()

    @asynccontextmanager
    async def scheduler(
        self, *, cluster: api.Cluster | None = None, bus: Bus | None = None, options: Options | None = None, elect: str = ""
    ) -> AsyncIterator[Scheduler]:
        """A running replica; on leaving the context it is stopped, as after a kill nothing of it remains."""
        ours = cluster or MemoryCluster(self.store)
        elector = LeaderElector(ours, self.clock, name="lease", namespace="kube-system", identity=elect) if elect else None
        scheduler = Scheduler(
            cluster=ours,
            bus=bus or self.bus,
            clock=self.clock,
            catalog=Catalog(),
            identity=elect or "s1",
            options=options or Options(),
            elector=elector,
        )
        stop = asyncio.Event()
        running = asyncio.create_task(scheduler.run(stop))
        try:
            while scheduler.unready():
                await settle()
            await settle()
            yield scheduler
            if not elect:
                scheduler.picture.state.validate()
        finally:
            stop.set()
            await running

    async def node(
        self, name: str, *devices: RegisteredDevice, mode: str = "cdi", annotations: Mapping[str, str | None] | None = None
    ) -> None:
        """Make or change a node with these cards."""
        cards = devices or (a_device(f"GPU-{name}"),)
        given = {
            keys.register("nvidia"): registration.encode_text(cards),
            keys.ALLOCATION_MODE: mode,
            **(annotations or {}),
        }
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": given}}
        if name in {node.metadata.name for node in (await self.admin.list(api.NODES)).items}:
            await self.admin.patch(api.NODES, name, {"metadata": {"annotations": given}})
        else:
            body["metadata"]["annotations"] = {key: value for key, value in given.items() if value is not None}
            shares = str(sum(card.shares for card in cards))
            body["status"] = {"capacity": {GPU: shares}, "allocatable": {GPU: shares}}
            await self.admin.create(api.NODES, body)
        await settle()

    async def pod(
        self, name: str, *, annotations: Mapping[str, str] | None = None, spec: dict[str, Any] | None = None, **amounts: Any
    ) -> Pod:
        """Create a pod with one container of these limits, by short names, and show it to everybody."""
        resources = {f"nvidia.com/{key}": str(value) for key, value in amounts.items()}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {
                "containers": [{"name": "main", "image": "pause", "resources": {"limits": resources, "requests": resources}}],
                **(spec or {}),
            },
        }
        pod = await self.admin.create(api.PODS, body, namespace="default")
        await settle()
        return pod

    async def get(self, pod: Pod) -> Pod:
        return await self.admin.get(api.PODS, pod.metadata.name, namespace="default")

    async def finish(self, pod: Pod, phase: str = "Succeeded") -> None:
        """The pod has ended, as kubelet says."""
        await self.admin.patch(api.PODS, pod.metadata.name, {"status": {"phase": phase}}, namespace="default", subresource="status")
        await settle()

    async def delete(self, pod: Pod) -> None:
        await self.admin.delete(api.PODS, pod.metadata.name, namespace="default", grace_seconds=0)
        await settle()

    async def say(self, event: Event, event_id: str, *, by_agent: bool = False) -> None:
        """Publish as the registry or an agent would."""
        source = subjects.agent_source("test") if by_agent else "/test"
        await self.bus.ensure_streams(subjects.STREAMS)
        await self.bus.publish(envelope.seal(event, event_id=event_id, source=source, time="2026-01-01T00:00:00Z"))
        await settle()

    def log(self, stream: subjects.StreamSpec = subjects.ALLOCATIONS) -> list[Event]:
        """What the bus keeps."""
        return [envelope.open_message(message) for message in self.bus.kept(stream)]

    def said(self) -> list[tuple[str, str]]:
        """Kind and pod of every event in the log of grants."""
        return [(type(event).__name__, event.pod.name) for event in self.log()]  # type: ignore[union-attr]

    async def events(self) -> list[tuple[str, str, str]]:
        """Object, reason and message of every Kubernetes Event."""
        found = (await self.admin.list(api.EVENTS)).items
        return [(event["involvedObject"]["name"], event["reason"], event["message"]) for event in found]


async def settle() -> None:
    """Let every watch, outbox and waiter catch up; a millisecond of virtual time passes."""
    await asyncio.sleep(0.001)


def ref(pod: Pod) -> PodRef:
    return PodRef(namespace="default", name=pod.metadata.name, uid=pod.metadata.uid)


def asked(scheduler: Scheduler, pod: Pod, *names: str) -> FilterAnswer:
    """What filter answers about these nodes."""
    return scheduler.filter(ExtenderArgs(pod=pod, node_names=list(names) or ["n1"]))


async def place(scheduler: Scheduler, pod: Pod, *names: str) -> str:
    """Filter and bind, as kube-scheduler does; the node, or a text that begins with why there is none."""
    answer = asked(scheduler, pod, *names)
    if answer.error or not answer.node_names:
        return f"refused: {answer.error or answer.failed or answer.unresolvable}"
    error = await scheduler.bind(ref(pod), answer.node_names[0])
    await settle()
    return f"not bound: {error}" if error else answer.node_names[0]


def used_mib(scheduler: Scheduler, node: str = "n1") -> int:
    scheduler.picture.state.validate()
    return sum(held.used_memory_mib for held in scheduler.picture.state.devices(node))


def story(tell: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is told in virtual time, in a fresh world, its first argument."""

    def test(**arguments: Any) -> None:
        async def main() -> None:
            await tell(World(), **arguments)

        virtual.run(main())

    signature = inspect.signature(tell)
    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return test

"""A cluster to look at, in one process: the real scheduler and the real registry with its page, over the ports in memory and the real clock.

Pods are placed by the scheduler; what agents and kubelets would say is said here. ``python -m tests.web.scene`` serves one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from hami_devices.catalog import Catalog
from hami_protocol import envelope, keys, registration, subjects
from hami_protocol.devices import AllocationMode, ContainerKind, ContainerShares, DeviceShare, PodRef, RegisteredDevice, VendorAssignment
from hami_protocol.events import (
    AllocationSucceeded,
    ContainerUsage,
    DevicesReported,
    DeviceUsage,
    Event,
    NodeUsage,
    PodAllocating,
    PodAssigned,
    PodReleased,
)
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_registry.api import application
from hami_registry.service import Registry
from hami_runtime import logs
from hami_runtime.clock import SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube import cluster as api
from hami_runtime.kube import store_resources
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.readers import Authorize, let_all_in
from hami_scheduler import questions
from hami_scheduler.service import Scheduler
from hami_scheduler.wire import ExtenderArgs
from tests.contract.scheduler.world import World

CARDS = (("NVIDIA-A100-SXM4-80GB", 81920, 8), ("NVIDIA-L40S", 46068, 4), ("NVIDIA-Tesla V100-PCIE-32GB", 32768, 4))
NAMESPACES = ("research", "training", "serving", "notebooks")
NAMES = ("llama-train", "whisper", "sdxl-serve", "notebook", "rerank", "bert-finetune", "asr-batch", "vision-eval")
BEAT_SECONDS = 20.0


class Scene:
    """A running cluster and where its page is."""

    def __init__(self, world: World, scheduler: Scheduler, url: str) -> None:
        self.world = world
        self.scheduler = scheduler
        self.url = url
        self.reports: list[DevicesReported] = []
        self._said = 0

    async def say(self, event: Event, *, time: datetime | None = None, by_agent: bool = False) -> None:
        """Publish as an agent does, or as somebody did at a time of the past."""
        self._said += 1
        at = (time or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        source = subjects.agent_source("scene") if by_agent else "/scene"
        await self.world.bus.publish(envelope.seal(event, event_id=f"scene/{self._said}", source=source, time=at))

    async def add_node(self, name: str, model: str, memory_mib: int, count: int, **annotations: str) -> None:
        """A node with so many cards, whose agent reports."""
        devices = tuple(
            RegisteredDevice(
                uuid=f"GPU-{name}-{index:02}", index=index, shares=10, memory_mib=memory_mib, cores=100, type=model, numa=index * 2 // count
            )
            for index in range(count)
        )
        given = {keys.register("nvidia"): registration.encode_text(devices), keys.ALLOCATION_MODE: "cdi", **annotations}
        counted = {"nvidia.com/gpu": str(10 * count)}
        body = {"metadata": {"name": name, "annotations": given}, "status": {"capacity": counted, "allocatable": counted}}
        await self.world.admin.create(api.NODES, body)
        report = DevicesReported(node=name, device_type="nvidia", generation=1, devices=devices, allocation_mode=AllocationMode.CDI)
        self.reports.append(report)
        await self.say(report)

    async def run_pod(self, name: str, *nodes: str, namespace: str = "default", **amounts: object) -> tuple[Pod, str]:
        """Create a pod and let the scheduler place it on one of ``nodes`` (none: of all): the pod, and its node, empty for nowhere."""
        limits = {f"nvidia.com/{key}": str(value) for key, value in amounts.items()}
        container = {"name": "main", "image": "pause", "resources": {"limits": limits, "requests": limits}}
        body: dict[str, Any] = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        pod = await self.world.admin.create(api.PODS, body, namespace=namespace)
        async with asyncio.timeout(10):
            while self.scheduler.pods.get(name, namespace) is None:  # noqa: ASYNC110 - an informer gives no event for one pod
                await asyncio.sleep(0.001)
        names = list(nodes or self.scheduler.picture.state.nodes())
        answer = self.scheduler.filter(ExtenderArgs(pod=pod, node_names=names))
        if answer.error or not answer.node_names:
            return pod, ""
        node = answer.node_names[0]
        error = await self.scheduler.bind(pod_ref(pod), node)
        assert not error, error
        await self._granted(pod, node)
        await self.say(AllocationSucceeded(pod=pod_ref(pod), node=node))
        return pod, node

    async def _granted(self, pod: Pod, node: str) -> None:
        """Return once the scheduler has said that the pod is bound: its agent hears that before it says anything itself."""
        subject = subjects.grant(node, pod.metadata.namespace, pod.metadata.name)
        async with asyncio.timeout(10):
            while True:
                message = await self.world.bus.last(subjects.ALLOCATIONS, subject)
                if message is not None and isinstance(envelope.open_message(message), PodAllocating):
                    return
                await asyncio.sleep(0.002)

    async def end_pod(self, pod: Pod, node: str) -> None:
        """The pod is deleted, and its agent says that it holds nothing any more."""
        await self.world.admin.delete(api.PODS, pod.metadata.name, namespace=pod.metadata.namespace, grace_seconds=0)
        await self.say(PodReleased(pod=pod_ref(pod), node=node), by_agent=True)

    async def beat(self) -> None:
        """Agents report, for ever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for report in self.reports:
                await self.say(report)


@asynccontextmanager
async def scene(
    *,
    authorize: Authorize = let_all_in,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    scheduling: bool = True,
) -> AsyncIterator[Scene]:
    """An empty cluster whose services run; without ``scheduling`` the scheduler answers nobody."""
    clock = SystemClock()
    world = World(clock)
    await world.bus.ensure_streams(subjects.STREAMS)
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(world.scheduler())
        registry = Registry(world.bus, MemoryCluster(world.store), clock, Catalog(), identity="scene", namespace="kube-system")
        page = registry.page()
        stop = asyncio.Event()
        bound = await stack.enter_async_context(
            serve_app(application(registry.inventory, world.bus, authorize, page), host, port, ssl=tls, shutdown_seconds=1)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(registry.run(stop))
            group.create_task(page.run(stop))
            if scheduling:
                group.create_task(questions.answer_on_bus(scheduler, world.bus, stop))
            shown = Scene(world, scheduler, f"{'https' if tls else 'http'}://{host}:{bound}/")
            beating = group.create_task(shown.beat())
            try:
                yield shown
            finally:
                beating.cancel()
                stop.set()


async def populate(shown: Scene, nodes: int, *, pods_per_node: float = 7.0, days: bool = True, seed: int = 7) -> None:
    """Nodes of three kinds with pods on them, a few pods that wait, and a day that has gone by."""
    rng = random.Random(seed)
    for namespace in NAMESPACES:
        shown.world.store.create(store_resources.NAMESPACES, {"metadata": {"name": namespace}})
    now = datetime.now(UTC)
    for number in range(nodes):
        model, memory_mib, count = CARDS[number % len(CARDS)]
        annotations = {keys.DEVICE_CORDON: f"GPU-gpu-{number:04}-00"} if number % 29 == 17 else {}
        await shown.add_node(f"gpu-{number:04}", model, memory_mib, count, **annotations)
    names = [report.node for report in shown.reports]
    async with asyncio.timeout(60):
        while len(shown.scheduler.picture.state.nodes()) < nodes:  # noqa: ASYNC110 - an informer gives no event for one node
            await asyncio.sleep(0.01)
    if days:
        for hour in range(24, 0, -1):
            for _ in range(max(1, min(nodes, 60) // 6)):
                begin = now - timedelta(hours=hour, seconds=rng.randrange(-1700, 1700))
                await _past_pod(shown, rng, begin, begin + timedelta(hours=rng.uniform(0.5, 5)), now)
    for number in range(round(nodes * pods_per_node)):
        node = rng.choice(names[: max(1, round(nodes * 0.9))])
        amounts: dict[str, object] = {"gpu": rng.choice((1, 1, 1, 2)), "gpumem": rng.choice((4000, 8000, 12000, 16000, 24000, 30000))}
        amounts |= {"gpucores": rng.choice((10, 20, 30, 50))} if rng.random() < 0.8 else {}
        pod, place = await shown.run_pod(f"{rng.choice(NAMES)}-{number:04}", node, namespace=rng.choice(NAMESPACES), **amounts)
        if place:
            await _measure(shown, pod, place, rng)
    await shown.run_pod("too-big", namespace="research", gpu=1, gpumem=163840)
    await shown.run_pod("whole-rack", namespace="training", gpu=16)
    await shown.run_pod("wrong-unit", namespace="notebooks", gpu=1, gpumem=2_000_000)


async def _past_pod(shown: Scene, rng: random.Random, begin: datetime, end: datetime, now: datetime) -> None:
    report = rng.choice(shown.reports[: max(1, round(len(shown.reports) * 0.9))])
    card = rng.choice(report.devices)
    if begin >= now or end >= now:
        return
    name = f"{rng.choice(NAMES)}-{rng.randrange(16**5):05x}"
    pod = PodRef(namespace=rng.choice(NAMESPACES), name=name, uid=f"past-{name}")
    share = DeviceShare(uuid=card.uuid, type="NVIDIA", memory_mib=rng.choice((4000, 8000, 16000)), cores=rng.choice((10, 25, 40)))
    held = (VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),)),)
    await shown.say(PodAssigned(pod=pod, node=report.node, assignments=held), time=begin)
    bound = begin + timedelta(seconds=1)
    granted = PodAllocating(pod=pod, node=report.node, assignments=held, bind_time_seconds=int(bound.timestamp()))
    await shown.say(granted, time=bound)
    await shown.say(AllocationSucceeded(pod=pod, node=report.node), time=begin + timedelta(seconds=2))
    await shown.say(PodReleased(pod=pod, node=report.node), time=end, by_agent=True)


async def _measure(shown: Scene, pod: Pod, node: str, rng: random.Random) -> None:
    """The node's agent measures what its containers use; what was said before stays in it."""
    entry = shown.scheduler.picture.state.entry(pod.metadata.uid)
    assert entry is not None
    devices = tuple(
        DeviceUsage(
            uuid=charge.uuid,
            memory_used_mib=round(charge.memory_mib * rng.uniform(0.2, 0.95)),
            memory_limit_mib=charge.memory_mib,
            sm_percent=round(charge.cores * rng.uniform(0.1, 1)),
        )
        for charge in entry.held
    )
    mine = ContainerUsage(pod=pod_ref(pod), container="main", devices=devices)
    message = await shown.world.bus.last(subjects.USAGE, subjects.usage(node))
    before = envelope.open_message(message) if message else None
    containers = before.containers if isinstance(before, NodeUsage) else ()
    await shown.say(NodeUsage(node=node, containers=(*containers, mine)))


async def _serve(nodes: int, port: int) -> None:
    async with scene(port=port) as shown:
        await populate(shown, nodes)
        print(shown.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve a scene until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    logs.configure("warning", "scene")
    try:
        asyncio.run(_serve(arguments.nodes, arguments.port))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()

"""A device plugin that keeps what it was asked, and the kubelet that asks it: the rig's, or a real one with containerd (``-m cluster``)."""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import pytest_asyncio

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_node_agent.api import deviceplugin_pb2_grpc as rpc
from hami_protocol.kubernetes import Node as NodeObject
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_rig.kubelet import checkpoint
from hami_rig.kubelet.kubelet import Fleet, Kubelet, NodeFolder
from hami_rig.kubelet.node import NodeDescription
from hami_runtime.clock import SystemClock
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, PODS, Cluster
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from tests.cluster.harness import building, images
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.node import Node

GPU = "nvidia.com/gpu"
NODE = "n1"
STARTS = itertools.count()
IDS = tuple(f"GPU-{card}-{slot}" for card in "ab" for slot in range(4))


class Plugin(rpc.DevicePluginServicer):
    """A device plugin that keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "none"
        """Where it listens: another name at each start."""
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.devices = dict.fromkeys(IDS, "Healthy")
        self.changed = asyncio.Event()
        self.refusal = ""
        self.answer = pb.ContainerAllocateResponse(envs={"LIMIT": "3000m"})
        self.before_start: Callable[[], None] = lambda: None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self.socket = self.folder / f"test-{next(STARTS)}.sock"
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def register(self, **changes: str) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self.folder / 'kubelet.sock'}") as channel:
            request = {"version": "v1beta1", "endpoint": self.socket.name, "resource_name": GPU, **changes}
            await rpc.RegistrationStub(channel).Register(pb.RegisterRequest(**request), wait_for_ready=True)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # type: ignore[override]  # noqa: N802
        while True:
            self.changed.clear()
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=each, health=health) for each, health in self.devices.items()])
            await self.changed.wait()

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: Any) -> pb.PreferredAllocationResponse:  # noqa: N802
        (asked,) = request.container_requests
        self.calls.append(("prefer", tuple(sorted(asked.available_deviceIDs))))
        preferred = sorted(asked.available_deviceIDs, reverse=True)[: asked.allocation_size]
        return pb.PreferredAllocationResponse(container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=preferred)])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        (asked,) = request.container_requests
        self.calls.append(("allocate", tuple(sorted(asked.devices_ids))))
        if self.refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        return pb.AllocateResponse(container_responses=[self.answer])

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: Any) -> pb.PreStartContainerResponse:  # noqa: N802
        self.calls.append(("start", tuple(sorted(request.devices_ids))))
        self.before_start()
        return pb.PreStartContainerResponse()


class World(ABC):
    """One node and the plugin on it."""

    patience_seconds = 10.0
    minor = building.minor(building.DEFAULT_VERSION)
    """Which Kubernetes it behaves like."""

    def __init__(self, cluster: Cluster, folder: NodeFolder) -> None:
        self.cluster = cluster
        self.folder = folder
        self.plugin = Plugin(folder.device_plugins)

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """Kubelet runs, and the plugin is registered."""

    @abstractmethod
    async def restart(self) -> None:
        """Kubelet starts again; containers run on."""

    @abstractmethod
    def environment(self, pod: Pod, container: str) -> dict[str, str]:
        """What a running container was given; empty before it has said so."""

    async def node(self) -> NodeObject:
        """The node's object."""
        return await self.cluster.get(NODES, NODE)

    async def node_has(self, allocatable: str, capacity: str = "8") -> None:
        """Wait until the node counts so many."""

        async def counts() -> bool:
            status = (await self.node()).status
            return ((status.capacity or {}).get(GPU), (status.allocatable or {}).get(GPU)) == (capacity, allocatable)

        await self.eventually_async(counts)

    def a_container(
        self, name: str, count: int = 0, *, run_seconds: float | None = None, exit_code: int = 0, deaf: bool = False, **more: Any
    ) -> dict[str, Any]:
        """A container that runs until it is told to end, for ever if it is deaf to that, or ends by itself."""
        stays = "exec sleep 100000" if deaf else "trap exit TERM; sleep 100000 & wait"
        command = {"command": ["sh", "-c", f"env; {stays if run_seconds is None else f'sleep {run_seconds}; exit {exit_code}'}"]}
        limits = {"resources": {"limits": {GPU: str(count)}}} if count else {}
        return {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", **command, **limits, **more}

    async def bind(
        self,
        name: str,
        *,
        counts: Sequence[int] = (1,),
        init: Sequence[dict[str, Any]] = (),
        **spec: Any,
    ) -> Pod:
        """A pod, bound to the node; ``run_seconds``, ``exit_code`` and ``deaf`` are its containers'."""
        life = {key: spec.pop(key) for key in ("run_seconds", "exit_code", "deaf") if key in spec}
        containers = [self.a_container(f"c{place}", count, **life) for place, count in enumerate(counts)]
        body = {
            "metadata": {"name": name, "namespace": "default", "annotations": self.of_life(**life)},
            "spec": {
                "containers": containers,
                "initContainers": list(init),
                "terminationGracePeriodSeconds": 2,
                "hostNetwork": True,
                "automountServiceAccountToken": False,
                **spec,
            },
            "status": {"phase": "Pending"},
        }
        pod = await self.cluster.create(PODS, body, namespace="default")
        await self.cluster.bind(pod_ref(pod), NODE, annotations={}, labels={})
        return pod

    def of_life(self, *, run_seconds: float | None = None, exit_code: int = 0, deaf: bool = False) -> dict[str, str]:
        """What the pod's annotations say of how its containers end."""
        return {}

    async def until(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        """The pod, once ``holds``."""
        async with asyncio.timeout(self.patience_seconds), self.cluster.watch(PODS, since="0", namespace="default") as changes:
            async for change in changes:
                if change.object and change.object.metadata.name == name and holds(change.object):
                    return change.object
        raise AssertionError("the watch ended")

    async def gone(self) -> None:
        """Wait until no pod is left."""

        async def none() -> bool:
            return not (await self.cluster.list(PODS, namespace="default")).items

        await self.eventually_async(none)

    def checkpointed(self) -> dict[tuple[str, str], set[str]]:
        """What kubelet's checkpoint says: who holds which ids."""
        held, _ = checkpoint.decode((self.folder.device_plugins / checkpoint.FILE_NAME).read_bytes())
        return {(each.pod_uid, each.container): set(each.ids) for each in held}

    async def eventually(self, holds: Callable[[], bool]) -> None:
        """Return once ``holds``."""

        async def held() -> bool:
            return holds()

        await self.eventually_async(held)

    async def eventually_async(self, holds: Callable[[], Any]) -> None:
        """Return once ``holds``."""
        async with asyncio.timeout(self.patience_seconds):
            while not await holds():  # noqa: ASYNC110 - sockets and files are looked at, and they set no asyncio.Event
                await asyncio.sleep(0.02)


class FakeWorld(World):
    """The rig's kubelet, on a cluster in memory."""

    def __init__(self, folder: Path, cluster: MemoryCluster | None = None) -> None:
        self.clock = SystemClock()
        super().__init__(cluster or MemoryCluster(ObjectStore(now=self.clock.utc, rng=random.Random(1))), NodeFolder(folder / NODE))
        self.kubelet = Kubelet(self.cluster, self.clock, NodeDescription(name=NODE), self.folder, rng=random.Random(2), status_seconds=0.05)
        self.fleet = Fleet(self.cluster, self.clock, [self.kubelet])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(self.fleet.run(stop))
        try:
            await self.kubelet.ready.wait()
            await self.plugin.start()
            await self.plugin.register()
            await self.node_has("8")
            yield
        finally:
            stop.set()
            await task
            await self.plugin.stop()

    async def restart(self) -> None:
        await self.fleet.restart()

    def of_life(self, *, run_seconds: float | None = None, exit_code: int = 0, deaf: bool = False) -> dict[str, str]:
        if deaf:
            return {"rig.hami.io/stop-seconds": "0.3"}
        if run_seconds is None:
            return {}
        return {"rig.hami.io/run-seconds": str(run_seconds), "rig.hami.io/exit-code": str(exit_code)}

    def environment(self, pod: Pod, container: str) -> dict[str, str]:
        record = msgspec.json.decode((self.folder.containers / pod.metadata.uid / f"{container}.json").read_bytes())
        given: dict[str, str] = record["given"]["env"]
        return given


class RealWorld(World):
    """Kubernetes' own kubelet with containerd; the node is cleared before and after."""

    patience_seconds = 120.0
    minor = building.minor(building.version())

    def __init__(self, cluster: Cluster, node: Node) -> None:
        super().__init__(cluster, node.folder)
        self._node = node

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.plugin.start()
        try:
            await self.plugin.register()
            await self.node_has("8")
            yield
        finally:
            await self.plugin.stop()

    async def restart(self) -> None:
        """In between, the checkpoint is written anew by the rig: a real kubelet believes that one too."""
        await self._node.stop_kubelet()
        held, resources = checkpoint.decode(self._node.checkpoint.read_bytes())
        self._node.checkpoint.write_bytes(checkpoint.encode(held, dict.fromkeys(resources, ())))
        await self._node.start_kubelet()

    def environment(self, pod: Pod, container: str) -> dict[str, str]:
        path = self._node.log(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, container)
        said = [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []
        return dict(line.split("=", 1) for line in said if "=" in line)

    async def clear(self) -> None:
        """Delete what a test has left."""
        for pod in (await self.cluster.list(PODS, namespace="default")).items:
            await self.cluster.delete(PODS, pod.metadata.name, namespace="default", grace_seconds=1)
        await self.gone()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_node() -> AsyncIterator[tuple[ControlPlane, Node]]:
    """A real node, on a control plane of its own."""
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(nodes=[NODE]) as plane:
        folder = plane.folder / "images"
        folder.mkdir()
        images.archive(images.PAUSE, folder / "pause.tar", entrypoint=["/bin/sleep", "2147483647"])
        images.archive(images.BUSYBOX, folder / "busybox.tar", entrypoint=["/bin/sh"])
        node = Node(plane, NODE)
        try:
            await node.start()
            yield plane, node
        finally:
            await node.stop()


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.cluster, pytest.mark.timeout(300)])])
def subject(request: pytest.FixtureRequest) -> tuple[ControlPlane, Node] | None:
    """The real node, or None for the rig's own kubelet."""
    return request.getfixturevalue("real_node") if request.param == "real" else None


@pytest_asyncio.fixture(loop_scope="session")
async def kubelet(subject: tuple[ControlPlane, Node] | None, tmp_path: Path) -> AsyncIterator[World]:
    """This test's subject."""
    if subject is None:
        yield FakeWorld(tmp_path)
        return
    plane, node = subject
    async with http.connect(str(plane.admin), user_agent="hami-test") as cluster:
        world = RealWorld(cluster, node)
        yield world
        await world.clear()


def in_phase(phase: str) -> Callable[[Pod], bool]:
    """Whether a pod is in ``phase``."""
    return lambda pod: pod.status.phase == phase


def is_ready(pod: Pod) -> bool:
    """Whether a pod is ready."""
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())

"""A cluster, an extender whose answers a test decides, and between them the stand-in (in virtual time) or a real kube-scheduler (``-m cluster``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_rig.kubectl import kubectl
from hami_rig.processes import ManagedProcess
from hami_rig.scheduler import configuration
from hami_rig.scheduler.extender import CallTransport, Extender, ExtenderError
from hami_rig.scheduler.stand_in import KubeScheduler
from hami_runtime import virtual
from hami_runtime.clock import Clock, SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube import http
from hami_runtime.kube.cluster import EVENTS, NODES, PODS, AlreadyExists, Cluster, Forbidden, Kind
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane

GPU = "nvidia.com/gpu"
VERBS = ("filter", "prioritize", "preempt", "bind")
LONGEST_REAL_PAUSE_SECONDS = 6.0
"""Three times the longest back-off that the configuration allows: who is not asked again by then waits for a change, or for minutes."""
UNTIL_SECONDS = 60.0
TRIES = 50
PRIORITY_CLASSES: Kind[dict[str, Any]] = Kind(
    api_version="scheduling.k8s.io/v1", kind="PriorityClass", plural="priorityclasses", namespaced=False, type=dict
)


class World(ABC):
    """What a story sees. ``filter``, ``prioritize``, ``preempt`` and ``bind`` are the extender's answers; ``calls`` is what it was asked."""

    patient = True
    """Whether hours may pass: in virtual time they cost nothing."""
    minor = building.minor(building.DEFAULT_VERSION)
    """Which Kubernetes it behaves like."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.calls: list[tuple[str, float, dict[str, Any]]] = []
        self.percentage_of_nodes_to_score = 100
        self.parallelism = 16
        """What its configuration says; both are read when it starts."""
        self.filter_seconds = 0.001
        self.most_filters_at_once = 0
        self._filters_now = 0
        self.filter: Callable[[dict[str, Any]], Any] = lambda body: {"NodeNames": body["NodeNames"]}
        self.prioritize: Callable[[dict[str, Any]], Any] = lambda body: []
        self.preempt: Callable[[dict[str, Any]], Any] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
        self.bind: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] = self.post_binding

    async def answer(self, verb: str, body: bytes) -> bytes:
        """The extender's answer.

        Raises:
            ExtenderError: it is to be away.
        """
        decoded = msgspec.json.decode(body)
        self.calls.append((verb, self.clock.monotonic(), decoded))
        self._filters_now += verb == "filter"
        self.most_filters_at_once = max(self.most_filters_at_once, self._filters_now)
        await asyncio.sleep(self.filter_seconds if verb == "filter" else 0.001)
        self._filters_now -= verb == "filter"
        answer = await self.bind(decoded) if verb == "bind" else getattr(self, verb)(decoded)
        return msgspec.json.encode(answer)

    async def post_binding(self, body: dict[str, Any]) -> dict[str, Any]:
        """What a good extender does at bind."""
        pod = await self.cluster.get(PODS, body["PodName"], namespace=body["PodNamespace"])
        await self.cluster.bind(pod_ref(pod), body["Node"], annotations={}, labels={})
        return {"Error": ""}

    async def pause(self, seconds: float) -> None:
        """Let time pass; a real scheduler is given a little more than the stand-in needs, and less than hours."""
        await asyncio.sleep(seconds)

    async def until(self, holds: Callable[[], Awaitable[object]]) -> None:
        """Let time pass until ``holds``."""
        end = self.clock.monotonic() + UNTIL_SECONDS
        while not await holds():
            if self.clock.monotonic() > end:
                pytest.fail(f"does not hold after {UNTIL_SECONDS} s; the extender was called: {[verb for verb, _, _ in self.calls]}")
            await asyncio.sleep(0.05)

    async def bound(self, name: str) -> str:
        """The node of a pod, once it is on one."""

        async def is_bound() -> str:
            return (await self.pod(name)).spec.node_name

        await self.until(is_bound)
        return await is_bound()

    async def says(self, name: str, status: str, reason: str, message: str) -> None:
        """Wait until a pod's condition PodScheduled is this."""
        found = ("", "", "")

        async def is_said() -> bool:
            nonlocal found
            found = await self.condition(name)
            return found == (status, reason, message)

        try:
            await self.until(is_said)
        except pytest.fail.Exception:
            assert found == (status, reason, message)

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """The scheduler runs."""

    def times(self, verb: str) -> list[float]:
        """When the extender was called, to a tenth of a second."""
        return [round(time, 1) for name, time, _ in self.calls if name == verb]

    async def add_node(self, name: str, **allocatable: str) -> None:
        """A node that is ready."""
        resources = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        status = {"allocatable": resources, "capacity": resources, "conditions": ready}
        await self.cluster.create(NODES, {"metadata": {"name": name}})
        await self.cluster.patch(NODES, name, {"status": status}, subresource="status")
        await self.cluster.patch(NODES, name, {"spec": {"taints": None}})

    async def add_pod(
        self, name: str, *, gpu: bool = True, priority: int = 0, cpu: str = "", scheduler: str = "hami-scheduler", **others: str
    ) -> None:
        """A pod, created; ``others`` are further limits."""
        limits = {**({GPU: "1"} if gpu else {}), **({"cpu": cpu} if cpu else {}), **others}
        containers = [{"name": "c", "image": "x", "resources": {"limits": limits, "requests": limits}}]
        spec = {"schedulerName": scheduler, "containers": containers, **await self.of_priority(priority)}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {"phase": "Pending"}}
        for tries_left in reversed(range(TRIES)):
            try:
                await self.cluster.create(PODS, body, namespace="default")
            except Forbidden:  # admission does not know a priority class that was made a moment ago
                if not tries_left:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    async def of_priority(self, priority: int) -> dict[str, Any]:
        """What a pod's spec says of its priority."""
        return {"priority": priority}

    async def pod(self, name: str) -> Pod:
        """One pod."""
        return await self.cluster.get(PODS, name, namespace="default")

    async def ref(self, name: str) -> PodRef:
        """One pod's reference."""
        return pod_ref(await self.pod(name))

    async def condition(self, name: str) -> tuple[str, str, str]:
        """A pod's condition PodScheduled: status, reason, message."""
        for each in (await self.pod(name)).status.conditions or ():
            if each.type == "PodScheduled":
                message = each.message or ""
                return each.status, each.reason or "", message.replace(" no new claims to deallocate, ", " ")  # 1.34 says that too
        return "", "", ""

    async def events(self) -> list[tuple[str, str]]:
        """Reasons and messages of all Events about pods."""
        return [(event["reason"], event["message"]) for event in (await self.cluster.list(EVENTS, namespace="default")).items]


class StandIn(World):
    """The stand-in, on a cluster in memory."""

    def __init__(self) -> None:
        clock = VirtualClock()
        super().__init__(MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1))), clock)

    def _call(self, verb: str) -> Callable[[bytes], Awaitable[bytes]]:
        async def call(body: bytes) -> bytes:
            return await self.answer(verb, body)

        return call

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        body = configuration.generate([GPU], extender_url="http://extender")
        body |= {"percentageOfNodesToScore": self.percentage_of_nodes_to_score, "parallelism": self.parallelism}
        config = configuration.load(msgspec.json.encode(body).decode())
        extender = Extender(config.extenders[0], CallTransport({verb: self._call(verb) for verb in VERBS}))
        scheduler = KubeScheduler(self.cluster, self.clock, config, extender, rng=random.Random(2))
        stop = asyncio.Event()
        task = asyncio.create_task(scheduler.run(stop))
        await asyncio.sleep(0.5)
        yield
        stop.set()
        await task


class Real(World):
    """Kubernetes' own kube-scheduler, on a real API server that is cleared before."""

    patient = False
    minor = building.minor(building.version())

    def __init__(self, cluster: Cluster, kubeconfig: Path, folder: Path) -> None:
        super().__init__(cluster, SystemClock())
        self._kubeconfig = kubeconfig
        self._folder = folder

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds + 0.7, LONGEST_REAL_PAUSE_SECONDS))

    async def of_priority(self, priority: int) -> dict[str, Any]:
        if not priority:
            return {}
        name = f"contract-{priority}"
        with contextlib.suppress(AlreadyExists):
            await self.cluster.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": priority})
        return {"priorityClassName": name}

    async def clear(self) -> None:
        """Remove all nodes and the pods and Events of the namespace default."""
        for pod in (await self.cluster.list(PODS, namespace="default")).items:
            await self.cluster.delete(PODS, pod.metadata.name, namespace="default", grace_seconds=0)
        for node in (await self.cluster.list(NODES)).items:
            await self.cluster.delete(NODES, node.metadata.name)
        for event in (await self.cluster.list(EVENTS, namespace="default")).items:
            await self.cluster.delete(EVENTS, event["metadata"]["name"], namespace="default")

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            answer = await self.answer(request.match_info["verb"], await request.read())
        except ExtenderError as exc:
            return web.Response(status=500, text=str(exc))
        return web.Response(body=answer, content_type="application/json")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_post("/{verb}", self._handle)
        async with serve_app(application, "127.0.0.1", 0) as port:
            body = configuration.generate([GPU], extender_url=f"http://127.0.0.1:{port}")
            body |= {
                "percentageOfNodesToScore": self.percentage_of_nodes_to_score,
                "parallelism": self.parallelism,
                "leaderElection": {"leaderElect": False},
                "clientConnection": {"kubeconfig": str(self._kubeconfig), "qps": 1000, "burst": 2000},
            }
            path = self._folder / "kube-scheduler.yaml"
            path.write_bytes(msgspec.yaml.encode(body))
            program = str(await asyncio.to_thread(building.binaries) / "kube-scheduler")
            environ = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
            process = ManagedProcess(
                "kube-scheduler", [program, "--config", str(path), "--secure-port", "0"], folder=self._folder, environ=environ
            )
            await process.start()
            try:
                await self._looks(process)
                yield
            finally:
                await process.stop(grace_seconds=5)

    async def _looks(self, process: ManagedProcess) -> None:
        """Wait until it schedules: a pod without anything of ours is bound to a node that is there."""
        await self.add_pod("probe", gpu=False)
        async with asyncio.timeout(UNTIL_SECONDS):
            while not (await self.pod("probe")).spec.node_name:
                assert process.pid, process.obituary()
                await asyncio.sleep(0.1)
        await self.cluster.delete(PODS, "probe", namespace="default", grace_seconds=0)
        for event in (await self.cluster.list(EVENTS, namespace="default")).items:
            await self.cluster.delete(EVENTS, event["metadata"]["name"], namespace="default")
        self.calls.clear()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def quiet_kubeconfig() -> AsyncIterator[Path]:
    """Of a control plane on which nothing happens by itself: whatever else changes in a cluster wakes kube-scheduler's pods."""
    if named := os.environ.get("HAMI_TEST_KUBECONFIG"):
        yield Path(named)
        return
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=()) as plane:
        await kubectl(plane.admin, "create", "serviceaccount", "default")
        yield plane.admin


Story = Callable[[World], Awaitable[None]]
Play = Callable[[Story], None]


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.cluster)])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Runs a story on this test's subject."""
    if request.param == "stand-in":
        return lambda story: virtual.run(_on_stand_in(story))
    kubeconfig: Path = request.getfixturevalue("quiet_kubeconfig")
    return lambda story: asyncio.run(_on_real(story, kubeconfig, tmp_path))


async def _on_stand_in(story: Story) -> None:
    await story(StandIn())


async def _on_real(story: Story, kubeconfig: Path, folder: Path) -> None:
    async with http.connect(str(kubeconfig), user_agent="hami-test") as cluster:
        world = Real(cluster, kubeconfig, folder)
        await world.clear()
        try:
            await story(world)
        finally:
            await world.clear()

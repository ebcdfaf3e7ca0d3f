"""One rig for the whole session: NATS, API server, kubelets, kube-scheduler's stand-in and the four services, as processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import pytest_asyncio

from hami_protocol import events, keys, subjects
from hami_protocol.devices import VendorAssignment
from hami_protocol.envelope import open_message
from hami_protocol.kubernetes import Pod
from hami_rig import profile
from hami_rig.kubectl import KubectlFailed, kubectl
from hami_rig.supervisor import Rig
from hami_runtime.bus import jetstream
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, PODS, Cluster

NODE_OF_EACH_MODE = """
nodes:
  - name: locked
    allocation_mode: envvar
    devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}}
    labels: {pool: locked}
  - name: cdi
    allocation_mode: cdi
    devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}}
    labels: {pool: cdi}
"""
CARD_MIB = 32768
SETTLE_SECONDS = 30.0
SomeRig = TypeVar("SomeRig", bound=Rig)


class World:
    """A running rig as tests use it."""

    def __init__(self, rig: Rig, cluster: Cluster) -> None:
        self.rig = rig
        self.cluster = cluster

    @property
    def api_url(self) -> str:
        """Where the API server is."""
        url: str = msgspec.yaml.decode(self.rig.kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]
        return url

    async def kubectl(self, *arguments: str) -> str:
        """Run kubectl against the rig."""
        return await kubectl(self.rig.kubeconfig, *arguments)

    async def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply manifests with kubectl."""
        path = self.rig.folder / "applied.json"
        path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))
        await self.kubectl("apply", "-f", str(path))

    async def apply_again(self, *manifests: dict[str, Any]) -> None:
        """Apply as a user does who tries again while the webhook is away."""
        refusal = ""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    try:
                        return await self.apply(*manifests)
                    except KubectlFailed as exc:
                        refusal = str(exc)
                        await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"still refused after {SETTLE_SECONDS} s: {refusal}")

    async def pods(self) -> list[Pod]:
        """All pods there are."""
        return (await self.cluster.list(PODS)).items

    async def pod(self, name: str) -> Pod:
        """One pod."""
        return await self.cluster.get(PODS, name, namespace="default")

    async def until(self, name: str, holds: Callable[[Pod], bool], seconds: float = SETTLE_SECONDS) -> Pod:
        """The pod, once ``holds``."""
        pod = await self.pod(name)
        try:
            async with asyncio.timeout(seconds):
                while not holds(pod):
                    await asyncio.sleep(0.05)
                    pod = await self.pod(name)
        except TimeoutError:
            pytest.fail(f"{name} after {seconds} s: {pod.metadata.annotations} {pod.status}")
        return pod

    async def running(self, *names: str) -> list[Pod]:
        """Pods, once they run and have all that they were granted."""
        return [await self.until(name, runs) for name in names]

    async def keep_running(self, *manifests: dict[str, Any]) -> list[Pod]:
        """What a controller does: a pod that kubelet has failed is replaced, until all run.

        Kubelet fails a pod whose device plugin dies between the Binding and Allocate, and never tries it again.
        """
        by_name = {manifest["metadata"]["name"]: manifest for manifest in manifests}
        pods: list[Pod] = []
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not pods or not all(runs(pod) for pod in pods):
                    pods = [await self.pod(name) for name in by_name]
                    for pod in pods:
                        if pod.status.phase == "Failed":
                            await self.kubectl("delete", "pod", pod.metadata.name, "--timeout=10s")
                            await self.apply(by_name[pod.metadata.name])
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(
                f"not all run after {SETTLE_SECONDS} s: {[(pod.metadata.name, pod.metadata.annotations, pod.status) for pod in pods]}"
            )
        return pods

    async def running_of(self, names: list[str], count: int) -> list[Pod]:
        """All pods of ``names``, once ``count`` of them run and the rest is refused, and a moment later still."""
        pods: list[Pod] = []
        quiet = 0
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while quiet < 10:
                    pods = [await self.pod(name) for name in names]
                    now = [runs(pod) for pod in pods].count(True)
                    quiet = quiet + 1 if now == count and all(runs(pod) or (waits(pod) and not pod.spec.node_name) for pod in pods) else 0
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"not {count} of {names} after {SETTLE_SECONDS} s: {[(pod.metadata.name, pod.status.conditions) for pod in pods]}")
        return pods

    async def node_lists(self, name: str, devices: str) -> None:
        """Return once the node says that it has so many devices to allocate."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while ((await self.cluster.get(NODES, name)).status.allocatable or {}).get("nvidia.com/gpu") != devices:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.05)

    def given(self, pod: Pod, container: str = "main") -> dict[str, Any]:
        """What a container was started with."""
        given: dict[str, Any] = self._record(pod, container)["given"]
        return given

    def ids(self, pod: Pod, container: str = "main") -> dict[str, list[str]]:
        """Which device ids kubelet gave a container, by resource."""
        ids: dict[str, list[str]] = self._record(pod, container)["deviceIds"]
        return ids

    def _record(self, pod: Pod, container: str) -> dict[str, Any]:
        path = self.rig.node_folder(pod.spec.node_name).containers / pod.metadata.uid / f"{container}.json"
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    async def clear(self) -> None:
        """Delete all pods and wait until they are gone and nothing is held."""
        await self.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=30s")

    @asynccontextmanager
    async def log(self) -> AsyncIterator[list[events.Event]]:
        """Every allocation event, from the first, as it comes."""
        seen: list[events.Event] = []

        async def follow() -> None:
            async with (
                jetstream.connect(self.rig.nats_url, name="e2e") as bus,
                bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_ALLOCATIONS]) as deliveries,
            ):
                async for delivery in deliveries:
                    event = open_message(delivery.message)
                    seen.append(event)

        task = asyncio.create_task(follow())
        yield seen
        task.cancel()
        await asyncio.wait([task])


def a_pod(name: str, *, mib: int = 1024, cores: int = 0, count: int = 1, pool: str = "", **metadata: Any) -> dict[str, Any]:
    """A manifest of one container with a share."""
    limits: dict[str, Any] = {"nvidia.com/gpu": count, "nvidia.com/gpumem": mib}
    if cores:
        limits["nvidia.com/gpucores"] = cores
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}]}
    if pool:
        spec["nodeSelector"] = {"pool": pool}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


async def eventually(holds: Callable[[], bool], seconds: float = SETTLE_SECONDS) -> None:
    """Return once ``holds``."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - processes are looked at, and they set no asyncio.Event
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"does not hold after {seconds} s")


def of_pod(log: list[events.Event], uid: str) -> list[type[events.Event]]:
    """What happened to one pod."""
    return [type(event) for event in log if getattr(event, "pod", None) and event.pod.uid == uid]  # type: ignore[union-attr]


def runs(pod: Pod) -> bool:
    """Whether the pod runs with all that it was granted."""
    return pod.status.phase == "Running" and pod.metadata.annotations.get(keys.BIND_PHASE) == "success"


def waits(pod: Pod) -> bool:
    """Whether the pod was refused by every node."""
    return any(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in pod.status.conditions or ())


def held(assignments: tuple[VendorAssignment, ...]) -> dict[str, int]:
    """MiB by card."""
    total: dict[str, int] = {}
    for assignment in assignments:
        for container in assignment.containers:
            for share in container.shares:
                total[share.uuid] = total.get(share.uuid, 0) + share.memory_mib
    return total


@asynccontextmanager
async def of_each_mode(kind: type[SomeRig]) -> AsyncIterator[SomeRig]:
    """A rig with a node of each allocation mode, two cards each."""
    async with kind(profile.parse(NODE_OF_EACH_MODE)) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rig() -> AsyncIterator[Rig]:
    """The session's rig."""
    async with of_each_mode(Rig) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def world(rig: Rig) -> AsyncIterator[World]:
    """The rig, the session's or the module's own, without any pods, before and after."""
    async with http.connect(str(rig.kubeconfig)) as cluster:
        world = World(rig, cluster)
        yield world
        await world.clear()

"""A real cluster as the stories use it: pods are applied with kubectl, waited for, and say themselves what they were started with.

``PROBE`` is what a container runs: it prints its environment, mounts, devices and the bytes of its grant, then sleeps. ``check_grant`` compares
that with what the scheduler recorded on the pod: exactly the grant, nothing more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct

from hami_devices.environment import container_environment
from hami_node_agent import grant_file
from hami_protocol import assignment, events, keys, subjects
from hami_protocol.devices import DeviceShare
from hami_protocol.envelope import open_message
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order
from hami_rig.kubectl import KubectlFailed, kubectl
from hami_runtime.bus import jetstream
from hami_runtime.kube.cluster import PODS, Cluster
from tests.cluster.harness import images
from tests.cluster.harness.installation import Installation

ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
MADE_BY_STORIES = (("apis/apps/v1", "deployments"), ("apis/apps/v1", "replicasets"), ("apis/batch/v1", "jobs"), ("api/v1", "pods"))
"""Owners before what they would make anew."""
SETTLE_SECONDS = 120.0
"""Long: other lanes compute beside this one."""
LOOK_AGAIN_SECONDS = 0.1
_MARK = "=== hami probe:"
SHOW = f"""
for part in environment mounts devices grant end; do
  echo "{_MARK} $part"
  case $part in
    environment) env;;
    mounts) cat /proc/self/mountinfo;;
    devices) find /dev -type c;;
    grant) if [ -e /usr/local/vgpu/grant ]; then hexdump -ve '1/1 "%.2x"' /usr/local/vgpu/grant; fi; echo;;
  esac
done
"""
STAY: Final = "trap exit TERM; sleep 100000 & wait"
"""Runs until it is told to end, and ends then: as a container's first process, ``sleep`` alone would be deaf to that."""
PROBE: Final = f"{SHOW}\n{STAY}"
OURS = re.compile(r"CUDA_|NVIDIA_|GPU_|LIBCUDA_")
CACHE = re.compile(r"/usr/local/vgpu/[0-9a-z-]+\.cache")
WRITABLE = frozenset({"/usr/local/vgpu/region"})
MOUNTS = WRITABLE | {"/etc/ld.so.preload", "/usr/local/vgpu", "/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/grant"}


class Seen(Struct, frozen=True, kw_only=True):
    """What a container was started with, as it says itself."""

    environment: dict[str, str]
    mounts: dict[str, str]
    """Mount point to options."""
    devices: frozenset[str]
    grant: grant_file.Grant | None


class World:
    """A running installation."""

    def __init__(self, installation: Installation, cluster: Cluster) -> None:
        self.installation = installation
        self.cluster = cluster

    async def kubectl(self, *arguments: str, timeout_seconds: float = 120.0) -> str:
        """Run kubectl as an administrator."""
        return await kubectl(self.installation.kubeconfig, *arguments, timeout_seconds=timeout_seconds)

    async def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Apply manifests."""
        path = self.installation.folder / "applied.json"
        path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))
        await self.kubectl("apply", "-f", str(path))

    async def pods(self, **labels: str) -> list[Pod]:
        """The pods of the namespace default that have ``labels``."""
        return (
            await self.cluster.list(PODS, namespace="default", labels=",".join(f"{key}={value}" for key, value in labels.items()))
        ).items

    async def pod(self, name: str) -> Pod:
        """One pod."""
        return await self.cluster.get(PODS, name, namespace="default")

    async def until(self, name: str, holds: Callable[[Pod], bool], *, seconds: float = SETTLE_SECONDS) -> Pod:
        """The pod, once ``holds``."""
        pod = await self.pod(name)
        try:
            async with asyncio.timeout(seconds):
                while not holds(pod):
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
                    pod = await self.pod(name)
        except TimeoutError:
            pytest.fail(f"{name} after {seconds} s: {pod.metadata.annotations} {pod.status}\n{await self.told(name)}")
        return pod

    async def running(self, *names: str, seconds: float = SETTLE_SECONDS) -> list[Pod]:
        """Pods, once all their containers run and all that they were granted is theirs."""
        return [await self.until(name, runs, seconds=seconds) for name in names]

    async def serving(self, count: int, holds: Callable[[Pod], bool], **labels: str) -> list[Pod]:
        """The pods that have ``labels`` and of which ``holds``, once there are so many: their Deployment may be done before their grants are told."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while len(found := [pod for pod in await self.pods(**labels) if holds(pod)]) < count:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            pytest.fail(
                f"{len(found)} of {count} after {SETTLE_SECONDS} s: {[(pod.metadata.name, pod.status) for pod in await self.pods(**labels)]}"
            )
        return found

    async def told(self, name: str) -> str:
        """The Events of a pod."""
        return await self.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}", "--sort-by", ".lastTimestamp")

    async def output(self, pod: Pod, container: str = "main", *, restart: int = 0) -> str:
        """What a container has printed; empty while there is nothing."""
        node = self.installation.nodes[pod.spec.node_name]
        path = node.log(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, container, restart=restart)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "".join(content + ("" if tag == "P" else "\n") for _, _, tag, content in (_line(line) for line in lines))

    async def seen(self, pod: Pod, container: str = "main", *, restart: int = 0) -> Seen:
        """What a container that runs ``PROBE`` was started with."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while f"{_MARK} end" not in (text := await self.output(pod, container, restart=restart)):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            pytest.fail(f"{pod.metadata.name}/{container} has not said what it was started with: {text[-2000:]}")
        return _parse(text)

    async def check_grant(self, pod: Pod, container: str = "main", *, restart: int = 0) -> Seen:
        """Assert that a container has exactly what is recorded as its grant."""
        seen, shares = await self.seen(pod, container, restart=restart), shares_of(pod)[container]
        node = self.installation.rig_nodes[pod.spec.node_name]
        by_cdi = node.allocation_mode == "cdi"
        ours = {key: value for key, value in seen.environment.items() if OURS.match(key)}
        cache = ours["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        assert CACHE.fullmatch(cache)
        wanted = container_environment(shares, shared_cache=cache, visible_devices="void" if by_cdi else None, log_level="1")
        assert ours == wanted, (pod.metadata.name, container)
        assert seen.mounts.keys() >= MOUNTS
        assert {path for path in seen.mounts if "vgpu" in path or "preload" in path} == MOUNTS
        for path in MOUNTS - WRITABLE:
            assert seen.mounts[path].split(",")[0] == "ro", path
        assert seen.grant is not None
        granted = [(device.uuid, device.memory_limit_mib, device.sm_percent) for device in seen.grant.devices]
        assert granted == [(share.uuid, share.memory_mib, share.cores) for share in shares]
        assert (seen.grant.pod_uid, seen.grant.container) == (pod.metadata.uid, container)
        if by_cdi:
            cards = {path for path in seen.devices if path.startswith("/dev/nvidia")}
            assert cards == {"/dev/nvidiactl", *(f"/dev/nvidia{self.index(pod.spec.node_name, share.uuid)}" for share in shares)}
        return seen

    def index(self, node: str, uuid: str) -> int:
        """Which card of the node."""
        return self.installation.cards[node].index(uuid)

    async def gone(self, *selectors: str) -> None:
        """Delete what ``selectors`` name and wait until it is gone."""
        await self.kubectl("delete", *selectors, "--ignore-not-found", "--grace-period=1", "--timeout=60s", timeout_seconds=90)

    async def clear(self) -> None:
        """Delete everything that a story may have made, and wait until nothing is held any more."""
        options = {"gracePeriodSeconds": 1, "propagationPolicy": "Background"}
        async with self.installation.plane.session() as session:
            for group, plural in MADE_BY_STORIES:
                async with session.delete(f"/{group}/namespaces/default/{plural}", json=options) as answer:
                    assert answer.status == 200, await answer.text()
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while await self.pods():  # noqa: ASYNC110 - kubelet says when they are gone, to the API server alone
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError:
            left = [(pod.metadata.name, pod.spec.node_name, pod.metadata.finalizers, pod.status) for pod in await self.pods()]
            pytest.fail(f"pods are left after {SETTLE_SECONDS} s: {left}")

    @asynccontextmanager
    async def log(self) -> AsyncIterator[list[events.Event]]:
        """Every allocation event, from the first, as it comes."""
        seen: list[events.Event] = []

        async def follow() -> None:
            async with (
                jetstream.connect(self.installation.nats_url, name="cluster-test") as bus,
                bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_ALLOCATIONS]) as deliveries,
            ):
                async for delivery in deliveries:
                    event = open_message(delivery.message)
                    seen.append(event)

        task = asyncio.create_task(follow())
        yield seen
        task.cancel()
        await asyncio.wait([task])

    async def refusal(self, *manifests: Mapping[str, Any]) -> str:
        """What kubectl says where applying is refused."""
        with pytest.raises(KubectlFailed) as refused:
            await self.apply(*manifests)
        return str(refused.value)


async def eventually(holds: Callable[[], bool], *, seconds: float = SETTLE_SECONDS) -> None:
    """Return once ``holds``."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - processes are looked at, and they set no asyncio.Event
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
    except TimeoutError:
        pytest.fail(f"does not hold after {seconds} s")


def a_container(name: str = "main", *, mib: int = 0, cores: int = 0, count: int = 1, command: str = PROBE, **fields: Any) -> dict[str, Any]:
    """A container that asks for ``mib`` of a card; for nothing of ours where that is 0."""
    limits: dict[str, Any] = {}
    if mib:
        limits = {"nvidia.com/gpu": count, "nvidia.com/gpumem": mib}
    if cores:
        limits["nvidia.com/gpucores"] = cores
    body = {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", command]}
    return {**body, "resources": {"limits": limits}, **fields}


def a_spec(*containers: Mapping[str, Any], init: Sequence[Mapping[str, Any]] = (), pool: str = "cdi", **fields: Any) -> dict[str, Any]:
    """The spec of a pod on a node of ``pool``; one container of 1000 MiB where none is given."""
    spec: dict[str, Any] = {"hostNetwork": True, "terminationGracePeriodSeconds": 1, "nodeSelector": {"pool": pool}}
    if init:
        spec["initContainers"] = list(init)
    return {**spec, "containers": list(containers) or [a_container(mib=1000)], **fields}


def a_pod(name: str, *containers: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with ``a_spec``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **(metadata or {})},
        "spec": a_spec(*containers, **spec),
    }


def a_deployment(name: str, *containers: Mapping[str, Any], replicas: int, **spec: Any) -> dict[str, Any]:
    """A Deployment of pods with ``a_spec`` and the label ``app``."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": a_spec(*containers, **spec)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def runs(pod: Pod) -> bool:
    """Whether the pod and its containers run with all that was granted."""
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
    return pod.status.phase == "Running" and ready and pod.metadata.annotations.get(keys.BIND_PHASE) == "success"


def waits(pod: Pod) -> bool:
    """Whether the pod was refused by every node."""
    return any(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in pod.status.conditions or ())


def shares_of(pod: Pod) -> dict[str, tuple[DeviceShare, ...]]:
    """Container name to its recorded grant."""
    names = [container.name for container, _, _ in containers_in_order(pod)]
    entries = assignment.decode_entries(pod.metadata.annotations[ALLOCATED])
    return {name: shares for name, shares in zip(names, entries, strict=False) if shares}


def held_mib(pods: Iterable[Pod]) -> dict[str, int]:
    """MiB by card that these pods' app containers hold."""
    total: dict[str, int] = {}
    for pod in pods:
        for shares in shares_of(pod).values():
            for share in shares:
                total[share.uuid] = total.get(share.uuid, 0) + share.memory_mib
    return total


def of_pod(log: Iterable[events.Event], uid: str) -> list[type[events.Event]]:
    """What happened to one pod."""
    return [type(event) for event in log if getattr(event, "pod", None) and event.pod.uid == uid]  # type: ignore[union-attr]


def _line(line: str) -> tuple[str, str, str, str]:
    time, stream, tag, *content = line.split(" ", 3)
    return time, stream, tag, content[0] if content else ""


def _parse(text: str) -> Seen:
    parts: dict[str, list[str]] = {}
    for block in text.split(_MARK)[1:]:
        title, *lines = block.strip("\n").split("\n")
        parts[title.strip()] = lines
    mounts = {fields[4]: fields[5] for fields in (line.split() for line in parts["mounts"] if line)}
    grant = "".join(parts["grant"]).strip()
    return Seen(
        environment=dict(line.split("=", 1) for line in parts["environment"] if "=" in line),
        mounts=mounts,
        devices=frozenset(line for line in parts["devices"] if line),
        grant=grant_file.decode(bytes.fromhex(grant)) if grant else None,
    )

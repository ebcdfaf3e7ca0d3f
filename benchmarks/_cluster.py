"""Pods per second on a real API server and a real kube-scheduler, ours and a null extender in turn, beside the same heartbeats.

Nodes are API objects; kubelet's part is played at once: an assigned pod is reported allocated as soon as it is bound. API calls are counted by
the API server itself. Everything shares this machine's cores, so the share of the ceiling is what carries over to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks import _heartbeats, _report, _world
from benchmarks._agents import agents
from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_rig.processes import ManagedProcess
from hami_runtime.bus import jetstream
from tests.cluster.harness import ports
from tests.cluster.harness.control_plane import ControlPlane
from tools import scheduler_configuration

CARDS = 8
AT_ONCE = 16
LONGEST_SECONDS = 240.0
SETTLING_SECONDS = 12.0
"""Between two rounds: what the one leaves behind, as the releases of its pods, must not be the other's to pay for."""
MERGE = {"Content-Type": "application/merge-patch+json"}
TOLD_EACH_NODES = 1000
PODS = "/api/v1/namespaces/default/pods"
_METRIC = re.compile(r"apiserver_request_total\{(.*)\} (\S+)")


class Round(NamedTuple):
    """One round of one extender."""

    pods_per_second: float
    recorded_per_second: float
    """Until each pod's record of success is written too; 0 for an extender that keeps none."""
    waits_seconds: list[float]
    calls_per_pod: float
    processor_ms: dict[str, float]
    """Of processor time that each program took for one pod."""


class Extender(NamedTuple):
    """Who answers kube-scheduler."""

    name: str
    port: int
    prefers: bool
    """Whether it has the verbs prioritize and preempt too."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    type: str
    object: _Object


async def measure(nodes: int, pods: int, rounds: int, *, say: Callable[[str], None]) -> list[_report.Measurement]:
    """The figures for one size of cluster."""
    async with ControlPlane(controllers=(), say=say) as plane, plane.session() as session:
        programs = Programs(plane)
        await _done(session.post("/api/v1/namespaces/default/serviceaccounts", json={"metadata": {"name": "default"}}))
        say(f"making {nodes} nodes")
        await make_nodes(session, nodes, say=say)
        url = await programs.nats()
        await programs.service("registry", "hami_registry.main", url)
        await programs.python("heartbeats", "-m", "benchmarks._heartbeats", "--nats", url, "--nodes", str(nodes), "--cards", str(CARDS))
        ours = (await programs.service("scheduler", "hami_scheduler.main", url))["extender"]
        ready_file = str(plane.folder / "ready" / "null.json")
        null = await programs.python(
            "null", "-m", "benchmarks._null_extender", "--kubeconfig", str(plane.admin), "--ready-file", ready_file
        )
        null_port = (await null.ready(timeout_seconds=30))["extender"]
        await programs.able("scheduler")
        await programs.able("registry")
        found: dict[str, list[Round]] = {"null": [], "hami": []}
        async with jetstream.connect(url, name="benchmark") as bus, agents(bus):
            for number in range(rounds):
                for extender in (Extender("null", null_port, prefers=False), Extender("hami", ours, prefers=True)):
                    async with programs.kube_scheduler(extender):
                        await place(session, f"warm{number}{extender.name}", 20, plane.processes, keeps_records=extender.prefers)
                        name = f"p{number}{extender.name}"
                        found[extender.name].append(await place(session, name, pods, plane.processes, keeps_records=extender.prefers))
                    last = found[extender.name][-1]
                    spent = ", ".join(f"{name} {ms:.1f}" for name, ms in last.processor_ms.items() if ms >= 0.05)
                    recorded = f", {last.recorded_per_second:.1f} with their records" if extender.prefers else ""
                    say(f"{extender.name}: {last.pods_per_second:.1f} pods/s{recorded}; processor ms a pod: {spent}")
                    await clear(session)
        memory = memory_mib(programs.pid("scheduler"))
        resident = {name: memory_mib(process.pid) for name, process in plane.processes.items() if process.pid}
        say("memory, MiB: " + ", ".join(f"{name} {mib:.0f}" for name, mib in resident.items()))
        say("starting the scheduler again")
        seconds = await programs.start_again("scheduler")
        return figures(f"real cluster, {nodes} nodes", found, memory, seconds)


def figures(where: str, found: dict[str, list[Round]], memory: float, ready_seconds: float) -> list[_report.Measurement]:
    """What is reported."""

    def speeds(name: str) -> list[float]:
        return [each.pods_per_second for each in found[name]]

    shares = [100 * ours / ceiling for ours, ceiling in zip(speeds("hami"), speeds("null"), strict=True)]
    return [
        _report.measurement(f"pods assigned and bound, {where}", speeds("hami"), unit="pods/s"),
        _report.measurement(f"the same, null extender, {where}", speeds("null"), unit="pods/s"),
        _report.measurement(f"share of the null extender's, round by round, {where}", shares, unit="%"),
        _report.measurement(
            f"pods assigned, bound and recorded as served, {where}", [each.recorded_per_second for each in found["hami"]], unit="pods/s"
        ),
        _report.measurement(f"created to bound, {where}", [wait for each in found["hami"] for wait in each.waits_seconds], unit="s"),
        _report.measurement(f"the same, null extender, {where}", [wait for each in found["null"] for wait in each.waits_seconds], unit="s"),
        _report.measurement(f"API calls per pod, {where}", [each.calls_per_pod for each in found["hami"]], unit="calls"),
        _report.measurement(f"start to ready, {where}", [ready_seconds], unit="s"),
        _report.measurement(f"scheduler memory, {where}", [memory], unit="MiB"),
    ]


class Programs:
    """What runs beside the control plane; it ends with it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._ports: dict[str, dict[str, Any]] = {}

    def pid(self, name: str) -> int:
        """Of a running program."""
        return self._plane.processes[name].pid

    async def python(self, name: str, *arguments: str, environ: dict[str, str] | None = None) -> ManagedProcess:
        """Start a Python program."""
        process = ManagedProcess(name, [sys.executable, *arguments], folder=self._plane.folder, environ={})
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
        process.environ = {**inherited, **(environ or {})}
        self._plane.processes[name] = process
        await process.start()
        return process

    async def service(self, name: str, module: str, nats_url: str) -> dict[str, Any]:
        """Start one of the services, and return its ports."""
        ready_file = self._plane.folder / "ready" / f"{name}.json"
        environ = {
            "HAMI_KUBECONFIG": str(self._plane.admin),
            "HAMI_NATS_URL": nats_url,
            "HAMI_READY_FILE": str(ready_file),
            "HAMI_LOG_LEVEL": "warning",
            "HAMI_IDENTITY": name,
        }
        process = await self.python(name, "-c", f"from {module} import main; main()", environ=environ)
        self._ports[name] = await process.ready(timeout_seconds=60)
        return self._ports[name]

    async def able(self, name: str) -> None:
        """Wait until a service is able to do its job."""
        url = f"http://127.0.0.1:{self._ports[name]['health']}/readyz"
        async with aiohttp.ClientSession() as session:

            async def ready() -> bool:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as answer:
                        return answer.status == 200
                return False

            await self._plane.until(ready, name, "it is not ready", seconds=LONGEST_SECONDS)

    async def start_again(self, name: str) -> float:
        """Stop a service, start it again, and return the seconds until it was able."""
        process = self._plane.processes[name]
        await process.stop(grace_seconds=10)
        begin = time.monotonic()
        await process.start()
        self._ports[name] = await process.ready(timeout_seconds=LONGEST_SECONDS)
        await self.able(name)
        return time.monotonic() - begin

    async def nats(self) -> str:
        """Start a NATS server, and return its URL."""
        port = ports.free()
        program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin") or "nats-server"
        store = str(self._plane.folder / "jetstream")
        command = [program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", store]
        process = ManagedProcess("nats", command, folder=self._plane.folder, environ={})
        self._plane.processes["nats"] = process
        await process.start()
        return f"nats://127.0.0.1:{port}"

    @asynccontextmanager
    async def kube_scheduler(self, extender: Extender) -> AsyncIterator[None]:
        """A kube-scheduler that asks ``extender``."""
        body = scheduler_configuration.kube_scheduler(Catalog().managed_resources)
        body["clientConnection"]["kubeconfig"] = str(self._plane.kubeconfig("kube-scheduler"))
        body["leaderElection"] = {"leaderElect": False}
        body["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender.port}"
        if not extender.prefers:
            del body["extenders"][0]["prioritizeVerb"], body["extenders"][0]["preemptVerb"]
        path = self._plane.folder / f"kube-scheduler-{extender.name}.yaml"
        path.write_bytes(msgspec.yaml.encode(body))
        process = await self._plane.start_program("kube-scheduler", "--config", str(path), "--secure-port", "0")
        await asyncio.sleep(3)
        yield
        await process.stop(grace_seconds=10)


async def make_nodes(session: aiohttp.ClientSession, count: int, *, say: Callable[[str], None]) -> None:
    """Nodes as API objects, registered and ready, as the registry and kubelet would have written them."""
    resources = {"cpu": "64", "memory": "512Gi", "pods": "500", "nvidia.com/gpu": str(CARDS * 10)}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    made = itertools.count(1)

    async def make(name: str, annotations: dict[str, str]) -> None:
        own = {**annotations, keys.generation("nvidia"): str(_heartbeats.GENERATION)}
        own[keys.handshake("nvidia")] = f"Reported {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        await _done(session.post("/api/v1/nodes", json={"metadata": {"name": name, "annotations": own}, "status": status}))
        await _done(session.patch(f"/api/v1/nodes/{name}", data=b'{"spec":{"taints":null}}', headers=MERGE))
        if (number := next(made)) % TOLD_EACH_NODES == 0:
            say(f"{number} of {count} nodes are made")

    await _some_at_a_time(
        (lambda node=node: make(node.metadata.name, dict(node.metadata.annotations)) for node in _world.nodes(count, CARDS)), 32
    )


class Followed:
    """When each pod of one round was created, bound, and recorded as served, as a watch shows it."""

    def __init__(self, session: aiohttp.ClientSession, count: int, since: str) -> None:
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.recorded: dict[str, float] = {}
        self._session = session
        self._count = count
        self._since = since
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Watch until cancelled."""
        decoder = msgspec.json.Decoder(_Event)
        while True:  # a watcher that is slow for a moment is sent away
            query = {"watch": "1", "resourceVersion": self._since}
            async with self._session.get(PODS, params=query, timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20) as response:
                async for line in response.content:
                    pod = decoder.decode(line).object
                    self._since = pod.metadata.resource_version
                    self._see(pod)

    async def all_in(self, times: Mapping[str, float]) -> None:
        """Return once all pods of the round are in one of the three."""
        while len(times) < self._count:
            self._changed.clear()
            await self._changed.wait()

    def _see(self, pod: _Object) -> None:
        name = pod.metadata.name
        if name not in self.created or not pod.spec.node_name:
            return
        self.bound.setdefault(name, time.monotonic())
        if pod.metadata.annotations.get(keys.BIND_PHASE) == "success":
            self.recorded.setdefault(name, time.monotonic())
        if self._count in (len(self.bound), len(self.recorded)):
            self._changed.set()


async def place(
    session: aiohttp.ClientSession, tag: str, count: int, programs: Mapping[str, ManagedProcess], *, keeps_records: bool
) -> Round:
    """Create ``count`` pods and wait until the last is bound, and where somebody ``keeps_records`` until the last one's success is written."""
    listing = await (await session.get(PODS, params={"limit": "1"})).json()
    pods = Followed(session, count, listing["metadata"]["resourceVersion"])
    before = await calls(session)

    async def create(number: int) -> None:
        name = f"{tag}-{number}"
        pods.created[name] = time.monotonic()
        await _done(session.post(PODS, json=_pod(name)))

    try:
        async with asyncio.timeout(LONGEST_SECONDS), asyncio.TaskGroup() as group:
            following = group.create_task(pods.follow())
            await asyncio.sleep(0.3)
            spent_before = processor_seconds(programs)
            begin = time.monotonic()
            await _some_at_a_time((lambda number=number: create(number) for number in range(count)), AT_ONCE)
            await pods.all_in(pods.bound)
            if keeps_records:
                await pods.all_in(pods.recorded)
            await asyncio.sleep(2.0)  # what follows a Binding is counted too
            following.cancel()
    except TimeoutError:
        done = f"{len(pods.bound)} of {count} pods are bound, {len(pods.recorded)} recorded as served"
        raise TimeoutError(f"{tag}: {done} after {LONGEST_SECONDS:.0f} s") from None
    spent_after = processor_seconds(programs)
    after = await calls(session)
    ours = ("pods/binding POST", "pods PATCH", "pods GET", "pods PUT")
    spent = sum(after.get(key, 0) - before.get(key, 0) for key in ours)
    return Round(
        pods_per_second=count / (max(pods.bound.values()) - begin),
        recorded_per_second=count / (max(pods.recorded.values()) - begin) if keeps_records else 0.0,
        waits_seconds=[pods.bound[name] - pods.created[name] for name in pods.bound],
        calls_per_pod=spent / count,
        processor_ms={name: 1000 * (seconds - spent_before.get(name, 0.0)) / count for name, seconds in spent_after.items()},
    )


async def clear(session: aiohttp.ClientSession) -> None:
    """Remove all pods, without waiting for a kubelet that is not there."""
    await _done(session.delete(PODS, json={"gracePeriodSeconds": 0, "propagationPolicy": "Background"}))
    await asyncio.sleep(SETTLING_SECONDS)


async def calls(session: aiohttp.ClientSession) -> dict[str, float]:
    """How often the API server was called, by resource and verb, lists and watches apart."""
    counted: dict[str, float] = {}
    async with session.get("/metrics") as answer:
        text = await answer.text()
    for labels, value in _METRIC.findall(text):
        known = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        resource = known["resource"] + (f"/{known['subresource']}" if known["subresource"] else "")
        key = f"{resource} {known['verb']}"
        counted[key] = counted.get(key, 0) + float(value)
    return counted


def processor_seconds(programs: Mapping[str, ManagedProcess]) -> dict[str, float]:
    """What each running program, and this one, have taken of the processor so far."""
    pids = {name: process.pid for name, process in programs.items() if process.pid}
    spent = {}
    for name, pid in {**pids, "benchmark": os.getpid()}.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _pod(name: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "10"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    spec = {"schedulerName": "hami-scheduler", "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def _done(request: Any) -> None:
    async with request as answer:
        text = await answer.text()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{answer.method} {answer.url.path}: {answer.status} {text[:500]}")


async def _some_at_a_time(works: Iterable[Callable[[], Awaitable[None]]], width: int) -> None:
    waiting = iter(works)

    async def worker() -> None:
        for work in waiting:
            await work()

    await asyncio.gather(*(worker() for _ in range(width)))

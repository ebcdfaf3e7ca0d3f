"""Processor time that scheduler and registry take for one pod, from its creation to ``success``: the services as processes, with real NATS.

The development API server is in this process, which also plays kube-scheduler (filter, then bind, one pod at a time) and every node's agent.
Processor time, unlike pods per second, hardly depends on what else the machine does. ``python -m benchmarks.pod_cost --nodes 100 --pods 500``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import _report, _world
from benchmarks._agents import agents
from benchmarks.startup import body
from hami_protocol import keys, subjects
from hami_rig.apiserver import ApiServer
from hami_rig.processes import ManagedProcess
from hami_runtime import lifecycle, logs
from hami_runtime.bus import jetstream
from hami_runtime.bus.port import Bus
from hami_runtime.kube.store_resources import NODES, PODS

CARDS: Final = 8
WARM_PODS: Final = 20
LONGEST_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.05
SERVICES: Final = ("scheduler", "registry")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=500, help="of which each takes a share of one card")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    logs.configure("warning", "benchmark")
    found = lifecycle.run(measure(options.nodes, options.pods, options.rounds))
    where = f"{options.nodes} nodes x {CARDS} cards"
    _report.report(
        "pod_cost",
        [_report.measurement(f"{name}'s processor time of a pod, {where}", samples, unit="ms") for name, samples in found.items()],
        as_json=options.json,
    )


async def measure(nodes: int, pods: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of processor time for one pod, by service, in each round."""
    async with ApiServer() as server, programs(server) as (url, processes), jetstream.connect(url, name="benchmark") as bus, streams(bus):
        for node in _world.nodes(nodes, CARDS):
            server.store.create(NODES, body(node))
        extender = f"http://127.0.0.1:{(await processes['scheduler'].ready(timeout_seconds=60))['extender']}"
        async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
            names = [_world.node_name(number) for number in range(nodes)]
            await place(server, extender, session, names, "warm", WARM_PODS)
            found: dict[str, list[float]] = {name: [] for name in SERVICES}
            for number in range(rounds):
                before = {name: processor_seconds(processes[name].pid) for name in SERVICES}
                await place(server, extender, session, names, f"p{number}", pods)
                for name in SERVICES:
                    found[name].append(1000 * (processor_seconds(processes[name].pid) - before[name]) / pods)
    return found


@asynccontextmanager
async def programs(server: ApiServer) -> AsyncIterator[tuple[str, Mapping[str, ManagedProcess]]]:
    """NATS and the two services: where NATS is, and their processes by name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig)
        program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin") or "nats-server"
        arguments = ["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir", name, "--ports_file_dir", name]
        nats = ManagedProcess("nats", [program, *arguments], folder=folder, environ=os.environ)
        running = {"nats": nats}
        try:
            await nats.start()
            ports = folder / f"nats-server_{nats.pid}.ports"
            await until(ports.exists)
            url = msgspec.json.decode(ports.read_bytes())["nats"][0]
            for service in SERVICES:
                process = ManagedProcess(
                    service, [sys.executable, "-c", f"from hami_{service}.main import main; main()"], folder=folder, environ={}
                )
                process.environ = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")} | {
                    "HAMI_KUBECONFIG": str(kubeconfig),
                    "HAMI_NATS_URL": url,
                    "HAMI_READY_FILE": str(process.ready_file),
                    "HAMI_LOG_LEVEL": "warning",
                }
                running[service] = process
                await process.start()
                await process.ready(timeout_seconds=60)
            yield url, running
        finally:
            for process in reversed(running.values()):
                await process.stop(grace_seconds=10)


@asynccontextmanager
async def streams(bus: Bus) -> AsyncIterator[None]:
    """The agents, once there are streams."""
    await bus.wait_connected()
    await bus.ensure_streams(subjects.STREAMS)
    async with agents(bus):
        yield


async def place(server: ApiServer, extender: str, session: aiohttp.ClientSession, nodes: list[str], tag: str, count: int) -> None:
    """Create pods, place each as kube-scheduler would, and return when all are recorded as allocated."""
    created = [await asked(session, f"{server.url}/api/v1/namespaces/default/pods", a_pod(f"{tag}-{number}")) for number in range(count)]
    for pod in created:
        answer = await asked(session, f"{extender}/filter", {"Pod": pod, "NodeNames": nodes})
        named = {"PodName": pod["metadata"]["name"], "PodNamespace": "default", "PodUID": pod["metadata"]["uid"]}
        await asked(session, f"{extender}/bind", {**named, "Node": answer["NodeNames"][0]})

    def recorded() -> bool:
        stored = (server.store.get(PODS, pod["metadata"]["name"], "default").body for pod in created)
        return all(each["metadata"].get("annotations", {}).get(keys.BIND_PHASE) == "success" for each in stored)

    await until(recorded)


async def asked(session: aiohttp.ClientSession, url: str, question: dict[str, Any]) -> dict[str, Any]:
    """The answer; asked again as long as the extender is not able to decide yet."""
    async with asyncio.timeout(LONGEST_SECONDS):
        while True:
            async with session.post(url, data=msgspec.json.encode(question)) as response:
                answer: dict[str, Any] = msgspec.json.decode(await response.read())
            if not answer.get("Error") and answer.get("NodeNames", True):
                return answer
            await asyncio.sleep(LOOK_SECONDS)


def a_pod(name: str) -> dict[str, Any]:
    """A pod that takes a share, with the record of its fields that a real API server puts on it."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "1"}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    fields = {f"f:field{place}": {"f:nested": {}} for place in range(40)}
    managed = [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}]
    metadata = {"name": name, "namespace": "default", "managedFields": managed}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulerName": "hami-scheduler", "containers": [container]}}


async def until(condition: Any) -> None:
    """Return once ``condition`` holds."""
    async with asyncio.timeout(LONGEST_SECONDS):
        while not condition():  # noqa: ASYNC110 - other processes' doing
            await asyncio.sleep(LOOK_SECONDS)


def processor_seconds(pid: int) -> float:
    """What a process has taken of the processor so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

"""The usage report as HTML, of a rig whose cluster is large: from the command to the last byte on disk, API server and bus asked as by anybody.

Nodes and pods are API objects, nodes' use is on the bus. ``python -m benchmarks.usage_report --nodes 200 --pods 2000``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks import _report, _world
from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage
from hami_protocol.kubernetes import Pod
from hami_rig import profile
from hami_rig.service_settings import SCHEDULER
from hami_rig.supervisor import Rig
from hami_runtime import logs
from hami_runtime.bus import jetstream
from hami_runtime.bus.port import Bus
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES, PODS, Cluster

CARDS = 8
AT_ONCE = 16
TRIES = 5
T = TypeVar("T")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    logs.configure("warning", "benchmark")
    asyncio.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Fill a rig, and write the report a few times, each in a process of its own."""
    async with filled(options.nodes, options.pods, quiet=options.json) as rig:
        path = rig.folder / "report.html"
        samples = [await written(rig, path) for _ in range(TRIES)]
        size = await asyncio.to_thread(path.stat)
        if not options.json:
            print(f"{size.st_size / 1024:.0f} KiB", file=sys.stderr)
    name = f"hami report -o html, {options.nodes} nodes, {options.pods} pods"
    walls, processors = zip(*samples, strict=True)
    figures = [_report.measurement(name, walls, unit="s"), _report.measurement("  processor time of the command", processors, unit="s")]
    _report.report("usage_report", figures, as_json=options.json)


async def written(rig: Rig, path: Path) -> tuple[float, float]:
    """Seconds that one report takes, by the clock and of its own processor time: a machine that does other things besides spoils the former."""
    environ = os.environ | {"KUBECONFIG": str(rig.kubeconfig), "NATS_URL": rig.nats_url}
    begin, before = time.perf_counter(), _processor_seconds()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from hami_cli.main import main; main()", "report", "-o", "html", "--file", str(path), env=environ
    )
    if await process.wait():
        raise SystemExit("the report was not written")
    return time.perf_counter() - begin, _processor_seconds() - before


def _processor_seconds() -> float:
    """Of all programs that we have waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@asynccontextmanager
async def filled(nodes: int, pods: int, *, quiet: bool) -> AsyncIterator[Rig]:
    """A rig of one node of its own, with so many more in its cluster."""
    say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))
    async with Rig(profile.of_nodes(1), log_level="error", say=say) as rig:
        scheduler = rig.folder / "kubeconfigs" / SCHEDULER
        async with http.connect(str(scheduler)) as cluster, jetstream.connect(rig.nats_url, name="benchmark") as bus:
            say(f"making {nodes} nodes and {pods} pods")
            await bus.wait_connected()
            await _all(_world.nodes(nodes, CARDS), lambda node: cluster.create(NODES, {"metadata": _plain(node.metadata)}))
            placed = list(_world.placed_pods(pods, nodes, CARDS))
            uids = await _all(placed, lambda pod: _create(cluster, pod))
            by_node: dict[str, list[tuple[Pod, str]]] = {}
            for pod, uid in zip(placed, uids, strict=True):
                by_node.setdefault(pod.spec.node_name, []).append((pod, uid))
            await _all(by_node.items(), lambda each: _measured(bus, *each))
        yield rig


async def _create(cluster: Cluster, pod: Pod) -> str:
    """The pod as it is once it runs: made first, then given its annotations by the scheduler's account, as the webhook lets nobody else."""
    name, node = pod.metadata.name, pod.spec.node_name
    body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]}}
    made = await cluster.create(PODS, body, namespace="default")
    await cluster.patch(PODS, name, {"metadata": {"annotations": pod.metadata.annotations}}, namespace="default")
    return made.metadata.uid


async def _measured(bus: Bus, node: str, pods: list[tuple[Pod, str]]) -> None:
    """What the node's agent would have measured."""
    containers = tuple(
        ContainerUsage(
            pod=PodRef(namespace="default", name=pod.metadata.name, uid=uid),
            container="main",
            devices=(
                DeviceUsage(
                    uuid=pod.metadata.annotations[_world.ALLOCATED].partition(",")[0],
                    memory_used_mib=6000,
                    memory_limit_mib=10000,
                    sm_percent=7,
                ),
            ),
        )
        for pod, uid in pods
    )
    time = datetime.now(UTC).isoformat()
    await bus.publish(seal(NodeUsage(node=node, containers=containers), event_id=f"{node}/usage", source="/benchmark", time=time))


async def _all(items: Iterable[T], do: Callable[[T], Awaitable[object]]) -> list[str]:
    """Do it for all, a few at once; what each returned, as text."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> str:
        async with room:
            return str(await do(item))

    return await asyncio.gather(*(one(item) for item in items))


def _plain(metadata: msgspec.Struct) -> dict[str, object]:
    """What of an object's metadata its maker says."""
    given = msgspec.to_builtins(metadata)
    return {"name": given["name"], "annotations": given["annotations"]}


if __name__ == "__main__":
    main()

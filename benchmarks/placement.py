"""Pods per second through a whole rig, from creation to bound and to allocated, and how many API calls of ours each pod takes.

Everything is on this machine: the development API server, kube-scheduler's stand-in, kubelets and an agent per node share its cores.
``python -m benchmarks.placement --nodes 3 --pods 120 --mode cdi``

With ``--cluster`` the API server and kube-scheduler are real ones, nodes are API objects, and a null extender is measured beside ours in the same
run: ``python -m benchmarks.placement --cluster --nodes 1000 --pods 400``. It needs what ``make cluster-test`` needs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

import aiohttp
import msgspec

from benchmarks import _report
from hami_protocol import keys
from hami_rig import profile
from hami_rig.supervisor import Rig
from hami_runtime import logs
from hami_runtime.kube import http
from hami_runtime.kube.cluster import PODS, Cluster

AT_ONCE = 16
LONGEST_SECONDS = 120.0
OURS = "hami"
BACKGROUND = {"leases", "events"}
HEARTBEATS_BY = "hami-registry"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--pods", type=int, default=120)
    parser.add_argument("--mode", choices=["cdi", "envvar"], default="cdi")
    parser.add_argument("--cluster", action="store_true", help="on a real API server and kube-scheduler, against a null extender")
    parser.add_argument("--rounds", type=int, default=3, help="with --cluster: of each extender, in turn")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    logs.configure("warning", "benchmark")
    asyncio.run(measure_cluster(options) if options.cluster else measure(options))


async def measure_cluster(options: argparse.Namespace) -> None:
    """Measure on a real control plane, and report."""
    from benchmarks import _cluster  # it starts what only some machines can

    say = (lambda text: None) if options.json else (lambda text: print(text, file=sys.stderr))
    found = await _cluster.measure(options.nodes, options.pods, options.rounds, say=say)
    _report.report(f"placement_cluster_{options.nodes}_nodes", found, as_json=options.json)


async def measure(options: argparse.Namespace) -> None:
    """Start a rig, place the pods, report."""
    group: dict[str, Any] = {
        "prefix": "node-",
        "count": options.nodes,
        "allocation_mode": options.mode,
        "devices": {"count": 8, "device": {"memory_mib": 81920, "model": "NVIDIA A100-SXM4-80GB"}},
        "pods": 1000,
    }
    if options.pods > options.nodes * 80:
        sys.exit(f"--pods: {options.pods} do not fit; accepted: up to {options.nodes * 80} on {options.nodes} nodes")
    say = (lambda text: None) if options.json else (lambda text: print(text, file=sys.stderr))
    nodes = profile.parse(msgspec.json.encode({"nodes": [group]}).decode())
    async with (
        Rig(nodes, log_level="warning", say=say) as rig,
        http.connect(str(rig.kubeconfig), user_agent="benchmark") as cluster,
        aiohttp.ClientSession(_server(rig)) as session,
    ):
        async with session.delete("/rig/requests"):
            pass
        bound, done = await place(cluster, options.pods)
        async with session.get("/rig/requests") as answer:
            rows = (await answer.json())["requests"]
    calls = sum(row["count"] for row in rows if is_ours(row))
    where = f"{options.mode}, {options.nodes} nodes"
    _report.report(
        f"placement_{options.mode}",
        [
            _report.measurement(f"created to bound, {where}", [options.pods / max(bound)], unit="pods/s"),
            _report.measurement(f"created to allocated, {where}", [options.pods / max(done)], unit="pods/s"),
            _report.measurement(f"wait until bound, {where}", bound, unit="s"),
            _report.measurement(f"API calls per pod, {where}", [calls / options.pods], unit="calls"),
        ],
        as_json=options.json,
    )


def is_ours(row: dict[str, Any]) -> bool:
    """Whether our services made the call for a pod: heartbeats, leases, events and watches aside."""
    if not str(row["user_agent"]).startswith(OURS) or row["verb"] in ("list", "watch"):
        return False
    heartbeat = row["resource"] == "nodes" and row["user_agent"] == HEARTBEATS_BY
    return row["resource"] not in BACKGROUND and not heartbeat


async def place(cluster: Cluster, count: int) -> tuple[list[float], list[float]]:
    """Create ``count`` pods and watch them; seconds from the first creation until each was bound, and until each was allocated."""
    bound: dict[str, float] = {}
    done: dict[str, float] = {}
    since = (await cluster.list(PODS)).resource_version
    begin = time.monotonic()
    async with asyncio.timeout(LONGEST_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(create(cluster, count))
        async with cluster.watch(PODS, since=since) as changes:
            async for change in changes:
                pod = change.object
                if pod is not None and pod.spec.node_name:
                    bound.setdefault(pod.metadata.uid, time.monotonic() - begin)
                    if pod.metadata.annotations.get(keys.BIND_PHASE) == "success" and pod.status.phase == "Running":
                        done.setdefault(pod.metadata.uid, time.monotonic() - begin)
                if len(done) == count:
                    break
    return list(bound.values()), list(done.values())


async def create(cluster: Cluster, count: int) -> None:
    """Create the pods, some at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        body = {"metadata": {"name": f"pod-{number}", "namespace": "default"}, "spec": {"containers": [container]}}
        async with turns:
            await cluster.create(PODS, body, namespace="default")

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


def _server(rig: Rig) -> str:
    return str(msgspec.yaml.decode(rig.kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"])


if __name__ == "__main__":
    main()

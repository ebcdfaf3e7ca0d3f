"""One filter call over HTTP, as kube-scheduler sends it: names of all nodes, in another order at every call, to a cluster full of placed pods.

The server is measured from the request's arrival to the answer's bytes, the client from writing the request to having the whole answer; the client is
a process of its own. ``python -m benchmarks.filter --nodes 10000 --cards 8 --pods 40000``
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import math
import random
import sys
import time
import urllib.parse
from typing import Any, Final

import msgspec

from benchmarks import _report, _world
from hami_devices.catalog import Catalog
from hami_runtime import lifecycle
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.clock import SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_scheduler import collector, extender
from hami_scheduler.forwarding import forwarding
from hami_scheduler.service import Scheduler

WARM_UP_CALLS: Final = 10
GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
ALL_DIFFERENT: Final = "no two alike"


def mixes(cards: int) -> dict[str, dict[str, Any]]:
    """Limits and annotations of the pods, by what they stand for; of ``ALL_DIFFERENT`` each pod asks for another amount."""
    return {
        "one share": {"limits": {GPU: "1", MEMORY: "2k"}, "annotations": {}},
        "all cards": {"limits": {GPU: str(cards), MEMORY: "1k"}, "annotations": {}},
        "one node in 100": {"limits": {GPU: "1", MEMORY: "2k"}, "annotations": {"nvidia.com/use-gputype": "H100"}},
        "linked cards": {"limits": {GPU: "4", MEMORY: "1k"}, "annotations": {"hami.io/gpu-scheduler-policy": "topology-aware"}},
        "fits nowhere": {"limits": {GPU: "1", MEMORY: "90k"}, "annotations": {}},
        ALL_DIFFERENT: {"limits": {GPU: "1", MEMORY: "2k"}, "annotations": {}},
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, default=40_000, help="placed before the first call")
    parser.add_argument("--calls", type=int, default=200, help="of each kind of pod")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        sys.stdout.buffer.write(msgspec.json.encode(call(options)))
    else:
        lifecycle.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Serve a full cluster in this process, and call it from another one."""
    clock = SystemClock()
    cluster = MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1)))
    scheduler = Scheduler(cluster=cluster, bus=MemoryBus(), clock=clock, catalog=Catalog(), identity="benchmark")
    for node in _world.nodes(options.nodes, options.cards):
        scheduler.picture.node_changed(None, node)
    for pod in _world.placed_pods(options.pods, options.nodes, options.cards):
        scheduler.picture.pod_changed(None, pod)
    for informer in (scheduler.nodes, scheduler.pods, scheduler.quotas):
        informer.synced.set()
    collector.set_aside()
    server = _Durations(scheduler)
    async with forwarding() as forwarder, serve_app(extender.application(scheduler, forwarder)) as port:
        arguments = [f"--{name}={getattr(options, name)}" for name in ("nodes", "cards", "calls")]
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.filter", f"--client=http://127.0.0.1:{port}", *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await client.communicate()
    seconds = msgspec.json.decode(output, type=dict[str, list[float]])
    where = f"{options.nodes} nodes x {options.cards} cards, {options.pods} pods"
    measurements = []
    for number, mix in enumerate(seconds):
        served = server.seconds[number * (options.calls + WARM_UP_CALLS) :][WARM_UP_CALLS : WARM_UP_CALLS + options.calls]
        measurements.append(_report.measurement(f"filter, {mix}, server, {where}", [1000 * each for each in served], unit="ms"))
        measurements.append(_report.measurement(f"filter, {mix}, client, {where}", [1000 * each for each in seconds[mix]], unit="ms"))
    _report.report(f"filter_{options.nodes}_nodes", measurements, as_json=options.json)


def call(options: argparse.Namespace) -> dict[str, list[float]]:
    """Act as kube-scheduler: seconds of every call, by kind of pod."""
    names = [_world.node_name(place) for place in range(options.nodes)]
    chance = random.Random(1)
    connection = http.client.HTTPConnection(urllib.parse.urlparse(options.client).netloc)
    found: dict[str, list[float]] = {}
    for mix, ask in mixes(options.cards).items():
        found[mix] = []
        for number in range(options.calls + WARM_UP_CALLS):
            chance.shuffle(names)
            if mix == ALL_DIFFERENT:
                ask["limits"][MEMORY] = str(2000 + number)
            body = msgspec.json.encode({"Pod": pod(f"{mix.replace(' ', '-')}-{number}", ask), "Nodes": None, "NodeNames": names})
            started = time.perf_counter()
            connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
            answer = connection.getresponse().read()
            if number >= WARM_UP_CALLS:
                found[mix].append(time.perf_counter() - started)
            decoded = msgspec.json.decode(answer)
            if decoded["Error"] or bool(decoded["NodeNames"]) is (mix == "fits nowhere"):
                raise SystemExit(f"{mix}: an answer that was not expected: {answer[:500]!r}")
    return found


def pod(name: str, ask: dict[str, Any]) -> dict[str, Any]:
    """A pod as kube-scheduler sends it, with the usual ballast."""
    resources = {"limits": ask["limits"], "requests": ask["limits"]}
    mount = {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "12345",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "benchmark"},
            "annotations": ask["annotations"],
        },
        "spec": {
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3607}}]}}],
            "containers": [{"name": "main", "image": "registry/image:1", "resources": resources, "volumeMounts": [mount]}],
            "restartPolicy": "Always",
            "schedulerName": "hami-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "priority": 0,
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


class _Durations:
    """Stands in for the histogram of filter's time: keeps every value, and takes the reservation back, so that every call finds the same cluster."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.seconds: list[float] = []
        self._state = scheduler.picture.state
        scheduler.metrics.filter_seconds = self  # type: ignore[assignment]

    def record(self, value: float) -> None:
        """Take one call's time."""
        self.seconds.append(value)
        for uid in self._state.expired(math.inf):
            self._state.release(uid)


if __name__ == "__main__":
    main()

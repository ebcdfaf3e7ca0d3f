"""What grows with nodes, cards, pods and events: ``docs/scale.md``, in processor time and bytes, so that a busy machine shows the same figures.

Clusters of several sizes, each with 8 cards a node and 4 pods a node that hold a part of a card. What services keep and do is the real code; kubelets
and containers are left out. ``python -m benchmarks.scale`` (a few minutes), ``python -m benchmarks.scale --nodes 100 1000`` for less.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from benchmarks import _report, _world, filter_core, startup
from benchmarks._report import Measurement
from hami_devices.catalog import Catalog
from hami_protocol import registration
from hami_protocol.devices import AllocationMode
from hami_protocol.envelope import open_message, seal
from hami_protocol.events import DevicesReported
from hami_rig.apiserver import ApiServer
from hami_runtime import lifecycle
from hami_runtime.kube.store_resources import NODES, PODS
from hami_scheduler import collector, series
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState

CARDS: Final = 8
PODS_A_NODE: Final = 4
MIB: Final = 1 << 20
REPORTS: Final = 500
LONGEST_SECONDS: Final = 1800.0
"""A busy machine takes its time; what is reported is processor time."""
WIRE: Final = _report.ROOT / "tests" / "contract" / "wire"
WAY: Final = ("pod_assigned", "pod_allocating", "container_served", "allocation_succeeded", "pod_released")
"""What the log of grants keeps of one pod with one container."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    found = [*of_one_node(), *of_one_pod()]
    for count in options.nodes:
        found += of_cluster(count)
        lifecycle.run(_append_process(found, count))
        if not options.json:  # a large cluster takes its time: what there is already is kept
            _report.report("scale", found)
    if options.json:
        _report.report("scale", found, as_json=True)


def one(name: str, value: float, unit: str) -> Measurement:
    """A figure that is what it is."""
    return _report.measurement(name, [round(value, 3)], unit=unit)


def of_one_node() -> list[Measurement]:
    """What one node costs, whatever the cluster's size."""
    event = a_report(0)
    message = seal(event, event_id="e", source="/hami/node-agent/n", time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    (node,) = _world.nodes(1, CARDS)
    state = ClusterState(Catalog())
    inventory = Inventory(state, Catalog())

    def taken() -> None:
        inventory.reported(open_message(message))  # type: ignore[arg-type] # it is what was sealed

    return [
        one(f"heartbeat of {CARDS} cards", len(message.data) + sum(len(key) + len(value) for key, value in message.headers.items()), "B"),
        one(f"node with {CARDS} cards, as the API server sends it", len(msgspec.json.encode(node)), "B"),
        one("heartbeat that changes nothing, taken by the scheduler", 1e6 * cpu_seconds(taken, REPORTS), "us"),
    ]


def of_one_pod() -> list[Measurement]:
    """What one pod costs, whatever the cluster's size."""
    recorded = [json.loads(path.read_text()) for kind in WAY for path in sorted(WIRE.glob(f"*-{kind}.json"))[-1:]]
    kept = sum(len(json.dumps(each["body"])) + sum(len(key) + len(value) for key, value in each["headers"].items()) for each in recorded)
    (pod,) = _world.placed_pods(1, 1, CARDS)
    return [
        one("log of grants, a pod from assignment to release", kept, "B"),
        one("pod, as the API server sends it", len(msgspec.json.encode(pod)), "B"),
    ]


def of_cluster(count: int) -> list[Measurement]:
    """What a whole cluster costs the scheduler."""
    where = f"{count} nodes"
    made: list[ClusterState] = []
    built = cpu_seconds(lambda: made.append(filter_core.full_cluster(count, CARDS, PODS_A_NODE * count)), 1)
    (state,) = made
    collector.set_aside()
    names = msgspec.json.encode(filter_core.shuffled(count))
    request = filter_core.a_request(*filter_core.mixes(CARDS)["one share"])
    candidates = [msgspec.json.decode(names, type=list[str]) for _ in range(20)]
    decision = cpu_seconds(lambda: state.judge(request, candidates.pop(), uid="uid-asking"), len(candidates))
    page, longest, began = 0, 0.0, time.process_time()
    scrape = began
    for piece in series.pieces(state):
        page += len(piece)
        now = time.process_time()
        began, longest = now, max(longest, now - began)
    scraped = time.process_time() - scrape
    gc.unfreeze()
    return [
        one(f"state built from nodes and pods, {where}", built, "s"),
        one(f"decision, one share, {where}", 1000 * decision, "ms"),
        one(f"scrape of the scheduler, {where}", scraped, "s"),
        one(f"longest piece of a scrape, {where}", 1000 * longest, "ms"),
        one(f"page of metrics, {where}", page / MIB, "MiB"),
    ]


async def _append_process(found: list[Measurement], count: int) -> None:
    """The scheduler's process against an API server with such a cluster."""
    async with ApiServer() as server:
        for node in _world.nodes(count, CARDS):
            server.store.create(NODES, startup.body(node))
        for pod in _world.placed_pods(PODS_A_NODE * count, count, CARDS):
            server.store.create(PODS, startup.body(pod), "default")
        started = await startup.start(server, longest_seconds=LONGEST_SECONDS)
    found.append(one(f"scheduler's memory, {count} nodes", started.memory_mib, "MiB"))
    found.append(one(f"scheduler's processor time from start to ready, {count} nodes", started.processor_seconds, "s"))


def a_report(place: int) -> DevicesReported:
    """What a node's agent says every half a minute."""
    (node,) = _world.nodes(1, CARDS)
    devices = registration.decode(next(value for key, value in node.metadata.annotations.items() if key.endswith("-register")))
    return DevicesReported(
        node=_world.node_name(place), device_type="nvidia", generation=1, devices=devices, allocation_mode=AllocationMode.CDI
    )


def cpu_seconds(work: Callable[[], object], times: int) -> float:
    """Processor time of one run of ``work``, in the mean of ``times``."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


if __name__ == "__main__":
    main()

"""One placement decision without its shell: names of all nodes in, node and cards and reasons out, in a cluster full of placed pods.

``python -m benchmarks.filter_core --nodes 10000 --cards 8 --pods 40000`` (add ``--profile`` to see where the time goes)
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import resource
import time
from typing import Final

import msgspec

from benchmarks import _report, _world
from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_protocol import kubernetes, pods, registration
from hami_scheduler.placement import ClusterState
from hami_scheduler.placement.remembered import Remembered

GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
TYPE: Final = "nvidia.com/use-gputype"
POLICY: Final = "hami.io/gpu-scheduler-policy"


def mixes(cards: int) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Limits and annotations of the pods, by what they stand for."""
    return {
        "one share": ({GPU: "1", MEMORY: "2k"}, {}),
        "all cards": ({GPU: str(cards)}, {}),
        "one node in 100": ({GPU: "1", MEMORY: "2k"}, {TYPE: "H100"}),
        "linked cards": ({GPU: "4", MEMORY: "1k"}, {POLICY: "topology-aware"}),
        "fits nowhere": ({GPU: "1", MEMORY: "90k"}, {}),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, default=40_000, help="placed before the first decision")
    parser.add_argument("--calls", type=int, default=200, help="of each kind of pod")
    parser.add_argument("--profile", action="store_true", help="print a profile of each kind instead of figures")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    state = full_cluster(options.nodes, options.cards, options.pods)
    gc.collect()
    gc.freeze()
    names = msgspec.json.encode(shuffled(options.nodes))
    where = f"{options.nodes} nodes"
    measurements = []
    for kind, (limits, written) in mixes(options.cards).items():
        request = a_request(limits, written)
        if options.profile:
            print_profile(state, request, names)
        else:
            samples = decide(state, request, names, options.calls)
            measurements.append(_report.measurement(f"decision, {kind}, {where}", samples, unit="ms"))
    if not options.profile:
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        measurements.append(_report.measurement(f"decision, memory of the process, {where}", [mib], unit="MiB"))
        _report.report("filter_core", measurements, as_json=options.json)


def full_cluster(nodes: int, cards: int, placed: int) -> ClusterState:
    """The state of the benchmarks' cluster."""
    catalog = Catalog()
    state = ClusterState(catalog)
    vendor = catalog.vendor("NVIDIA")
    for node in _world.nodes(nodes, cards):
        devices = registration.decode(node.metadata.annotations[vendor.register_key])
        state.upsert_node(node.metadata.name, {vendor.name: devices})
    for pod in _world.placed_pods(placed, nodes, cards):
        state.charge(pods.pod_ref(pod), pod.spec.node_name, catalog.read_assignments(pod), shrunk=False)
    return state


def a_request(limits: dict[str, str], annotations: dict[str, str]) -> PodRequest:
    """What a pod with these limits and annotations asks."""
    container = kubernetes.Container(name="main", resources=kubernetes.ResourceRequirements(limits=dict(limits)))
    metadata = kubernetes.ObjectMeta(name="asking", namespace="default", uid="uid-asking", annotations=annotations)
    return Catalog().read_pod(kubernetes.Pod(metadata=metadata, spec=kubernetes.PodSpec(containers=(container,))))


def shuffled(nodes: int) -> list[str]:
    """The names of all nodes, in no order."""
    names = [_world.node_name(place) for place in range(nodes)]
    random.Random(1).shuffle(names)
    return names


def decide(state: ClusterState, request: PodRequest, names: bytes, calls: int) -> list[float]:
    """Milliseconds of each decision, as of a request that nobody has made before; the names are new objects, as they are when they come over HTTP."""
    samples = []
    for _ in range(calls):
        candidates = msgspec.json.decode(names, type=list[str])
        state.remembered = Remembered()
        started = time.perf_counter()
        state.judge(request, candidates, uid="uid-asking")
        samples.append((time.perf_counter() - started) * 1000)
    return samples


def print_profile(state: ClusterState, request: PodRequest, names: bytes) -> None:
    """Where the time of 50 decisions goes."""
    with cProfile.Profile() as profile:
        decide(state, request, names, 50)
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()

"""Reading what a cluster is rebuilt from: registrations, assignments, pods as JSON, and what pods ask.

``python -m benchmarks.decode``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks import _report, _world
from hami_devices.catalog import Catalog
from hami_protocol import kubernetes, registration


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--objects", type=int, default=1_000, help="different ones of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    catalog = Catalog()
    nodes = list(_world.nodes(options.objects, 8))
    pods = list(_world.placed_pods(options.objects, options.objects, 8))
    texts = [node.metadata.annotations[catalog.vendor("NVIDIA").register_key] for node in nodes]
    devices = [registration.decode(text) for text in texts]
    read_pod = msgspec.json.Decoder(kubernetes.Pod).decode
    _report.report(
        "decode",
        [
            measure("decode, registration of 8 cards, text", registration.decode, texts),
            measure("decode, registration of 8 cards, JSON", registration.decode, [registration.encode_json(each) for each in devices]),
            measure("decode, pod as JSON", read_pod, [msgspec.json.encode(pod) for pod in pods]),
            measure("decode, what a pod holds", catalog.read_assignments, pods),
            measure("decode, what a pod asks", catalog.read_pod, pods),
        ],
        as_json=options.json,
    )


def measure(name: str, read: Callable[[Any], object], inputs: Sequence[object]) -> _report.Measurement:
    """Microseconds per input, each read once."""
    samples = []
    for each in inputs:
        started = time.perf_counter()
        read(each)
        samples.append((time.perf_counter() - started) * 1e6)
    return _report.measurement(name, samples, unit="us")


if __name__ == "__main__":
    main()

"""Patches of nodes that the registry makes while every node's agent reports each 30 s: virtual time, its own rules, every write done at once.

``python -m benchmarks.node_patches``
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from datetime import UTC, datetime, timedelta

from benchmarks import _report
from hami_devices.catalog import Catalog
from hami_protocol.devices import RegisteredDevice
from hami_protocol.events import DevicesReported
from hami_registry.commands import Outcome, PatchNode
from hami_registry.rules import NodeSeen, Rules

START = datetime(2026, 1, 1, tzinfo=UTC)
REPORT_SECONDS = 30
LOOKS_A_SECOND = 20


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 500, 1_000, 10_000], help="how many")
    parser.add_argument("--seconds", type=int, default=300, help="of virtual time, the first third of it to settle")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    found = [each for nodes in options.nodes for each in measure(nodes, options.seconds)]
    _report.report("node_patches", found, as_json=options.json)


def measure(nodes: int, seconds: int) -> list[_report.Measurement]:
    """Patches in each second, the most in any window of one, and what a second of this costs."""
    rules = Rules(Catalog().vendors)
    rules.nodes_synced()
    rules.take_over(0.0)
    reports = [_report_of(f"n{place}") for place in range(nodes)]
    for report in reports:
        rules.node_seen(NodeSeen(name=report.node, version="1", annotations={}, allocatable=frozenset()), 0.0)
    patched: list[float] = []
    costs: Counter[int] = Counter()
    sequence = 0
    for tick in range(seconds * LOOKS_A_SECOND):
        now = tick / LOOKS_A_SECOND
        began = time.perf_counter_ns()
        if now == int(now):
            for report in reports[int(now) % REPORT_SECONDS :: REPORT_SECONDS]:
                sequence += 1
                rules.reported(report, str(sequence), now)
        for command in rules.due(now, START + timedelta(seconds=now)):
            rules.settle(command, Outcome.DONE, now, sequence=sequence)
            if isinstance(command, PatchNode):
                patched.append(now)
        costs[int(now)] += time.perf_counter_ns() - began
    settled = range(seconds // 3, seconds)
    each_second = Counter(int(at) for at in patched)
    steady = [float(each_second[second]) for second in settled]
    return [
        _report.measurement(f"node patches, {nodes} nodes, steady", steady, unit="1/s"),
        _report.measurement(f"node patches, {nodes} nodes, most in any second", [float(_most(patched))], unit="1/s"),
        _report.measurement(f"node patches, {nodes} nodes, the registry's rules", [costs[second] / 1e6 for second in settled], unit="ms/s"),
    ]


def _most(times: list[float]) -> int:
    """The most in any window of a second."""
    window: deque[float] = deque()
    most = 0
    for at in times:
        window.append(at)
        while window[0] <= at - 1.0:
            window.popleft()
        most = max(most, len(window))
    return most


def _report_of(node: str) -> DevicesReported:
    device = RegisteredDevice(uuid=f"GPU-{node}", shares=10, memory_mib=24576, cores=100, type="NVIDIA-A10")
    return DevicesReported(node=node, device_type="nvidia", generation=1, devices=(device,))


if __name__ == "__main__":
    main()

"""How the time of one decision grows with the cluster: nanoseconds per node at 1,000 and at 10,000 nodes, and the ratio of the two.

``python -m benchmarks.growth``. The same cluster, ten times as large; decisions on both are made in turns and measured in time of the processor, so
that what else the machine does falls on both alike. Linear growth is a ratio of 1; fixed costs make it less. More than 1.2 fails.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import Final

import msgspec

from benchmarks import _report
from benchmarks.filter_core import a_request, full_cluster, mixes, shuffled
from hami_scheduler.placement.remembered import Remembered

LINEAR: Final = 1.2
"""So much of linear growth is within 20 percent of it."""
PODS_PER_NODE: Final = 4


def main() -> int:
    """Measure and report; 1 where something grows faster than it may."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", type=int, default=1_000, help="nodes of the small cluster")
    parser.add_argument("--large", type=int, default=10_000, help="nodes of the large cluster")
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--calls", type=int, default=60, help="of each kind of pod, on each cluster")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    sizes = (options.small, options.large)
    states = [full_cluster(nodes, options.cards, PODS_PER_NODE * nodes) for nodes in sizes]
    names = [msgspec.json.encode(shuffled(nodes)) for nodes in sizes]
    gc.collect()
    gc.freeze()
    measurements: list[_report.Measurement] = []
    fast: list[str] = []
    for kind, (limits, written) in mixes(options.cards).items():
        request = a_request(limits, written)
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.calls):
            for place, (state, encoded) in enumerate(zip(states, names, strict=True)):
                candidates = msgspec.json.decode(encoded, type=list[str])
                state.remembered = Remembered()
                started = time.thread_time_ns()
                state.judge(request, candidates, uid="uid-asking")
                samples[place].append((time.thread_time_ns() - started) / sizes[place])
        small, large = (
            _report.measurement(f"per node, {kind}, {nodes} nodes", taken, unit="ns") for nodes, taken in zip(sizes, samples, strict=True)
        )
        ratio = large.value / small.value
        measurements += [small, large, _report.measurement(f"growth, {kind}, 1 is linear", [ratio], unit="")]
        if ratio > LINEAR:
            fast.append(f"{kind}: {ratio:.2f}")
    _report.report("growth", measurements, as_json=options.json)
    if fast:
        print(f"grows faster than linear by more than 20 %: {', '.join(fast)}", file=sys.stderr)
    return 1 if fast else 0


if __name__ == "__main__":
    sys.exit(main())

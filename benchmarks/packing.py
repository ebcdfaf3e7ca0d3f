"""How well each policy packs: 20,000 pods that come and go, replayed on the placement core: ``python -m benchmarks.packing``.

Sizes, lifetimes and arrivals are drawn from a seed, the same for every policy; a pod that finds no place is refused and does not come again.
Printed are, over the time after the cluster has filled: cards in use, beside the least that would hold what is placed; fragmentation (of the free
memory, the part on cards in use, where no whole-card pod fits); and what was refused, in pods and in the time for which they wanted cards, beside the
least that must be refused: what all of them together want at any time beyond what the cluster has.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks import _report
from hami_devices.catalog import Catalog
from hami_devices.model import ContainerRequest, DeviceRequest, PodRequest
from hami_protocol.devices import ContainerKind, PodRef, RegisteredDevice
from hami_scheduler.placement import ClusterState, Placement

CARD_MIB: Final = 81920
CARDS: Final = 8
SIZES: Final = ((5, 40, 1), (10, 20, 1), (25, 20, 1), (50, 10, 1), (100, 7, 1), (100, 2, 2), (100, 1, 4))
"""Percent of a card (memory and cores), how often, on how many cards."""
LIFE_SECONDS: Final = 3600.0
LOAD: Final = 1.05
"""Of what the cluster holds, how much is asked for on average: some pods must be refused by anybody."""
WARM_UP: Final = 0.2
POLICIES: Final = (("binpack", "binpack"), ("binpack", "spread"), ("spread", "binpack"), ("spread", "spread"), ("binpack", "mutex"))
"""Of nodes and of cards."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod of the trace."""

    at: float
    until: float
    percent: int
    cards: int

    @property
    def hours(self) -> float:
        """For how long it wants a card, all of its parts put together."""
        return (self.until - self.at) / 3600 * self.wants

    @property
    def wants(self) -> float:
        """Cards, all of its parts put together."""
        return self.percent * self.cards / 100


def trace(pods: int, nodes: int, seed: int) -> Iterator[Arrival]:
    """The pods, in the order in which they come."""
    rng = random.Random(seed)
    mean = sum(percent * often * cards for percent, often, cards in SIZES) / sum(often for _, often, _ in SIZES) / 100
    per_second = LOAD * nodes * CARDS / (mean * LIFE_SECONDS)
    now = 0.0
    for _ in range(pods):
        now += rng.expovariate(per_second)
        percent, _, cards = rng.choices(SIZES, [often for _, often, _ in SIZES])[0]
        yield Arrival(now, now + rng.expovariate(1 / LIFE_SECONDS), percent, cards)


class Tally:
    """What is measured while a trace runs."""

    def __init__(self, pods: int) -> None:
        self._from = int(pods * WARM_UP)
        self.cards: list[float] = []
        self.least: list[float] = []
        self.fragmentation: list[float] = []
        self.refused = 0
        self.refused_hours = 0.0
        """Of one whole card."""

    def look(self, number: int, state: ClusterState, nodes: tuple[str, ...]) -> None:
        """Look at the cluster, now and then, once it has filled."""
        if number < self._from or number % 50:
            return
        used = [(s.used_memory_mib, s.used_cores) for node in nodes for s in state.devices(node) if s.used_shares]
        memory_mib, cores = sum(memory for memory, _ in used), sum(cores for _, cores in used)
        free = CARD_MIB * CARDS * len(nodes) - memory_mib
        self.cards.append(len(used))
        self.least.append(max(-(-memory_mib // CARD_MIB), -(-cores // 100)))
        self.fragmentation.append(100 * (CARD_MIB * len(used) - memory_mib) / free if free else 0.0)


def run(pods: int, nodes: int, seed: int, node_policy: str, card_policy: str) -> Tally:
    """Replay the trace under two policies."""
    state = ClusterState(Catalog())
    names = tuple(f"n{place:03}" for place in range(nodes))
    for name in names:
        cards = tuple(
            RegisteredDevice(uuid=f"{name}/{place}", index=place, shares=20, memory_mib=CARD_MIB, cores=100, type="NVIDIA A100")
            for place in range(CARDS)
        )
        state.upsert_node(name, {"NVIDIA": cards})
    tally = Tally(pods)
    leaving: list[tuple[float, str]] = []
    for number, arrival in enumerate(trace(pods, nodes, seed)):
        while leaving and leaving[0][0] <= arrival.at:
            state.release(heapq.heappop(leaving)[1])
        uid = str(number)
        found = state.judge(_request(arrival, node_policy, card_policy), names, uid=uid, reasons=False)
        if isinstance(found, Placement):
            state.reserve(PodRef(namespace="default", name=uid, uid=uid), found, now=0.0)
            heapq.heappush(leaving, (arrival.until, uid))
        else:
            tally.refused += 1
            tally.refused_hours += arrival.hours
        tally.look(number, state, names)
    state.validate()
    return tally


def _request(arrival: Arrival, node_policy: str, card_policy: str) -> PodRequest:
    asked = DeviceRequest(vendor="NVIDIA", count=arrival.cards, memory_mib=CARD_MIB * arrival.percent // 100, cores=arrival.percent)
    container = ContainerRequest(name="main", kind=ContainerKind.APP, requests=(asked,))
    return PodRequest(containers=(container,), node_policy=node_policy, device_policy=card_policy)


def must_refuse(pods: int, nodes: int, seed: int) -> float:
    """Hours of a card that anybody must refuse: what is placed at any time is at most what is wanted, and at most what there is."""
    changes = sorted(change for each in trace(pods, nodes, seed) for change in ((each.at, each.wants), (each.until, -each.wants)))
    wanted = hours = last = 0.0
    for when, more in changes:
        hours += max(0.0, wanted - CARDS * nodes) * (when - last) / 3600
        wanted += more
        last = when
    return hours


def main() -> int:
    """Replay and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    least = must_refuse(options.pods, options.nodes, options.seed)
    asked = sum(each.hours for each in trace(options.pods, options.nodes, options.seed))
    lines = [_report.measurement("anybody: refused, at least", [100 * least / asked], unit="% of card hours")]
    for node_policy, card_policy in POLICIES:
        tally = run(options.pods, options.nodes, options.seed, node_policy, card_policy)
        name = f"nodes {node_policy}, cards {card_policy}"
        lines += [
            _report.measurement(f"{name}: cards in use", tally.cards, unit=f"of {options.nodes * CARDS}"),
            _report.measurement(f"{name}: at least", tally.least, unit="cards"),
            _report.measurement(f"{name}: fragmentation", tally.fragmentation, unit="% of free memory"),
            _report.measurement(f"{name}: refused pods", [tally.refused], unit=f"of {options.pods}"),
            _report.measurement(f"{name}: refused", [100 * tally.refused_hours / asked], unit="% of card hours"),
        ]
    _report.report("packing", lines, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which of the devices that fit are linked best, by the scores that the node publishes for its pairs. Pure and bounded.

One device: the one least linked to the others, so that the linked ones stay together. Several: the set with the highest sum over its pairs;
ties end at the order in which the devices are tried. Without scores, or with some missing, a pair counts 0 (HAMi#1075).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

PairScores = Mapping[str, Mapping[str, int]]
MAX_SETS: Final = 20_000
"""Above this many sets the best is grown device by device instead of searched for: C(16, 8) is 12,870."""
_MAX_PAIRS_KEPT: Final = 2048
"""Up to so many pairs in all sets their places are kept: four of eight devices have 420."""


def pick_linked(uuids: Sequence[str], count: int, scores: PairScores) -> tuple[int, ...]:
    """Which ``count`` of ``uuids`` to take, as places in it, in its order.

    Args:
        uuids: the devices that fit, first to be tried first; at least ``count``.
        count: how many are wanted.
        scores: of each pair; looked up from the device that is tried first.
    """
    if len(uuids) == count:
        return tuple(range(count))
    table = [[row.get(other, 0) for other in uuids] for row in (scores.get(one, {}) for one in uuids)]
    if count == 1:
        sums = [sum(table[min(a, b)][max(a, b)] for b in range(len(uuids)) if b != a) for a in range(len(uuids))]
        return (sums.index(min(sums)),)
    sets = math.comb(len(uuids), count)
    if sets * math.comb(count, 2) <= _MAX_PAIRS_KEPT:
        points = [score for row in table for score in row]
        return max(_sets(len(uuids), count), key=lambda each: sum(map(points.__getitem__, each[1])))[0]
    if sets <= MAX_SETS:
        return max(itertools.combinations(range(len(uuids)), count), key=lambda chosen: _sum(table, chosen))
    return _grow(table, count)


def mean_score(uuids: Sequence[str], scores: PairScores) -> float:
    """How well these devices are linked: the mean over their pairs, 0 for a single one. Looked up as ``pick_linked`` does."""
    pairs = list(itertools.combinations(uuids, 2))
    return sum(scores.get(one, {}).get(other, 0) for one, other in pairs) / len(pairs) if pairs else 0.0


@lru_cache(maxsize=64)
def _sets(size: int, count: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """All sets of ``count`` out of ``size`` places, each with where its pairs stand in a table of ``size`` rows, row after row."""
    return tuple(
        (chosen, tuple(one * size + other for one, other in itertools.combinations(chosen, 2)))
        for chosen in itertools.combinations(range(size), count)
    )


def _sum(table: Sequence[Sequence[int]], chosen: Sequence[int]) -> int:
    return sum(table[a][b] for a, b in itertools.combinations(chosen, 2))


def _grow(table: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """The best set that grows from some pair by always adding the device that adds most."""
    places = range(len(table))
    best: tuple[int, ...] = ()
    for pair in itertools.combinations(places, 2):
        chosen = list(pair)
        while len(chosen) < count:
            left = (place for place in places if place not in chosen)
            chosen.append(max(left, key=lambda place: sum(table[min(place, c)][max(place, c)] for c in chosen)))
        candidate = tuple(sorted(chosen))
        if not best or _sum(table, candidate) > _sum(table, best):
            best = candidate
    return best

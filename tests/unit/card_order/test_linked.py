"""The set that is linked best, found by any of three ways of searching."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from hami_devices.topology import MAX_SETS, pick_linked


def scores_of(size: int, seed: int) -> dict[str, dict[str, int]]:
    """Scores of most pairs, few values, so that sets are often equal."""
    chance = random.Random(seed)
    scores: dict[str, dict[str, int]] = {}
    for one, other in itertools.combinations(range(size), 2):
        if (points := chance.choice([None, 0, 10, 100])) is not None:
            scores.setdefault(f"u{one}", {})[f"u{other}"] = scores.setdefault(f"u{other}", {})[f"u{one}"] = points
    return scores


@pytest.mark.parametrize(("size", "count"), [(4, 2), (8, 4), (8, 7), (12, 5), (16, 3), (14, 7)])
def test_the_first_of_the_sets_with_the_highest_sum_is_taken(size: int, count: int) -> None:
    uuids = [f"u{place}" for place in range(size)]
    for seed in range(5):
        scores = scores_of(size, seed)

        def total(chosen: tuple[int, ...], scores: dict[str, dict[str, int]] = scores) -> int:
            return sum(scores.get(f"u{one}", {}).get(f"u{other}", 0) for one, other in itertools.combinations(chosen, 2))

        assert pick_linked(uuids, count, scores) == max(itertools.combinations(range(size), count), key=total)


def test_where_there_are_too_many_sets_one_is_grown_that_holds_the_best_pair_or_better() -> None:
    size, count = 20, 8
    assert math.comb(size, count) > MAX_SETS
    scores = {f"u{one}": {f"u{other}": 100 if one < 8 and other < 8 else 1 for other in range(size) if other != one} for one in range(size)}
    assert pick_linked([f"u{place}" for place in range(size)], count, scores) == tuple(range(8))

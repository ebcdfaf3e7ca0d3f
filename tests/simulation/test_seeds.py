"""Whole clusters under seeded faults. A failing seed is replayed with its log by ``python -m tests.simulation --seed N``."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from tests.simulation.story import run

SEEDS = 500
BLOCK = 10


@pytest.mark.simulation
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_in_every_story_all_invariants_hold(first: int) -> None:
    violations = {seed: outcome.violations[0] for seed in range(first, first + BLOCK) if (outcome := run(seed)).violations}
    gc.collect()
    assert not violations


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_replays_exactly_in_another_process_with_other_hashes(seed: int) -> None:
    """Nothing depends on the order of a set, on an address, or on the time of day."""
    digests = set()
    for hash_seed in ("1", "4711"):
        replay = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--digest"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        digests.add(replay.stdout.splitlines()[0])
    assert digests == {run(seed).digest}
    assert len(digests.pop()) == 64

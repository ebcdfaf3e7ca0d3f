"""``python -m tests.simulation``: run seeds, or replay one with everything that happened in it."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from tests.simulation.story import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked; 1 where an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seeds", type=int, metavar="N", help="run so many seeds")
    what.add_argument("--seed", type=int, metavar="SEED", help="replay one seed with its full log")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of --seeds (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that run seeds (default: one a core)")
    parser.add_argument("--digest", action="store_true", help="of --seed, print only the digest of what happened")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed, digest_only=options.digest)
    return _run_all(range(options.first, options.first + options.seeds), jobs=options.jobs)


def _replay(seed: int, *, digest_only: bool) -> int:
    outcome = run(seed, with_log=not digest_only)
    for line in outcome.log:
        print(line)
    print(outcome.digest if digest_only else f"digest {outcome.digest}")
    for violation in outcome.violations:
        print(f"seed {seed}: {violation}")
    return 1 if outcome.violations else 0


def _run_all(seeds: range, *, jobs: int) -> int:
    began = time.monotonic()
    failed: list[int] = []
    virtual_seconds = 0.0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        for done, outcome in enumerate(pool.imap_unordered(run, seeds), start=1):
            virtual_seconds += outcome.seconds
            if outcome.violations:
                failed.append(outcome.seed)
                replay = f"python -m tests.simulation --seed {outcome.seed}"
                print(f"\rseed {outcome.seed} FAILED: {outcome.violations[0]}\n    replay: {replay}", flush=True)
            if done % 10 == 0 or done == len(seeds):
                rate = done / (time.monotonic() - began)
                print(f"\r{done}/{len(seeds)} seeds, {len(failed)} failed, {rate:.1f} a second", end="", flush=True)
    print(f"\n{virtual_seconds / 3600:.1f} hours of clusters in {time.monotonic() - began:.0f} s; failed seeds: {sorted(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.simulation``: run seeds, or replay one with everything that happened in it."""

from __future__ import annotations

import argparse
import gc
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
    parser.add_argument("--digest", action="store_true", help="of --seed, print only the digest of what happened")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _replay(options.seed, digest_only=options.digest)
    return _run_all(range(options.first, options.first + options.seeds))


def _replay(seed: int, *, digest_only: bool) -> int:
    outcome = run(seed, with_log=not digest_only)
    for line in outcome.log:
        print(line)
    print(outcome.digest if digest_only else f"digest {outcome.digest}")
    for violation in outcome.violations:
        print(f"seed {seed}: {violation}")
    return 1 if outcome.violations else 0


def _run_all(seeds: range) -> int:
    began = time.monotonic()
    failed: list[int] = []
    virtual_seconds = 0.0
    for done, seed in enumerate(seeds, start=1):
        outcome = run(seed)
        virtual_seconds += outcome.seconds
        if outcome.violations:
            failed.append(seed)
            print(f"\rseed {seed} FAILED: {outcome.violations[0]}\n    replay: python -m tests.simulation --seed {seed}", flush=True)
        if done % 10 == 0 or done == len(seeds):
            gc.collect()
            print(
                f"\r{done}/{len(seeds)} seeds, {len(failed)} failed, {done / (time.monotonic() - began):.1f} a second", end="", flush=True
            )
    print(f"\n{virtual_seconds / 3600:.1f} hours of clusters in {time.monotonic() - began:.0f} s; failed seeds: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

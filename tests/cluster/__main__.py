"""Runs everything that needs a real Kubernetes: ``python -m tests.cluster [pytest's arguments]``, which `make cluster-test` does."""

from __future__ import annotations

import asyncio
import sys

from tests.cluster.harness import __main__ as harness
from tests.lanes import Lane, Lanes

FOLDER = "tests/cluster"
_PODS = ("shares", "shares_inside", "workloads", "preemption", "rights", "deployment", "migration")
PODS = tuple(f"{FOLDER}/test_{name}.py" for name in _PODS)
LANES = Lanes(
    "cluster",
    (
        Lane("pods", PODS),
        Lane("contracts", ("tests/contract",)),
        Lane("operation", (FOLDER, *(f"--ignore={path}" for path in PODS))),
    ),
)
"""Each takes about as long as the others; a new file of this folder is in the last."""


def main() -> int:
    """Make the machine ready, and run."""
    if code := harness.main([]):
        return code
    return asyncio.run(LANES.run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())

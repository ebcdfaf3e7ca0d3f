"""All benchmarks, one after the other, each in a process of its own: ``python -m benchmarks``. Figures go to ``build/bench/*.json``."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

RUNS: Final = (
    ("decode",),
    ("filter_core",),
    ("growth",),
    ("filter", "--nodes", "100", "--pods", "400"),
    ("filter", "--nodes", "1000", "--pods", "4000"),
    ("filter", "--nodes", "10000", "--pods", "40000"),
    ("startup",),
    ("scale",),
    ("node_patches",),
    ("admission",),
    ("bind_to_subscriber",),
    ("pod_cost",),
    ("placement", "--mode", "cdi"),
    ("placement", "--mode", "envvar"),
    ("packing",),
    ("usage_report",),
    ("command_line",),
)


def main() -> int:
    """Run them, say which failed, and return an exit code."""
    failed = []
    for place, (name, *arguments) in enumerate(RUNS, 1):
        print(f"==> {place}/{len(RUNS)} {name} {' '.join(arguments)}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode:
            failed.append(" ".join((name, *arguments)))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the shim costs: each figure with it and without, against a driver that costs next to nothing. Prints JSON.

Run it with ``make -C cshim bench`` (which builds what it needs). Each figure is the median of several runs, in nanoseconds of
processor time, so that a busy machine does not change it; eight processes are measured by the clock on the wall too, where on two cores
each waits for the others three quarters of the time. They go before what else runs where that is allowed (root); where it is not, only a
machine that does nothing else has a wall's figure.
``own`` is the shim's part, the figure with it less the figure without; ``budget`` is what the project allows itself for it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hami_node_agent import shim_layout as layout
from hami_node_agent.grant_file import Grant, GrantedDevice, encode

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("VGPU_BUILD", ROOT / "build" / "cshim")).resolve()
UUID = "GPU-00000000-0000-4000-8000-000000000000"
RUNS = 5

# name, arguments of bench, the grant's compute share (None: no grant at all), budget in nanoseconds
FIGURES: tuple[tuple[str, tuple[str, ...], int | None, float | None], ...] = (
    ("allocate and free, 10 live", ("alloc", "10", "1"), 100, 200),
    ("allocate and free, 1,000 live", ("alloc", "1000", "1"), 100, 200),
    ("allocate and free, 10,000 live", ("alloc", "10000", "1"), 100, 200),
    ("allocate and free, 1,000 live, 8 processes", ("alloc", "1000", "8"), 100, 250),
    ("allocate and free, 1,000 live, 8 processes, on the wall", ("wall", "1000", "8"), 100, 1000),
    ("launch, no compute limit", ("launch",), 100, 5),
    ("launch, under a compute limit", ("launch",), 30, 20),
    ("launch, no grant", ("launch",), None, 5),
    ("cuMemGetInfo", ("info",), 100, 50),
    ("cuInit and first allocation", ("start",), 100, 3_000_000),
)


def write_grant(folder: Path, sm_percent: int) -> Path:
    """Write a grant of one device with 64 GiB and ``sm_percent``; return its path."""
    device = GrantedDevice(uuid=UUID, memory_limit_mib=64 << 10, sm_percent=sm_percent)
    path = folder / "grant"
    path.write_bytes(encode(Grant(pod_uid="", container="", devices=(device,), region_path=str(folder / "region"))))
    return path


def measure(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    """Return the median of several runs of ``bench``."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_", "HAMI_", "FAKE_"))}
    base["LD_LIBRARY_PATH"] = str(BUILD / "bench")
    command = [str(BUILD / "bench" / "bench"), *arguments]
    runs = [
        float(subprocess.run(command, env=base | environment, check=True, capture_output=True, text=True, timeout=120).stdout)
        for _ in range(RUNS)
    ]
    return statistics.median(runs)


def main() -> int:
    """Measure everything and print one JSON object."""
    figures = []
    for name, arguments, sm_percent, budget in FIGURES:
        with tempfile.TemporaryDirectory() as folder:
            shimmed = {"LD_PRELOAD": str(BUILD / "libvgpu.so")}
            if sm_percent is not None:
                shimmed["HAMI_GRANT_FILE"] = str(write_grant(Path(folder), sm_percent))
            with_shim, without = measure(arguments, shimmed), measure(arguments, {})
        own = round(with_shim - without, 2)
        figures.append(
            {
                "figure": name,
                "with_ns": with_shim,
                "without_ns": without,
                "own_ns": own,
                "budget_ns": budget,
                "met": budget is None or own <= budget,
            }
        )
    result = {"figures": figures, "region_bytes": layout.REGION.size, "grant_bytes": layout.GRANT.size, "cpus": os.cpu_count()}
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What the shim costs: each figure with it and without, against a driver that costs next to nothing. Prints JSON.

It is written into ``build/bench/shim.json`` too.

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
from dataclasses import dataclass
from pathlib import Path

from hami_node_agent import shim_layout as layout
from hami_node_agent.grant_file import Grant, GrantedDevice, encode
from hami_node_agent.region import EMPTY

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("VGPU_BUILD", ROOT / "build" / "cshim")).resolve()
UUID = "GPU-00000000-0000-4000-8000-000000000000"
RUNS = 5
OUTPUT = ROOT / "build" / "bench" / "shim.json"

MIB = 2**20
SMALL, LARGE, HUGE = "4096", str(16 * MIB), str(1024 * MIB)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What is measured, and what the project allows itself for it."""

    name: str
    arguments: tuple[str, ...]
    budget_ns: float | None = None
    sm_percent: int | None = 100
    """The grant's compute share; None: no grant at all."""
    live_slots: int = 0
    """Slots of the region that other live processes hold."""
    event_ns: int = 0
    """What each call of the driver's events costs; its own part is not in the figure."""
    kernel_ns: int = 0
    """What a kernel is said to have taken."""


FIGURES: tuple[Figure, ...] = (
    Figure(name="allocate and free, 10 live", arguments=("alloc", "10", "1", SMALL), budget_ns=200),
    Figure(name="allocate and free, 1,000 live", arguments=("alloc", "1000", "1", SMALL), budget_ns=200),
    Figure(name="allocate and free, 10,000 live", arguments=("alloc", "10000", "1", SMALL), budget_ns=200),
    Figure(name="allocate and free of 16 MiB, 10 live", arguments=("alloc", "10", "1", LARGE), budget_ns=200),
    Figure(name="allocate and free of 1 GiB, 10 live", arguments=("alloc", "10", "1", HUGE), budget_ns=200),
    Figure(
        name="allocate and free of 16 MiB, beside 1,000 processes", arguments=("alloc", "10", "1", LARGE), budget_ns=200, live_slots=1000
    ),
    Figure(name="allocate and free, 1,000 live, 8 processes", arguments=("alloc", "1000", "8", SMALL), budget_ns=250),
    Figure(name="allocate and free, 1,000 live, 8 processes, on the wall", arguments=("wall", "1000", "8", SMALL), budget_ns=1000),
    Figure(name="allocate and free of 16 MiB, 8 processes, on the wall", arguments=("wall", "10", "8", LARGE), budget_ns=1000),
    Figure(
        name="allocate and free of 16 MiB, 8 processes beside 1,000, on the wall",
        arguments=("wall", "10", "8", LARGE),
        budget_ns=1000,
        live_slots=1000,
    ),
    Figure(name="launch, no compute limit", arguments=("launch", "5000000"), budget_ns=5),
    Figure(name="launch, under a compute limit", arguments=("launch", "5000000"), sm_percent=30, budget_ns=20),
    Figure(
        name="launch, under a compute limit, beside events of 1 us",
        arguments=("launch", "1000000"),
        sm_percent=30,
        event_ns=1000,
        budget_ns=20,
    ),
    Figure(
        name="launch of 5 us, with the sleeps in which it waits for its share",
        arguments=("launch", "200000"),
        sm_percent=90,
        event_ns=1000,
        kernel_ns=5000,
    ),
    Figure(name="launch, no grant", arguments=("launch", "5000000"), sm_percent=None, budget_ns=5),
    Figure(name="allocate and free in the order of a stream", arguments=("pool",), budget_ns=500),
    Figure(name="launch of a graph that allocates", arguments=("graph",), budget_ns=500),
    Figure(name="a block: create, map, unmap, release", arguments=("block",)),
    Figure(name="create and destroy an array", arguments=("array",)),
    Figure(name="cuMemGetInfo", arguments=("info",), budget_ns=50),
    Figure(name="cuInit and first allocation", arguments=("start",), budget_ns=3_000_000),
)


def write_grant(folder: Path, sm_percent: int) -> Path:
    """Write a grant of one device with 1 TiB and ``sm_percent``; return its path."""
    device = GrantedDevice(uuid=UUID, memory_limit_mib=1 << 20, sm_percent=sm_percent)
    path = folder / "grant"
    path.write_bytes(encode(Grant(pod_uid="", container="", devices=(device,), region_path=str(folder / "region"))))
    return path


def write_region(folder: Path, live_slots: int) -> None:
    """Write a region in which ``live_slots`` places are held by this process, which lives."""
    data = bytearray(EMPTY)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    layout.write_uint(data, layout.REGION, "slot_high_water", live_slots)
    for place in range(live_slots):
        base = layout.REGION.offset("slots", place)
        layout.write_uint(data, layout.REGION_SLOT, "owner", os.getpid() | ticks << layout.REGION_PID_BITS, base=base)
    (folder / "region").write_bytes(data)


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
    for figure in FIGURES:
        with tempfile.TemporaryDirectory() as folder:
            shimmed = {
                "LD_PRELOAD": str(BUILD / "libvgpu.so"),
                "NULL_EVENT_NS": str(figure.event_ns),
                "NULL_KERNEL_NS": str(figure.kernel_ns),
            }
            if figure.sm_percent is not None:
                shimmed["HAMI_GRANT_FILE"] = str(write_grant(Path(folder), figure.sm_percent))
            if figure.live_slots:
                write_region(Path(folder), figure.live_slots)
            with_shim, without = measure(figure.arguments, shimmed), measure(figure.arguments, {})
        own = round(with_shim - without, 2)
        figures.append(
            {
                "figure": figure.name,
                "with_ns": with_shim,
                "without_ns": without,
                "own_ns": own,
                "budget_ns": figure.budget_ns,
                "met": figure.budget_ns is None or own <= figure.budget_ns,
            }
        )
    result = {"figures": figures, "region_bytes": layout.REGION.size, "grant_bytes": layout.GRANT.size, "cpus": os.cpu_count()}
    text = json.dumps(result, indent=2) + "\n"
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

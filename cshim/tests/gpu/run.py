"""The shim on a real GPU, in one run of at most five minutes that needs a driver and Python alone; PyTorch's allocators too where it is installed.

    make -C cshim all && python3 cshim/tests/gpu/run.py > gpu.json

Prints one JSON document: figures, and of each part whether it held. Exit status: 0 when everything held, 1 when something did not, 3 when
there is no GPU or no shim. Nothing is left on the card. What runs in a process with CUDA is in ``work.py``. ``--dry`` is for the fake driver,
on a machine of unknown load: everything runs, briefly, and no accuracy is judged.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = Path(os.environ.get("VGPU_BUILD", ROOT / "build" / "cshim")).resolve()
LAYOUT = json.loads((ROOT / "cshim" / "layout.json").read_text())

NO_GPU = 3
WHOLE_SECONDS = 290
PART_SECONDS = 60
LIMIT_MIB = 1024
WITHIN_POINTS = 3.0
OVERHEAD_PERCENT = 2.0
"""What the shim may cost a program that nothing limits, in launches of 20 microseconds."""
PATTERNS = ("constant", "chance", "alternating", "period", "phases")
ALLOCATORS = {"plain": "", "expandable segments": "expandable_segments:True", "driver's pools": "backend:cudaMallocAsync"}


def grant_bytes(uuid: str, limit_mib: int, sm_percent: int, region: Path) -> bytes:
    """The bytes of a grant of one device, by the layout that the headers give."""
    grant, device = LAYOUT["grant"], LAYOUT["grant_device"]
    numbers, data = LAYOUT["constants"], bytearray(LAYOUT["grant"]["size"])

    def put(fields: dict[str, Any], base: int, values: dict[str, int | str]) -> None:
        for name, value in values.items():
            field = fields[name]
            raw = value.encode() if isinstance(value, str) else value.to_bytes(field["size"], "little")
            data[base + field["offset"] : base + field["offset"] + len(raw)] = raw

    head = {"magic": numbers["GRANT_MAGIC"], "version": numbers["GRANT_VERSION"], "size": len(data), "device_count": 1, "core_switch": 1}
    limit = limit_mib << 20
    put(grant["fields"], 0, {**head, "core_policy": numbers["GRANT_CORE_FORCE"], "region_path": str(region)})
    place = grant["fields"]["devices"]["offset"]
    shares = {"memory_limit_bytes": limit, "started_with_bytes": limit, "sm_percent": sm_percent, "started_with_percent": sm_percent}
    put(device["fields"], place, {"uuid": uuid, **shares})
    checksum = zlib.crc32(data[numbers["GRANT_CHECKED_OFFSET"] : numbers["GRANT_LIVE_OFFSET"]])
    put(grant["fields"], 0, {"checksum": checksum})
    return bytes(data)


class Card:
    """The GPU, and processes on it with and without the shim."""

    def __init__(self, folder: Path, *, dry: bool) -> None:
        self._folder = folder
        self._ends = time.monotonic() + WHOLE_SECONDS
        self.dry = dry
        self.uuid = ""
        self.failures: list[str] = []

    def run(
        self, work: str, *arguments: str, limit_mib: int | None = None, sm_percent: int = 100, environment: dict[str, str] | None = None
    ) -> Any:
        """What a process says on its last line; None where it failed. ``limit_mib`` None: without the shim."""
        env = dict(os.environ) | (environment or {})
        if limit_mib is not None:
            place = Path(tempfile.mkdtemp(dir=self._folder))
            (place / "grant").write_bytes(grant_bytes(self.uuid, limit_mib, sm_percent, place / "region"))
            env |= {"LD_PRELOAD": str(BUILD / "libvgpu.so"), "HAMI_GRANT_FILE": str(place / "grant"), "LIBCUDA_LOG_LEVEL": "0"}
        seconds = min(PART_SECONDS, self._ends - time.monotonic())
        if seconds <= 0:
            self.failures.append(f"{work} {' '.join(arguments)}: no time was left")
            return None
        command = [sys.executable, str(HERE / "work.py"), work, *arguments, *(["--dry"] if self.dry else [])]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            self.failures.append(f"{work} {' '.join(arguments)}: not done after {seconds:.0f} s")
            return None
        if done.returncode == 0:
            return json.loads(done.stdout.strip().splitlines()[-1])
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        self.failures.append(f"{' '.join((work, *arguments))}: {said[-1] if said else f'status {done.returncode}'}")
        return None


def memory(card: Card) -> dict[str, Any]:
    """Every way to allocate: given and shown within the limit, refused beyond it, there again when it is freed; not refused without the shim."""
    ways = card.run("ways") or []
    report: dict[str, Any] = {}
    for way in ways:
        report[way] = {
            "with": card.run("allocate", way, str(LIMIT_MIB), limit_mib=LIMIT_MIB),
            "without": card.run("allocate", way, str(LIMIT_MIB)),
        }
    held = bool(ways) and all(
        one["with"] is not None and one["with"]["held"] and one["without"] is not None and one["without"]["second"] == 0
        for one in report.values()
    )
    return {"ways": report, "held": held}


def compute(card: Card) -> dict[str, Any]:
    """The share of each pattern of kernels, in percent of the device's time."""
    shares = {10: ("constant", "chance"), 30: PATTERNS, 70: ("constant",)}
    report: dict[str, Any] = {}
    worst = 0.0
    for percent, patterns in shares.items():
        for pattern in patterns:
            found = card.run("share", pattern, limit_mib=LIMIT_MIB, sm_percent=percent)
            report[f"{pattern} at {percent} percent"] = found
            worst = max(worst, abs(found["percent"] - percent) if found else 100.0)
    return {"shares": report, "worst_points": round(worst, 2), "held": worst <= WITHIN_POINTS or (card.dry and worst < 100.0)}


def captures(card: Card) -> dict[str, Any]:
    """What can be captured without the shim can be captured with it."""
    report = {
        mode: {"with": card.run("capture", mode, limit_mib=LIMIT_MIB), "without": card.run("capture", mode)} for mode in ("0", "1", "2")
    }
    return {"modes": report, "held": all(one["with"] is not None and one["with"] == one["without"] for one in report.values())}


def overhead(card: Card) -> dict[str, Any]:
    """What the shim costs a program that nothing limits."""
    with_shim, without = card.run("speed", limit_mib=LIMIT_MIB), card.run("speed")
    if not with_shim or not without:
        return {"held": False}
    lost = {name: round(100 * (1 - with_shim[name] / without[name]), 2) for name in without}
    return {
        "with": with_shim,
        "without": without,
        "lost_percent": lost,
        "held": card.dry or lost["launches_per_second"] <= OVERHEAD_PERCENT,
    }


def torch(card: Card) -> dict[str, Any]:
    """PyTorch's allocators fill the share and no more."""
    if card.run("has_torch") is None:
        card.failures.pop()
        return {"installed": False, "held": True}
    filled = {
        name: card.run("torch", limit_mib=4 * LIMIT_MIB, environment={"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else None)
        for name, setting in ALLOCATORS.items()
    }
    least = 3 * LIMIT_MIB
    return {"installed": True, "filled": filled, "held": all(one and least <= one["held_mib"] <= 4 * LIMIT_MIB for one in filled.values())}


def main() -> int:
    """Measure everything and print one JSON document."""
    parser = argparse.ArgumentParser(description="Test the shim on a GPU.")
    parser.add_argument("--dry", action="store_true", help="briefly, without judging accuracy: for the fake driver")
    dry = parser.parse_args().dry
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        card = Card(Path(folder), dry=dry)
        identity = card.run("identity") if (BUILD / "libvgpu.so").is_file() else None
        if identity is None:
            reason = (
                card.failures[-1].removeprefix("identity: ") if card.failures else f"{BUILD / 'libvgpu.so'} is not built: make -C cshim all"
            )
            print(json.dumps({"gpu": None, "reason": f"nothing was tested: {reason}"}))
            return NO_GPU
        card.uuid = identity["uuid"]
        parts = {"memory": memory, "compute": compute, "captures": captures, "overhead": overhead, "torch": torch}
        report: dict[str, Any] = {**identity, **{name: part(card) for name, part in parts.items()}}
    report |= {"dry": dry, "seconds": round(time.monotonic() - started, 1), "failures": card.failures}
    report["held"] = not card.failures and all(report[name]["held"] for name in parts)
    print(json.dumps(report, indent=2))
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

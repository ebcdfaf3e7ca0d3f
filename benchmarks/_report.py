"""How every benchmark says what it measured: a line for a person, and JSON in ``build/bench/<name>.json`` with the machine and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "bench"


class Measurement(Struct, frozen=True, kw_only=True):
    """One figure; ``value`` is the median of the samples."""

    name: str
    value: float
    unit: str
    p50: float
    p99: float
    samples: int


class Line(Measurement, frozen=True, kw_only=True):
    """The figure with where it comes from."""

    machine: str
    commit: str


def measurement(name: str, samples: Sequence[float], *, unit: str) -> Measurement:
    """The figure that ``samples`` make, in ``unit``.

    Raises:
        ValueError: there are none.
    """
    if not samples:
        raise ValueError(f"{name}: no samples")
    median = percentile(samples, 50)
    return Measurement(name=name, value=median, unit=unit, p50=median, p99=percentile(samples, 99), samples=len(samples))


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least ``percent`` of all samples do not exceed."""
    ordered = sorted(samples)
    rank = -(-len(ordered) * percent // 100)
    return round(ordered[max(0, int(rank) - 1)], 6)


def report(name: str, measurements: Sequence[Measurement], *, as_json: bool = False) -> None:
    """Write ``build/bench/<name>.json``, and print the same: as JSON, or as a table."""
    machine, commit = describe_machine(), describe_commit()
    lines = [Line(**msgspec.structs.asdict(each), machine=machine, commit=commit) for each in measurements]
    text = msgspec.json.format(msgspec.json.encode(lines), indent=2).decode() + "\n"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text)
    if as_json:
        sys.stdout.write(text)
        return
    width = max(len(line.name) for line in lines)
    sys.stdout.writelines(f"{line.name:<{width}}  p50 {line.p50:>10.3f}  p99 {line.p99:>10.3f} {line.unit}\n" for line in lines)


def describe_machine() -> str:
    """Processor, number of cores and Python, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next((line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def describe_commit() -> str:
    """The commit that is checked out, with a plus where files differ from it; empty outside a repository."""
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()

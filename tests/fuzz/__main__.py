"""``make fuzz``, ``python -m tests.fuzz``: damaged inputs for every decoder, from a seed. Fails on what a decoder does not say it raises."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from tests.fuzz.target import Report, run
from tests.fuzz.targets import TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked; 1 where anything broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for all targets together (default 60)")
    parser.add_argument("--inputs", type=int, default=10**9, help="at most so many for each target")
    parser.add_argument("--seed", type=int, default=1, help="other seeds give other inputs (default 1)")
    parser.add_argument("--target", action="append", metavar="NAME", help="only this one; may be given again")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where inputs that broke something are put")
    options = parser.parse_args(arguments)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )  # what is left out is logged, thousands of times
    chosen = [target for target in TARGETS if not options.target or target.name in options.target]
    started = time.monotonic()
    reports: list[Report] = []
    for number, target in enumerate(chosen):
        spent = sum(report.seconds for report in reports)
        report = run(target, seed=options.seed, inputs=options.inputs, seconds=(options.seconds - spent) / (len(chosen) - number))
        reports.append(report)
        rate = report.inputs / max(report.seconds, 1e-9)
        print(
            f"{report.name:34} {report.inputs:>9,} inputs {rate:>9,.0f}/s  accepted {report.accepted:>8,}  "
            f"kinds of answer {len(report.kinds):>5}  slowest {1000 * report.slowest_seconds:>6.1f} ms"
            + (f"  FAULTS {len(report.faults)}" if report.faults else "")
        )
    total = sum(report.inputs for report in reports)
    seconds = sum(report.seconds for report in reports)
    print(f"{total:,} inputs for {len(reports)} targets, seed {options.seed}")
    print(
        f"{seconds:.1f} s of the processor, {time.monotonic() - started:.1f} s of the clock, {total / max(seconds, 1e-9):,.0f} inputs a second"
    )
    return _tell([report for report in reports if report.faults], options.keep)


def _tell(broken: Sequence[Report], folder: Path) -> int:
    for report in broken:
        folder.mkdir(parents=True, exist_ok=True)
        for number, fault in enumerate(report.faults):
            path = folder / f"{report.name.replace(' ', '-')}-{number}"
            path.write_bytes(fault.data)
            print(f"\n{report.name}: {fault.data[:300]!r} ({len(fault.data)} bytes, in {path})\n{fault.what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )  # what is left out is logged, thousands of times
    raise SystemExit(main())

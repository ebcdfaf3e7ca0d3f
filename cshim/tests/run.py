"""Run the shim's quick tests: each program, with and without the shim preloaded, and what the binary itself must be.

Every program is a table of tests that run in processes and directories of their own; this only sets the environment, runs
them beside each other, and reports.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSHIM = Path(__file__).resolve().parent.parent
RUN_SECONDS = 3600  # the long form of the kills
CHECKED = ("blocks", "calls", "captures", "graphs", "memory", "pools", "process", "stress")
"""Programs that run under the library that looks at its invariants after every call, too."""


def run_program(program: Path, environment: dict[str, str]) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """Run one test program; return it with what came of it and how long it took."""
    started = time.monotonic()
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    return program, done, time.monotonic() - started


def clean_environment() -> dict[str, str]:
    """Return this environment without what the shim or the fake driver would take from it."""
    prefixes = ("CUDA_", "NVIDIA_", "FAKE_", "HAMI_", "LIBCUDA_", "LD_", "GPU_", "ACTIVE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def exported(library: Path) -> set[str]:
    """Return the names that a library defines for others."""
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in listing.splitlines()}


def binary_faults(build: Path) -> list[str]:
    """Return what is wrong with the library as a file: its exports, and what it needs."""
    library = build / "libvgpu.so"
    wanted = {"dlsym", "dlvsym"}
    for manifest in ("hooks.def", "nvml_hooks.def"):
        wanted |= set(re.findall(r"^HOOK\((\w+)", (CSHIM / "src" / manifest).read_text(), re.MULTILINE))
    faults = [f"exported, not in the manifest: {name}" for name in sorted(exported(library) - wanted)]
    faults += [f"in the manifest, not exported: {name}" for name in sorted(wanted - exported(library))]
    dynamic = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic))
    faults += [f"needs {name}" for name in sorted(needed) if not re.match(r"(libc|libdl|libpthread|ld-linux.*)\.so", name)]
    if "(INIT_ARRAY)" in dynamic and library_has_constructor(library):
        faults.append("does work when it is loaded")
    return faults


def library_has_constructor(library: Path) -> bool:
    """Return whether .init_array holds more than the compiler's own entry."""
    sections = subprocess.run(["readelf", "-SW", str(library)], check=True, capture_output=True, text=True).stdout
    size = re.search(r"\.init_array\s+INIT_ARRAY\s+\w+\s+\w+\s+(\w+)", sections)
    return size is not None and int(size.group(1), 16) > 8


def gpu_script_faults(build: Path, environment: dict[str, str]) -> list[str]:
    """Run the script for a real GPU on the fake one, briefly; return what is wrong with what it says."""
    with tempfile.TemporaryDirectory() as folder:
        cards = Path(folder) / "cards"
        cards.write_text("uuid=GPU-00000000-0000-4000-8000-000000000000 memory_mib=16384 name=Fake\n")
        env = environment | {"FAKE_GPU_CONFIG": str(cards), "LD_LIBRARY_PATH": str(build / "fake"), "VGPU_BUILD": str(build)}
        command = [sys.executable, str(CSHIM / "tests" / "gpu" / "run.py"), "--dry"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return [f"ended with {done.returncode}, and printed no JSON: {done.stdout[:200]} {done.stderr[-200:]}"]
    if done.returncode != 0 or not report["held"]:
        return [f"ended with {done.returncode}: {report.get('reason') or report['failures'] or 'a part did not hold: ' + done.stdout}"]
    print(f"gpu/run.py: every part ran on the fake driver, in {report['seconds']} s")
    return []


def main() -> int:
    """Run everything; return the exit status."""
    parser = argparse.ArgumentParser(description="Run the shim's quick tests.")
    parser.add_argument("--build", type=Path, required=True, help="where make has put the programs")
    parser.add_argument("--preload", action="append", default=[], help="a library to load before the shim (a sanitizer's)")
    options = parser.parse_args()
    build = options.build.resolve()
    plain = clean_environment()
    shimmed = plain | {
        "LD_PRELOAD": ":".join([*options.preload, str(build / "libvgpu.so")]),
        "LD_LIBRARY_PATH": str(build / "fake"),
        "VGPU_BUILD": str(build),
    }
    failed = 0
    jobs = [(program, plain) for program in sorted((build / "unit").iterdir())]
    jobs += [(program, shimmed) for program in sorted((build / "api").iterdir())]
    jobs += [(build / "cudart" / form, shimmed) for form in ("shared", "static")]
    if not options.preload:
        checked = shimmed | {"LD_PRELOAD": str(build / "checked" / "libvgpu.so")}
        jobs += [(build / "api" / name, checked) for name in CHECKED]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for (_, environment), (program, done, seconds) in zip(jobs, pool.map(lambda job: run_program(*job), jobs), strict=True):
            mark = " (checked)" if "/checked/" in environment.get("LD_PRELOAD", "") else ""
            lines = done.stdout.strip().splitlines() or [f"ended with {done.returncode}"]
            print(f"{program.parent.name}/{program.name}{mark}: {lines[-1]} ({seconds:.1f} s)", flush=True)
            if done.returncode != 0:
                failed += 1
                print(done.stderr, end="")
    for fault in [] if options.preload else binary_faults(build):  # a sanitizer's build needs its library
        failed += 1
        print(f"libvgpu.so: {fault}")
    for fault in [] if options.preload else gpu_script_faults(build, plain):
        failed += 1
        print(f"gpu/run.py: {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

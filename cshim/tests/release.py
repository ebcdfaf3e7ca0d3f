"""What the released libraries may ask of an old system: no symbol of glibc newer than 2.17, nothing but libc."""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

NEWEST = (2, 17)
ARCHITECTURES = {"x86_64": "X86-64", "aarch64": "AArch64"}


def faults_of(library: Path, machine: str) -> list[str]:
    """Return what is wrong with one released library."""
    header = subprocess.run(["readelf", "-h", str(library)], check=True, capture_output=True, text=True).stdout
    versions = subprocess.run(["readelf", "-VW", str(library)], check=True, capture_output=True, text=True).stdout
    dynamic = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"GLIBC_(\d+)\.(\d+)", versions))
    faults = [f"needs GLIBC_{major}.{minor}" for major, minor in sorted(needed) if (int(major), int(minor)) > NEWEST]
    if machine not in header:
        faults.append(f"is not for {machine}")
    libraries = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)
    faults += [f"needs {name}" for name in libraries if not re.match(r"(libc|libdl|libpthread|ld-linux.*)\.so", name)]
    return [f"{library.parent.name}/{library.name} {fault}" for fault in faults]


def main() -> int:
    """Check both architectures; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the released libraries.")
    parser.add_argument("--build", type=Path, required=True, help="where make release has put them")
    build: Path = parser.parse_args().build
    faults = [fault for name, machine in ARCHITECTURES.items() for fault in faults_of(build / name / "libvgpu.so", machine)]
    for fault in faults:
        print(fault)
    print(f"release: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

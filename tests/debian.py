"""Programs that only Debian packages: the installed one, else unpacked below ``build/debian``, which needs neither root nor an installation."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNPACKED = ROOT / "build" / "debian"


def program(name: str, package: str) -> str:
    """The path of ``name``; the test that asks is skipped, with the reason, on a machine that has no way to it."""
    if found := shutil.which(name):
        return found
    unpacked = unpack(package)
    if unpacked is None or not (unpacked / "usr" / "bin" / name).exists():
        pytest.skip(f"{name} is not here, and Debian's package {package} cannot be had")
    return str(unpacked / "usr" / "bin" / name)


def unpack(package: str) -> Path | None:
    """The folder with what is in ``package``; None where apt cannot fetch it."""
    folder = UNPACKED / package
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with (UNPACKED / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        download = ["apt-get", "download", package]
        done = subprocess.run(download, cwd=UNPACKED, check=False, capture_output=True)
        if done.returncode:  # nobody has looked yet which packages there are
            subprocess.run(["apt-get", "update"], check=False, capture_output=True)
            done = subprocess.run(download, cwd=UNPACKED, check=False, capture_output=True)
        packages = sorted(UNPACKED.glob(f"{package}_*.deb"))
        if done.returncode or not packages:
            return None
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        subprocess.run(["dpkg", "--extract", packages[-1], half], check=True)
        packages[-1].unlink()
        half.rename(folder)
    return folder

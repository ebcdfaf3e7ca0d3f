"""Programs that only Debian packages: the installed one, else unpacked below ``build/debian``, which needs neither root nor an installation."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UNPACKED = ROOT / "build" / "debian"


def program(name: str, package: str, *needs: str) -> str:
    """The path of ``name``; the test that asks is skipped, with the reason, on a machine that has no way to it."""
    if found := shutil.which(name):
        return found
    unpacked = unpack(package, *needs)
    if unpacked is None or not (unpacked / "usr" / "bin" / name).exists():
        pytest.skip(f"{name} is not here, and Debian's package {package} cannot be had")
    return str(unpacked / "usr" / "bin" / name)


def unpack(package: str, *needs: str) -> Path | None:
    """The folder with what is in ``package`` and those it ``needs``; None where apt cannot fetch them."""
    folder = UNPACKED / package
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with (UNPACKED / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=UNPACKED) as downloads:
            download = ["apt-get", "download", package, *needs]
            if subprocess.run(download, cwd=downloads, check=False, capture_output=True).returncode:
                subprocess.run(["apt-get", "update"], check=False, capture_output=True)  # nobody has looked yet which packages there are
                if subprocess.run(download, cwd=downloads, check=False, capture_output=True).returncode:
                    return None
            half = Path(downloads) / "unpacked"
            for each in sorted(Path(downloads).glob("*.deb")):
                subprocess.run(["dpkg", "--extract", each, half], check=True)
            half.rename(folder)
    return folder

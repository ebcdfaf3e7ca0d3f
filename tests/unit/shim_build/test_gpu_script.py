"""The script for a real GPU says clearly that there is none, as JSON, and fails with a status of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "cshim" / "tests" / "gpu" / "run.py"


@pytest.mark.parametrize("driver", ["missing", "empty"])
def test_without_a_gpu_it_says_so(tmp_path: Path, driver: str) -> None:
    (tmp_path / "libvgpu.so").touch()
    if driver == "empty":
        (tmp_path / "libcuda.so.1").touch()
    environment = {"PATH": "/usr/bin:/bin", "VGPU_BUILD": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout)
    assert done.returncode == 3
    assert said["gpu"] is None
    assert said["reason"].startswith("nothing was tested: there is no CUDA driver")


def test_without_the_shim_it_says_how_to_build_it(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "VGPU_BUILD": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "make -C cshim all" in json.loads(done.stdout)["reason"]) == (3, True)

"""NVIDIA's CUDA runtime, dynamic and static, on the fake driver under the shim: as far as it goes without NVIDIA's own driver.

Needs the wheel ``nvidia-cuda-runtime``; ``runtime/runtime.c`` says what is tested.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

CSHIM = Path(__file__).resolve().parent.parent


def runtime_folder() -> Path:
    """Return the folder of the wheel's libraries."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/lib/libcudart_static.a"))
    if not found:
        raise SystemExit("runtime: libcudart is not installed: pip install nvidia-cuda-runtime")
    return found[-1].parent


def main() -> int:
    """Build and run both programs; return the exit status."""
    parser = argparse.ArgumentParser(description="Run NVIDIA's CUDA runtime under the shim.")
    parser.add_argument("--build", type=Path, required=True, help="where make has put the shim and the fake driver")
    build: Path = parser.parse_args().build.resolve()
    folder = runtime_folder()
    (shared,) = folder.glob("libcudart.so.*")
    forms = {"dynamic": [str(shared), f"-Wl,-rpath,{folder}"], "static": [str(folder / "libcudart_static.a"), "-lrt"]}
    includes = [f"-I{CSHIM / name}" for name in ("include", "src", "tests", "tests/fake")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_", "HAMI_", "FAKE_"))}
    environment |= {"LD_PRELOAD": str(build / "libvgpu.so"), "LD_LIBRARY_PATH": str(build / "fake"), "VGPU_BUILD": str(build)}
    (build / "runtime").mkdir(exist_ok=True)
    failed = 0
    for form, libraries in forms.items():
        program = build / "runtime" / form
        driver = [f"-L{build / 'fake'}", "-l:libcuda.so.1", "-ldl", "-lpthread", "-lm"]
        command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", *includes, "-o", str(program)]
        subprocess.run([*command, str(CSHIM / "tests" / "runtime" / "runtime.c"), *libraries, *driver], check=True)
        done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=300, check=False)
        print(f"runtime/{form} ({shared.name}): {done.stdout.strip() or done.returncode}")
        print(done.stderr, end="")
        failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

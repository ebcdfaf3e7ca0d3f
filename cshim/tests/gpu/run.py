"""The shim on a real GPU, with PyTorch: limits, views, several processes, throughput, accuracy of the compute share.

Run by hand on a machine that has both (``pip install torch``)::

    make -C cshim all && python cshim/tests/gpu/run.py > gpu.json

Prints one JSON object: figures, what of each part held (``held``), and the last words of what failed (``failures``). Exit status: 0 when
everything held, 1 when something did not, 3 when there is no GPU, no PyTorch or no shim. Takes some minutes; nothing is left on the card.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("VGPU_BUILD", ROOT / "build" / "cshim")).resolve()
sys.path.insert(0, str(ROOT / "services" / "node-agent"))

from hami_node_agent.grant_file import Grant, GrantedDevice, encode  # noqa: E402  # the path is set above

LARGEST_LIMIT_MIB = 8192
SHARES = (10, 30, 50, 70)
WITHIN_POINTS = 5.0
OVERHEAD_PERCENT = 2.0
"""What the shim may cost a program that nothing limits."""
RUN_SECONDS = 300
NO_GPU = 3
PIECE_MIB = 64
ALLOCATORS = {"plain": "", "expandable segments": "expandable_segments:True", "driver's pools": "backend:cudaMallocAsync"}

# What runs in each process; its last line is JSON. The first asks the driver itself, since PyTorch may be the one that is missing.
IDENTITY = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as exc:
    raise SystemExit(f"there is no CUDA driver: {exc}")
uuid, total, count = ctypes.create_string_buffer(16), ctypes.c_size_t(), ctypes.c_int()
if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
    raise SystemExit("the CUDA driver shows no GPU")
if cuda.cuDeviceGetUuid_v2(uuid, 0) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0):
    raise SystemExit("the CUDA driver does not say which GPU that is")
text = uuid.raw.hex()
print(json.dumps({"uuid": "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])), "total_mib": total.value >> 20}))
"""
TORCH = """
import json, torch
if not torch.cuda.is_available():
    raise SystemExit("this PyTorch finds no GPU: is it a build with CUDA, and is the driver new enough?")
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name(0)}))
"""
VIEWS = """
import json, time
started = time.monotonic()
import torch
imported = time.monotonic()
free, total = torch.cuda.mem_get_info()
print(json.dumps({"free_mib": free >> 20, "total_mib": total >> 20, "start_seconds": round(time.monotonic() - imported, 3)}))
"""
FILL = f"""
import json, sys, torch
held = []
try:
    while True:
        held.append(torch.empty({PIECE_MIB} << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    pass
print(json.dumps({{"held_mib": {PIECE_MIB} * len(held)}}), flush=True)
sys.stdin.readline()
"""
WORK = """
import itertools, json, sys, time, torch
a = torch.randn(2048, 2048, device="cuda")
def once():
    for _ in range(20): torch.mm(a, a)
def shapes():
    for _ in range(20): torch.mm(a[:1024 + next(sizes) % 1024], a)
def replay():
    graph.replay()
sizes = itertools.count()
run = shapes if "shapes" in sys.argv else once
for _ in range(5): once()
torch.cuda.synchronize()
if "graph" in sys.argv:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): once()
    run = replay
    for _ in range(5): run()
    torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
count, started = 0, time.monotonic()
while time.monotonic() - started < 5:
    run()
    torch.cuda.synchronize()
    count += 20
print(json.dumps({"per_second": round(count / (time.monotonic() - started), 2)}))
"""

failures: list[str] = []


class Run:
    """One Python process on the card, under the shim where it has a grant."""

    def __init__(self, code: str, grant: Path | None = None, *arguments: str, allocator: str = "") -> None:
        environment = dict(os.environ)
        if grant is not None:
            environment |= {"LD_PRELOAD": str(BUILD / "libvgpu.so"), "HAMI_GRANT_FILE": str(grant)}
        if allocator:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = allocator
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Its next line; empty when it has ended."""
        return self._process.stdout.readline() if self._process.stdout else ""

    def go(self) -> None:
        """Let it go on from where it waits."""
        with contextlib.suppress(BrokenPipeError):  # it has failed: its result says so
            if self._process.stdin:
                self._process.stdin.write("\n")
                self._process.stdin.flush()

    def result(self) -> Any:
        """Let it go on, wait for it; return what its last line says, None when it failed or has said all before."""
        try:
            output, errors = self._process.communicate("\n", timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            failures.append(f"a process was not done after {RUN_SECONDS} s")
            return None
        if self._process.returncode == 0:
            return json.loads(output.strip().splitlines()[-1]) if output.strip() else None
        failures.append((errors.strip().splitlines() or [f"a process ended with {self._process.returncode}"])[-1])
        return None

    def kill(self) -> None:
        """End it at once, without a word to anybody."""
        self._process.kill()
        self._process.communicate()


class Container:
    """A grant and a region of its own, as one container has them."""

    def __init__(self, folder: Path, name: str, uuid: str, limit_mib: int, sm_percent: int = 100) -> None:
        place = folder / name
        place.mkdir()
        self.grant = place / "grant"
        device = GrantedDevice(uuid=uuid, memory_limit_mib=limit_mib, sm_percent=sm_percent)
        self.grant.write_bytes(
            encode(Grant(pod_uid="", container=name, devices=(device,), region_path=str(place / "region"), core_policy="force"))
        )

    def run(self, code: str, *arguments: str, allocator: str = "") -> Run:
        """Start a process in it."""
        return Run(code, self.grant, *arguments, allocator=allocator)


def per_second(runs: Sequence[Run]) -> list[float | None]:
    """Start all at one moment; return what each got done."""
    for run in runs:
        run.line()
    for run in runs:
        run.go()
    found = [run.result() for run in runs]
    return [one["per_second"] if one else None for one in found]


def percent(part: float | None, whole: float | None) -> float | None:
    """``part`` of ``whole`` in percent."""
    return round(100 * part / whole, 2) if part is not None and whole else None


def measure_memory(new: Callable[..., Container], limit_mib: int) -> dict[str, Any]:
    """What one and four processes get, and what is left when they are gone."""
    container = new("memory")
    report: dict[str, Any] = {"views": container.run(VIEWS).result()}
    report["bare_start"] = Run(VIEWS).result()
    report["nvml"] = smi(container)
    report["filled"] = {name: container.run(FILL, allocator=setting).result() for name, setting in ALLOCATORS.items()}
    together = [container.run(FILL) for _ in range(4)]
    lines = [run.line() for run in together]  # each holds what it has until the last has said so
    report["filled_by_four"] = [json.loads(line)["held_mib"] if line.startswith("{") else None for line in lines]
    report["full_view"] = container.run(VIEWS).result()
    together[0].kill()
    for run in together[1:]:
        run.result()
    report["after_them"] = container.run(VIEWS).result()
    sums = [one["held_mib"] if one else None for one in report["filled"].values()] + [sum(one or 0 for one in report["filled_by_four"])]
    least = limit_mib - 1024  # what a context, cuBLAS and an allocator's slack may take
    views = [report["views"], report["after_them"]]
    report["held"] = all(one is not None and least <= one <= limit_mib for one in sums) and all(
        one is not None and one["total_mib"] == limit_mib and limit_mib - one["free_mib"] < 1024 for one in views
    )
    return report


def smi(container: Container) -> Any:
    """What NVML shows in the container."""
    environment = os.environ | {"LD_PRELOAD": str(BUILD / "libvgpu.so"), "HAMI_GRANT_FILE": str(container.grant)}
    done = subprocess.run([str(BUILD / "vgpu-smi"), "--json"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def measure_compute(new: Callable[..., Container]) -> dict[str, Any]:
    """Throughput with and without the shim, and under compute shares, alone and against a neighbour."""
    (bare,) = per_second([Run(WORK)])
    (bare_shapes,) = per_second([Run(WORK, None, "shapes")])  # a thousand sizes, each a kernel of its own
    (free,) = per_second([new("free").run(WORK)])
    report: dict[str, Any] = {"without_per_second": bare, "with_per_second": free, "with_percent": percent(free, bare), "shares": {}}
    for share in SHARES:
        (plain,) = per_second([new(f"share{share}", sm_percent=share).run(WORK)])
        (graph,) = per_second([new(f"graph{share}", sm_percent=share).run(WORK, "graph")])
        (shapes,) = per_second([new(f"shapes{share}", sm_percent=share).run(WORK, "shapes")])
        report["shares"][share] = {
            "kernels": percent(plain, bare),
            "graphs": percent(graph, bare),
            "shapes": percent(shapes, bare_shapes),
        }
    pair = new("pair", sm_percent=50)
    report["two_processes_of_50"] = [percent(one, bare) for one in per_second([pair.run(WORK), pair.run(WORK)])]
    neighbours = [new("seventy", sm_percent=70).run(WORK), new("thirty", sm_percent=30).run(WORK)]
    report["neighbours_of_70_and_30"] = [percent(one, bare) for one in per_second(neighbours)]
    errors = [abs(found - share) if found is not None else 100.0 for share, ways in report["shares"].items() for found in ways.values()]
    report["worst_points"] = round(max(errors), 2)
    report["held"] = max(errors) <= WITHIN_POINTS and (report["with_percent"] or 0) >= 100 - OVERHEAD_PERCENT
    return report


def lacking() -> tuple[str, dict[str, Any]]:
    """Why nothing can be tested here, empty where all is there; and what there is."""
    if not (BUILD / "libvgpu.so").is_file():
        return f"{BUILD / 'libvgpu.so'} is not built: make -C cshim all", {}
    found: dict[str, Any] = {}
    for code in (IDENTITY, TORCH):
        said = Run(code).result()
        if said is None:
            return failures[-1], found
        found |= said
    return "", found


def main() -> int:
    """Measure everything and print one JSON object."""
    reason, report = lacking()
    if reason:
        print(json.dumps({"gpu": None, "reason": f"nothing was tested: {reason}"}))
        return NO_GPU
    limit_mib = min(LARGEST_LIMIT_MIB, report["total_mib"] // 2)
    with tempfile.TemporaryDirectory() as folder:

        def new(name: str, sm_percent: int = 100) -> Container:
            return Container(Path(folder), name, report["uuid"], limit_mib, sm_percent)

        report |= {"limit_mib": limit_mib, "memory": measure_memory(new, limit_mib), "compute": measure_compute(new)}
    report |= {"failures": failures, "held": report["memory"]["held"] and report["compute"]["held"]}
    print(json.dumps(report, indent=2))
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

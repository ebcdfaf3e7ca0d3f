"""The shim on a real GPU, with PyTorch: limits, views, several processes, throughput, accuracy of the compute share.

Run by hand on a machine that has both (``pip install torch``)::

    make -C cshim all && python cshim/tests/gpu/run.py > gpu.json

Prints one JSON object. Exit status: 0 when everything held, 1 when something did not, 3 when there is no GPU or no PyTorch.
"""

# ruff: noqa: INP001  # a script beside the C sources, not a package

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("VGPU_BUILD", ROOT / "build" / "cshim")).resolve()
sys.path.insert(0, str(ROOT / "services" / "node-agent"))

from hami_node_agent.grant_file import Grant, GrantedDevice, encode  # noqa: E402  # the path is set above

LIMIT_MIB = 8192
SHARES = (10, 30, 50, 70)

# What runs in each process; the last line of its output is JSON.
IDENTITY = "import torch, json; p = torch.cuda.get_device_properties(0); print(json.dumps({'uuid': 'GPU-' + str(p.uuid), 'name': p.name}))"
VIEWS = "import torch, json; free, total = torch.cuda.mem_get_info(); print(json.dumps({'free_mib': free >> 20, 'total_mib': total >> 20}))"
FILL = """
import json, torch
held = []
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    pass
print(json.dumps({"held_mib": 64 * len(held)}))
"""
WORK = """
import json, time, torch
a = torch.randn(2048, 2048, device="cuda"); torch.cuda.synchronize()
for _ in range(50): a @ a
torch.cuda.synchronize(); started = time.monotonic(); count = 0
while time.monotonic() - started < 5:
    for _ in range(20): a @ a
    torch.cuda.synchronize(); count += 20
print(json.dumps({"per_second": count / (time.monotonic() - started)}))
"""


def write_grant(folder: Path, uuid: str, limit_mib: int, sm_percent: int) -> Path:
    """Write a grant of one device; return its path."""
    device = GrantedDevice(uuid=uuid, memory_limit_mib=limit_mib, sm_percent=sm_percent)
    path = folder / "grant"
    path.write_bytes(encode(Grant(pod_uid="", container="", devices=(device,), region_path=str(folder / "region"))))
    return path


def start(code: str, grant: Path | None) -> subprocess.Popen[str]:
    """Start Python on ``code``, under the shim where there is a grant."""
    extra = {} if grant is None else {"LD_PRELOAD": str(BUILD / "libvgpu.so"), "HAMI_GRANT_FILE": str(grant)}
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | extra, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Any:
    """Wait for a process; return what its last line says, or None when it failed."""
    output, _ = process.communicate(timeout=300)
    return json.loads(output.strip().splitlines()[-1]) if process.returncode == 0 and output.strip() else None


def main() -> int:
    """Measure everything and print one JSON object."""
    identity = result(start(IDENTITY, None))
    if identity is None:
        print(json.dumps({"gpu": None, "reason": "no GPU, or no PyTorch that can use it, was found: nothing was tested"}))
        return 3
    report: dict[str, Any] = {"gpu": identity["name"], "uuid": identity["uuid"], "limit_mib": LIMIT_MIB}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grant = write_grant(folder, identity["uuid"], LIMIT_MIB, 100)
        report["views"] = result(start(VIEWS, grant))
        report["filled"] = result(start(FILL, grant))
        together = [start(FILL, grant) for _ in range(4)]
        report["filled_by_four"] = [result(process) for process in together]
        bare, shimmed = result(start(WORK, None)), result(start(WORK, grant))
        report["throughput"] = {"without": bare, "with": shimmed}
        report["shares"] = {}
        for share in SHARES:
            limited = result(start(WORK, write_grant(folder, identity["uuid"], LIMIT_MIB, share)))
            if bare and limited:
                report["shares"][share] = round(100 * limited["per_second"] / bare["per_second"], 2)
    views, filled = report["views"], report["filled"]
    report["held"] = bool(
        views and filled and views["total_mib"] == LIMIT_MIB and filled["held_mib"] <= LIMIT_MIB and all(report["filled_by_four"])
    )
    print(json.dumps(report, indent=2))
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""How the shim is built: what others run meanwhile is never half there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_library_that_others_may_be_starting_with_is_replaced_in_one_step(tmp_path: Path) -> None:
    command = ["make", "--no-print-directory", "-n", "-B", "-C", str(ROOT / "cshim"), "all", f"BUILD={tmp_path}"]
    planned = subprocess.run(command, check=True, capture_output=True, text=True).stdout.replace("\\\n", " ")
    written = set(re.findall(rf" -o {tmp_path}/(\S+)", planned))
    moved = set(re.findall(rf"^mv -f {tmp_path}/(\S+)\.new {tmp_path}/\1$", planned, re.MULTILINE))
    assert {"libvgpu.so", "fake/libcuda.so.1", "fake/libnvidia-ml.so.1", "vgpu-alloc", "vgpu-smi"} <= moved
    assert {path for path in written if not path.endswith(".o")} == {f"{path}.new" for path in moved}

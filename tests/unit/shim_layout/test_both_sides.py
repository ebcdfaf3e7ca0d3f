"""What Python writes, C reads, and the other way round."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hami_node_agent import shim_layout as layout
from hami_node_agent.grant_file import Grant, GrantedDevice, encode

CSHIM = Path(__file__).resolve().parents[3] / "cshim"
UUID = "GPU-0a0b0c0d-0000-4000-8000-0000000000ff"


@pytest.fixture(scope="module")
def inspect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("inspect") / "vgpu-inspect"
    source = CSHIM / "programs" / "vgpu-inspect.c"
    subprocess.run(["gcc", "-std=gnu11", f"-I{CSHIM / 'include'}", "-o", str(program), str(source)], check=True)
    return program


def inspected(inspect: Path, path: Path) -> tuple[int, Any]:
    done = subprocess.run([str(inspect), str(path)], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def a_grant() -> Grant:
    devices = (
        GrantedDevice(uuid=UUID, memory_limit_mib=4096, sm_percent=30),
        GrantedDevice(uuid="GPU-2", memory_limit_mib=1, sm_percent=0),
    )
    return Grant(pod_uid="u-1", container="main", devices=devices, region_path="/usr/local/vgpu/r", core_policy="force", priority=2)


def test_a_grant_of_the_agent_is_one_that_the_shim_takes(inspect: Path, tmp_path: Path) -> None:
    path = tmp_path / "grant"
    path.write_bytes(encode(a_grant()))
    status, shown = inspected(inspect, path)
    assert (status, shown["valid"], shown["fault"]) == (0, True, "")
    assert (shown["pod_uid"], shown["container"], shown["region_path"]) == ("u-1", "main", "/usr/local/vgpu/r")
    assert (shown["core_policy"], shown["priority"], shown["core_switch"]) == (1, 2, 1)
    assert [(d["uuid"], d["memory_limit_bytes"], d["sm_percent"]) for d in shown["devices"]] == [(UUID, 4 << 30, 30), ("GPU-2", 1 << 20, 0)]


def test_a_whole_card_is_taken(inspect: Path, tmp_path: Path) -> None:
    path = tmp_path / "grant"
    path.write_bytes(
        encode(Grant(pod_uid="", container="", devices=(GrantedDevice(uuid=UUID, memory_limit_mib=0, sm_percent=0, whole=True),)))
    )
    assert inspected(inspect, path)[1]["valid"]


def test_one_changed_byte_is_refused(inspect: Path, tmp_path: Path) -> None:
    data = bytearray(encode(a_grant()))
    data[layout.GRANT.offset("devices") + layout.GRANT_DEVICE.offset("memory_limit_bytes")] ^= 1
    path = tmp_path / "grant"
    path.write_bytes(data)
    status, shown = inspected(inspect, path)
    assert (status, shown["valid"]) == (2, False)
    assert "checksum" in shown["fault"]


def test_a_region_is_read_by_both_alike(inspect: Path, tmp_path: Path) -> None:
    data = bytearray(layout.REGION.size)
    layout.write_uint(data, layout.REGION, "identity", layout.REGION_MAGIC)
    layout.write_uint(data, layout.REGION, "device_count", 1)
    slot = layout.REGION.offset("slots", 7)
    layout.write_uint(data, layout.REGION_SLOT, "owner", 1234 | 99 << layout.REGION_PID_BITS, base=slot)
    use = slot + layout.REGION_SLOT.offset("use", 0)
    layout.write_uint(data, layout.REGION_USE, "used", 5 << 44 | 300 << 20, base=use)
    layout.write_uint(data, layout.REGION_USE, "launches", 17, base=use)
    path = tmp_path / "region"
    path.write_bytes(data)
    status, shown = inspected(inspect, path)
    assert status == 0
    assert shown["processes"] == [{"slot": 7, "pid": 1234, "devices": [{"used_bytes": 300 << 20, "launches": 17, "busy_ns": 0}]}]

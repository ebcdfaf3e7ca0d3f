"""The checkpoint is the one that kubelet writes, and a torn one is never believed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_rig.kubelet import checkpoint
from hami_rig.kubelet.devices import Held

RECORDED = Path(__file__).with_name("kubelet-1.37.2-checkpoint.json")
"""What a real one wrote for a pod of an init container and two others, which have got its ids again."""
HELD = Held(pod_uid="uid-1", container="main", resource="nvidia.com/gpu", ids=("GPU-a-3", "GPU-a-7"), answer=b"\x0a\x02hi")


def test_the_members_are_kubelets() -> None:
    file = msgspec.json.decode(checkpoint.encode([HELD], {"nvidia.com/gpu": {"GPU-a-7", "GPU-a-3"}}))
    assert file["Data"] == {
        "PodDeviceEntries": [
            {
                "PodUID": "uid-1",
                "ContainerName": "main",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"-1": ["GPU-a-3", "GPU-a-7"]},
                "AllocResp": "CgJoaQ==",
            }
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a-3", "GPU-a-7"]},
    }


def test_a_real_kubelets_checkpoint_is_read_and_its_checksum_is_ours() -> None:
    held, resources = checkpoint.decode(RECORDED.read_bytes())
    assert {(each.container, len(each.ids)) for each in held} == {("i", 2), ("c0", 1), ("c1", 1)}
    assert resources == ("nvidia.com/gpu",)
    written = checkpoint.encode(held, msgspec.json.decode(RECORDED.read_bytes())["Data"]["RegisteredDevices"])
    assert checkpoint.decode(written) == (held, resources)


def test_a_change_anywhere_is_noticed() -> None:
    file = msgspec.json.decode(RECORDED.read_bytes())
    for member in ("PodUID", "ContainerName", "ResourceName"):
        changed = msgspec.json.decode(RECORDED.read_bytes())
        changed["Data"]["PodDeviceEntries"][0][member] += "x"
        with pytest.raises(checkpoint.CheckpointError, match="checksum"):
            checkpoint.decode(msgspec.json.encode(changed))
    file["Data"]["RegisteredDevices"]["nvidia.com/gpu"].reverse()
    with pytest.raises(checkpoint.CheckpointError, match="checksum"):
        checkpoint.decode(msgspec.json.encode(file))


def test_what_is_written_is_read() -> None:
    assert checkpoint.decode(checkpoint.encode([HELD], {"nvidia.com/gpu": ["x"]})) == ((HELD,), ("nvidia.com/gpu",))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_raise_the_documented_error(content: bytes) -> None:
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.decode(content)


def test_a_changed_checkpoint_is_refused() -> None:
    content = checkpoint.encode([HELD], {})
    with pytest.raises(checkpoint.CheckpointError, match="checksum"):
        checkpoint.decode(content.replace(b"uid-1", b"uid-2"))

"""The checkpoint is the one that kubelet writes, and a torn one is never believed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_rig.kubelet import checkpoint
from hami_rig.kubelet.devices import Held

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
    assert isinstance(file["Checksum"], int)


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

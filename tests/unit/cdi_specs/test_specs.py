"""CDI specs: complete, one device per container, void for NVIDIA's own runtime."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import cdi
from hami_node_agent.cdi import CdiError, DeviceNode, Edits, Hook, Mount

# What `nvidia-ctk cdi generate` writes, shortened to one of each part.
GENERATED = b"""
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia0
        - path: /dev/dri/card1
  - name: GPU-b
    containerEdits:
      deviceNodes:
        - path: /dev/nvidia1
  - name: all
    containerEdits:
      deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}]
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=all]
  deviceNodes: [{path: /dev/nvidiactl}]
  hooks:
    - {hookName: createContainer, path: /usr/bin/nvidia-ctk, args: [nvidia-ctk, hook, update-ldcache, --folder, /usr/lib64]}
  mounts:
    - {hostPath: /usr/lib64/libcuda.so.550, containerPath: /usr/lib64/libcuda.so.550, options: [ro, bind]}
"""


def test_a_spec_has_the_form_that_runtimes_read() -> None:
    edits = Edits(
        env=("A=1",),
        device_nodes=(DeviceNode(path="/dev/nvidia0"),),
        mounts=(Mount(host_path="/h", container_path="/c", options=("ro",)),),
        hooks=(Hook(hook_name="createContainer", path="/bin/x", args=("x",)),),
    )
    assert json.loads(cdi.encode({"c1": edits})) == {
        "cdiVersion": "0.5.0",
        "kind": "hami.io/gpu",
        "devices": [
            {
                "name": "c1",
                "containerEdits": {
                    "env": ["A=1", "NVIDIA_VISIBLE_DEVICES=void"],
                    "deviceNodes": [{"path": "/dev/nvidia0"}],
                    "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro"]}],
                    "hooks": [{"hookName": "createContainer", "path": "/bin/x", "args": ["x"]}],
                },
            }
        ],
    }


def test_every_container_is_void_for_nvidias_own_runtime_whatever_it_is_merged_from() -> None:
    spec = cdi.decode(cdi.encode({"c1": Edits(env=("NVIDIA_VISIBLE_DEVICES=all",)), "c2": Edits()}))
    for device in spec.devices:
        assert [one for one in device.container_edits.env if one.startswith("NVIDIA_VISIBLE_DEVICES")] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_what_nvidia_ctk_generated_is_merged_by_uuid_or_index() -> None:
    found = cdi.driver_edits(cdi.decode(GENERATED), {"GPU-a": 0, "GPU-b": 1})
    assert [node.path for node in found.for_devices(["GPU-a"]).device_nodes] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dri/card1"]
    both = found.for_devices(["GPU-b", "GPU-a"])
    assert [node.path for node in both.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0", "/dev/dri/card1"]
    assert len(both.mounts) == len(both.hooks) == 1


def test_a_card_that_the_generated_spec_lacks_is_an_error_that_names_what_it_has() -> None:
    with pytest.raises(CdiError, match=r"GPU-c.*0, GPU-b, all"):
        cdi.driver_edits(cdi.decode(GENERATED), {"GPU-c": 7})


@pytest.mark.parametrize("content", [b"", b"[]", b"kind: 7", b"\xff\xfe", b"cdiVersion: 0.5.0\nkind: a/b\ndevices: [{name: 1}]"])
def test_a_file_that_is_no_spec_is_refused(content: bytes) -> None:
    with pytest.raises(CdiError):
        cdi.decode(content)


def test_merging_keeps_the_order_and_each_thing_once() -> None:
    one = Edits(env=("A=1", "B=1"), mounts=(Mount(host_path="/1", container_path="/c"),))
    two = Edits(env=("A=2",), mounts=(Mount(host_path="/2", container_path="/c"),))
    both = cdi.merged(one, two)
    assert both.env == ("A=2", "B=1")
    assert [mount.host_path for mount in both.mounts] == ["/2"]
    assert cdi.merged(both, both) == both


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a" * 65, "a.b", "a\n"])
def test_no_file_is_named_after_what_is_no_uid(uid: str) -> None:
    with pytest.raises(CdiError):
        cdi.file_name(uid)


@given(st.uuids())
def test_a_file_names_its_pod(uid: object) -> None:
    assert cdi.pod_uid_of(cdi.file_name(str(uid))) == str(uid)
    assert cdi.pod_uid_of(f"nvidia-{uid}.json") == ""

"""Kubelet's checkpoint: what is read, and that nothing else than ``Unreadable`` comes of what cannot be."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import checkpoint
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.checkpoint import Checkpoint, HeldDevices, Unreadable


def an_entry(
    pod: str = "uid-p1", container: str = "main", ids: Any = None, answer: api.ContainerAllocateResponse | None = None
) -> dict[str, Any]:
    return {
        "PodUID": pod,
        "ContainerName": container,
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"-1": ["GPU-a-0"]} if ids is None else ids,
        "AllocResp": base64.b64encode((answer or api.ContainerAllocateResponse()).SerializeToString()).decode(),
    }


def a_file(*entries: dict[str, Any]) -> bytes:
    return json.dumps(
        {"Data": {"PodDeviceEntries": list(entries), "RegisteredDevices": {"nvidia.com/gpu": ["GPU-a-0"]}}, "Checksum": 7}
    ).encode()


def test_each_container_is_read_with_its_ids_and_our_answer() -> None:
    answer = api.ContainerAllocateResponse(envs={"A": "1"}, cdi_devices=[api.CDIDevice(name="hami.io/gpu=c1")])
    assert checkpoint.decode(a_file(an_entry(ids={"0": ["x"], "1": ["y", "z"]}, answer=answer))) == Checkpoint(
        held=(
            HeldDevices(
                pod_uid="uid-p1",
                container="main",
                resource="nvidia.com/gpu",
                device_ids=frozenset({"x", "y", "z"}),
                cdi_names=("hami.io/gpu=c1",),
                environment=(("A", "1"),),
            ),
        )
    )


@pytest.mark.parametrize("ids", [["x", "y"], {"-1": ["x", "y"]}, {"0": ["x"], "1": ["y"], "2": None}])
def test_ids_are_read_by_numa_node_and_as_the_plain_list_of_old_kubelets(ids: Any) -> None:
    found = checkpoint.decode(a_file(an_entry(ids=ids)))
    assert isinstance(found, Checkpoint)
    assert found.held[0].device_ids == {"x", "y"}


def test_a_kubelet_that_has_given_nothing_has_a_checkpoint_without_entries() -> None:
    assert checkpoint.decode(b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}') == Checkpoint(held=())


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        a_file(an_entry())[:-20],
        b'{"Data":{},"Checksum":1}',
        b'{"V2":{"Entries":[]}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}',
        a_file({**an_entry(), "AllocResp": "not base64!"}),
        a_file({**an_entry(), "AllocResp": base64.b64encode(b"\xff\xff\xff").decode()}),
        b"[" * 100_000,
    ],
    ids=["absent", "empty", "truncated", "no entries", "another version", "wrong type", "not base64", "not an answer", "deeply nested"],
)
def test_what_is_in_no_known_form_is_unreadable_with_a_reason(content: bytes | None) -> None:
    found = checkpoint.decode(content)
    assert isinstance(found, Unreadable)
    assert found.reason


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_are_unreadable(content: bytes) -> None:
    assert isinstance(checkpoint.decode(content), Checkpoint | Unreadable)


@given(st.integers(min_value=0, max_value=1000))
def test_a_file_cut_anywhere_is_unreadable(cut: int) -> None:
    whole = a_file(an_entry(), an_entry("uid-p2"))
    assert isinstance(checkpoint.decode(whole[: cut % len(whole)]), Unreadable)

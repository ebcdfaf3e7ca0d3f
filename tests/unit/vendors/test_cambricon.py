"""Cambricon MLU: worked examples."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.requests import RequestError
from hami_protocol import assignment
from hami_protocol.errors import RecordError
from tests.builders import a_device, example
from tests.unit.vendors.vendor_world import BINARY_SUFFIX, a_node_with, asked, devices, figures, held, share, written

COUNT, MEMORY, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"


@pytest.mark.parametrize(
    ("cores", "memory", "uuids", "memory_mib"),
    [
        example("Cambricon 476", 1, 1, ["test-cambricon-mlu-0"], 25600),
        example("Cambricon 477", 200, 4096, ["test-cambricon-mlu-0", "test-cambricon-mlu-1"], 524288),
        pytest.param(0, 0, [], 0, id="no capacity"),
    ],
)
def test_devices_are_counted_from_capacity(cores: int, memory: int, uuids: list[str], memory_mib: int) -> None:
    found = devices("MLU", a_node_with({CORES: str(cores), MEMORY: str(memory)}))
    assert [device.uuid for device in found] == uuids
    assert all((device.memory_mib, device.cores, device.shares, device.type) == (memory_mib, 100, 100, "MLU") for device in found)


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        example("Cambricon 478", {COUNT: 1, MEMORY: 1000, CORES: 2}, (1, 256000, 0, 2)),
        example("Cambricon 479", {COUNT: 1, MEMORY: 1000}, (1, 256000, 0, 100)),
        example("Cambricon 480", {COUNT: 1, CORES: 2}, (1, 0, 100, 2)),
        example("Cambricon 481 16Gi", {COUNT: 1, MEMORY: "16Gi"}, (1, 16384, 0, 100), departs=BINARY_SUFFIX),
        example("Cambricon 481 16.0Gi", {COUNT: 1, MEMORY: "16.0Gi"}, (1, 16384, 0, 100), departs=BINARY_SUFFIX),
    ],
)
def test_containers_ask_for(limits: dict[str, Any], result: tuple[int, int, int, int]) -> None:
    assert figures(asked(limits)) == result


def test_memory_and_cores_are_asked_of_a_device() -> None:
    with pytest.raises(RequestError, match=r"limits\[cambricon.com/vmlu\]: missing"):
        asked({MEMORY: 10})


@pytest.mark.example("Cambricon 482")
def test_the_plugin_reads_a_profile_and_a_flag() -> None:
    given = held("MLU", [share("device-0", "MLU", 256000, 1)])
    assert written(given, a_device("device-0")) == {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": "0_1_1000"}
    assert assignment.encode(given) == "device-0,MLU,256000,1:;"


@pytest.mark.parametrize("capacity", [{CORES: "-1"}, {CORES: "1.5"}, {CORES: "9000000"}, {CORES: "1", MEMORY: "2147483647"}])
def test_a_capacity_that_no_node_has_fences_it(capacity: dict[str, str]) -> None:
    with pytest.raises(RecordError):
        devices("MLU", a_node_with(capacity))

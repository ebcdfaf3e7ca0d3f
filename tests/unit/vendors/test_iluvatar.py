"""Iluvatar: one vendor per chip, units of 256 MiB."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.admission import AddEnv, SetLimit
from hami_devices.config_sections import ILUVATARS
from hami_protocol.errors import RecordError
from tests.builders import a_state, example
from tests.unit.vendors.vendor_world import BINARY_SUFFIX, a_node_with, asked, changes, devices, figures, fit

COUNT, MEMORY, CORES = "iluvatar.ai/MR-V100-vgpu", "iluvatar.ai/MR-V100.vMem", "iluvatar.ai/MR-V100.vCore"
REGISTER = "hami.io/node-MR-V100-register"
NAMED = AddEnv(path="spec.containers[0]", name="SOL_CONTINER_NAME", value="main")


@pytest.mark.example("Iluvatar 785")
def test_devices_are_registered_as_text() -> None:
    (device,) = devices("MR-V100", a_node_with(annotations={REGISTER: "GPU-b,10,8192,100,MR-V100,0,true:"}))
    assert (device.shares, device.memory_mib) == (10, 8192)


@pytest.mark.departs("an empty text registers no device, which is no error: the reference writes it where a vendor has none")
@pytest.mark.example("Iluvatar 786 empty")
def test_an_empty_registration_is_no_error() -> None:
    assert devices("MR-V100", a_node_with(annotations={REGISTER: ""})) == ()


def test_a_registration_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(RecordError):
        devices("MR-V100", a_node_with(annotations={REGISTER: "GPU-b"}))


@pytest.mark.departs("both forms are read for every vendor; an empty list registers no device, which is no error")
@pytest.mark.example("Iluvatar 786 list")
def test_an_empty_list_is_no_error() -> None:
    assert devices("MR-V100", a_node_with(annotations={REGISTER: "[]"})) == ()


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        example("Iluvatar 787", {COUNT: 1, MEMORY: 1000, CORES: 100}, (1, 256000, 0, 100)),
        example("Iluvatar 788", {COUNT: 1}, (1, 0, 100, 0)),
        example("Iluvatar 789 16Gi", {COUNT: 1, MEMORY: "16Gi"}, (1, 16384, 0, 0), departs=BINARY_SUFFIX),
        example("Iluvatar 789 16.0Gi", {COUNT: 1, MEMORY: "16.0Gi"}, (1, 16384, 0, 0), departs=BINARY_SUFFIX),
    ],
)
def test_containers_ask_for(limits: dict[str, Any], result: tuple[int, ...]) -> None:
    assert figures(asked(limits)) == result


@pytest.mark.example("Iluvatar 790")
def test_several_devices_come_with_all_their_cores() -> None:
    assert set(changes({COUNT: 2, CORES: 1})) == {NAMED, SetLimit(path="spec.containers[0]", resource=CORES, value="200")}
    assert changes({COUNT: 1}) == (NAMED,)


@pytest.mark.departs("cores in the limits are those of all devices, booked are those of each")
@pytest.mark.example("edge 59")
def test_cores_are_booked_once_for_each_device() -> None:
    assert figures(asked({COUNT: 2, CORES: 200})) == figures(asked({COUNT: 2})) == (2, 0, 100, 100)


@pytest.mark.example("Iluvatar 792")
def test_mutex_wants_a_device_that_nobody_uses() -> None:
    request = asked({COUNT: 1, MEMORY: 1})
    assert request is not None
    states = [a_state(vendor="MR-V100", shares=100, used_shares=1)]
    assert fit(states, request, policy="mutex") == "1/1 ExclusiveDeviceAllocateConflict"


@pytest.mark.parametrize("chip", ILUVATARS, ids=lambda chip: chip.common_word)
def test_every_chip_of_the_default_configuration_is_asked_by_its_own_names(chip: Any) -> None:
    request = asked({chip.count_resource: 1, chip.memory_resource: 4, chip.cores_resource: 10})
    assert request is not None
    assert (request.vendor, *figures(request)) == (chip.common_word, 1, 1024, 0, 10)  # type: ignore[misc]

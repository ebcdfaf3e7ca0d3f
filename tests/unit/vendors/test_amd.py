"""AMD: percent become compute units, the text names the model."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState
from hami_devices.requests import RequestError
from hami_devices.vendors.amd import compute_units
from hami_protocol import assignment
from tests.builders import a_device, a_request, a_state, example
from tests.unit.vendors.vendor_world import REFUSED, asked, figures, fit, share

COUNT, MEMORY, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
BOTH_READ = "limits, else requests, for every vendor"


def some(**more: Any) -> DeviceRequest:
    request = asked({COUNT: 1, **more})
    assert request is not None
    return request


def card(number: int = 0, **fields: Any) -> DeviceState:
    return a_state(vendor="AMD", **{"uuid": f"dev-{number}", "index": number, "memory_mib": 1000, "type": "AMD_Instinct_MI300X", **fields})


@pytest.mark.parametrize(
    ("limits", "requests", "result"),
    [
        example("AMD 830", {COUNT: 2, MEMORY: 4096, CORES: 33}, None, (2, 4096, 0, 33)),
        example("AMD 831", {COUNT: 1, MEMORY: 4096}, None, (1, 4096, 0, 100)),
        example("AMD 834", None, {COUNT: 1}, (1, 0, 100, 100), departs=BOTH_READ),
    ],
)
def test_containers_ask_for(limits: dict[str, Any] | None, requests: dict[str, Any] | None, result: tuple[int, ...]) -> None:
    assert figures(asked(limits, requests=requests)) == result


@pytest.mark.parametrize(
    "limits",
    [
        example("AMD 832 count", {COUNT: 2**31}, departs=REFUSED),
        example("AMD 832 memory", {COUNT: 1, MEMORY: -1}, departs=REFUSED),
        example("AMD 832 core 0", {COUNT: 1, CORES: 0}, departs=REFUSED),
        example("AMD 832 core 101", {COUNT: 1, CORES: 101}, departs=REFUSED),
        example("AMD 833 0", {COUNT: 1, CORES: 0}),
        example("AMD 833 101", {COUNT: 1, CORES: 101}),
        example("AMD 835 memory", {MEMORY: 100}, departs="memory or cores without a count are refused: nobody knows of how many cards"),
        example("AMD 835 cores", {CORES: 10}, departs="memory or cores without a count are refused: nobody knows of how many cards"),
    ],
)
def test_what_cannot_be_given_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"limits\[amd.com/gpu"):
        asked(limits)


@pytest.mark.example("AMD 832 none")
def test_no_count_is_no_request() -> None:
    assert asked({"cpu": 1}) is None
    assert asked({COUNT: 0}) is None


@pytest.mark.example("AMD 836")
def test_whole_cards_take_all_units() -> None:
    request = DeviceRequest(vendor="AMD", count=2, memory_percent=100, rules=Catalog().vendor("AMD").rules)
    found = fit_node([card(0), card(1)], a_request(request))
    assert isinstance(found, NodeFit)
    given = found.assignments[0].containers[0].shares
    assert [(one.uuid, one.memory_mib, one.cores) for one in given] == [("dev-1", 1000, 100), ("dev-0", 1000, 100)]


@pytest.mark.parametrize(
    ("percent", "total", "units"),
    [
        example("AMD 837 50", 50, 100, 50),
        example("AMD 837 1", 1, 64, 1),
        example("AMD 837 101", 101, 64, 64),
        example("AMD 838 25", 25, 304, 76),
        example("AMD 838 33", 33, 304, 100),
        example("AMD 838 67", 67, 304, 203),
        pytest.param(1, 50, 1, id="never none"),
    ],
)
def test_percent_are_compute_units(percent: int, total: int, units: int) -> None:
    assert compute_units(percent, total) == units


@pytest.mark.example("AMD 839")
def test_the_assignment_names_the_model() -> None:
    found = fit_node([card(type="AMD_Instinct_MI300X_VF")], a_request(some(**{MEMORY: 500, CORES: 25})))
    assert isinstance(found, NodeFit)
    assert assignment.encode(found.assignments[0]) == "dev-0,AMD_Instinct_MI300X_VF,500,25:;"


@pytest.mark.departs("a model that does not say AMD is AMD's where AMD's plugin registers it; separators in it are replaced")
@pytest.mark.example("edge 61")
def test_any_model_is_taken_and_its_text_is_safe() -> None:
    found = fit_node([card(type="MI300X, 8:1;x")], a_request(some(**{MEMORY: 500})))
    assert isinstance(found, NodeFit)
    assert assignment.encode(found.assignments[0]) == "dev-0,MI300X- 8-1-x,500,100:;"


@pytest.mark.example("AMD 840")
def test_memory_in_use_is_not_there() -> None:
    assert fit([card(used_shares=1, used_memory_mib=900)], some(**{MEMORY: 500, CORES: 1})) == "1/1 CardInsufficientMemory"


def test_a_misfit_says_units_where_units_are_booked() -> None:
    found = fit_node([card(cores=304, used_shares=1, used_cores=300)], a_request(some(**{MEMORY: 1, CORES: 25})))
    assert not isinstance(found, NodeFit)
    assert found.detail == "container c0: needs 76 of 304 of one card's cores, most free 4"


@pytest.mark.example("selectors 174")
def test_a_list_of_separators_is_refused() -> None:
    with pytest.raises(RequestError, match=r"amd.com/use-gputype"):
        asked({COUNT: 1}, annotations={"amd.com/use-gputype": ","})


def test_containers_are_told_cards_units_and_memory() -> None:
    environment = Catalog().vendor("AMD").environment
    assert environment is not None
    cards = {uuid: a_device(uuid, index=place) for place, uuid in enumerate(("a", "b", "c"))}
    assert environment([share("b", "MI", 4096, 76), share("c", "MI", 4096, 76)], cards) == {
        "ROCR_VISIBLE_DEVICES": "1,2",
        "HSA_CU_MASK": "0:0-75;1:0-75",
        "HIP_DEVICE_MEMORY_LIMIT": "4096m",
    }

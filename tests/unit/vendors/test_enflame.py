"""Enflame DRS: slices by profile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.admission import SetLimit
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest
from hami_devices.records import read_assignment
from hami_devices.requests import RequestError
from hami_devices.vendors.enflame import profile_for, read_devices, read_profile
from hami_protocol import assignment
from hami_protocol.errors import RecordError
from tests.builders import a_request, a_state, example
from tests.unit.vendors.vendor_world import CATALOG, a_node_with, a_pod_asking, asked, changes, devices, fit, written

SLICES, MEMORY, CORES = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
CAPACITY = '{"devices":[{"index":"0","minor":"0","capacity":6}],"profiles":{"1g.6gb":"0","3g.20gb":"1","6g.40gb":"2"}}'
UNITS = "below 1024 a bare amount is in GiB, from there on in MiB, whatever the node has"


def offered(text: str = CAPACITY) -> Any:
    return devices("Enflame", a_node_with(annotations={"enflame.com/gcu-drs-capacity": text}, name="n1"))


def some(**limits: Any) -> DeviceRequest:
    names = {"slices": SLICES, "memory": MEMORY, "cores": CORES}
    request = asked({names[name]: amount for name, amount in limits.items()})
    assert request is not None
    return request


@pytest.mark.example("Enflame DRS 614")
def test_a_node_offers_slices() -> None:
    (device,) = offered()
    assert (device.uuid, device.memory_mib, device.shares, device.cores) == ("n1-enflame-drs-0", 40960, 6, 100)
    assert device.custom_info["minor"] == "0"


@pytest.mark.parametrize(
    ("limits", "profile", "memory_mib", "cores"),
    [
        example("Enflame DRS 615", {"slices": 3}, "3g.20gb", 20480, 50),
        example("Enflame DRS 616", {"memory": 20480, "cores": 40}, "3g.20gb", 20480, 50),
        example("Enflame DRS 621", {"memory": 30}, "6g.40gb", 40960, 100),
        pytest.param({"memory": "6Gi"}, "1g.6gb", 6144, 17, id="with a unit of its own"),
        pytest.param({"cores": 51}, "6g.40gb", 40960, 100, id="by cores alone"),
    ],
)
def test_the_smallest_profile_is_taken(limits: dict[str, Any], profile: str, memory_mib: int, cores: int) -> None:
    (device,) = offered()
    request = some(**limits)
    found = profile_for(device, request)
    assert found is not None
    assert found.name == profile
    node = fit_node([a_state(device, vendor="Enflame")], a_request(request))
    assert isinstance(node, NodeFit)
    (taken,) = node.assignments[0].containers[0].shares
    assert (taken.memory_mib, taken.cores, taken.slots) == (memory_mib, cores, found.slices)
    assert node.charges[0].shares == found.slices


@pytest.mark.departs(UNITS)
@pytest.mark.parametrize("memory", [example("edge 49 80", 80), example("edge 49 81", 81)])
def test_one_gibibyte_more_never_becomes_a_thousandth(memory: int) -> None:
    assert some(memory=memory).memory_mib == memory * 1024


@pytest.mark.parametrize(
    ("text", "used", "policy", "result"),
    [
        example("Enflame DRS 617", CAPACITY.replace(',"3g.20gb":"1","6g.40gb":"2"', ""), 0, "spread", "1/1 ModeNotFit"),
        example("Enflame DRS 618", CAPACITY, 1, "mutex", "1/1 ExclusiveDeviceAllocateConflict"),
        example(
            "edge 48",
            CAPACITY,
            4,
            "spread",
            "1/1 CardTimeSlicingExhausted",
            departs="slices are counted, where the reference counts 1",
        ),
    ],
)
def test_slices_fit(text: str, used: int, policy: str, result: str) -> None:
    (device,) = offered(text)
    assert fit([a_state(device, vendor="Enflame", used_shares=used)], some(slices=3), policy=policy) == result


OUT_OF_RANGE = "a number that is out of range is refused, not cut to what fits"


@pytest.mark.parametrize(
    ("capacity", "slices"),
    [
        example("Enflame DRS 619 NaN", "NaN", None),
        example("Enflame DRS 619 1e300", "1e300", None),
        example("Enflame DRS 619 42", "42", 42),
        example("Enflame DRS 619 text", '"2147483648"', None, departs=OUT_OF_RANGE),
        pytest.param('"6"', 6, id="as text"),
        pytest.param("0", None, id="none"),
    ],
)
def test_a_capacity_is_a_number_of_slices(capacity: str, slices: int | None) -> None:
    text = CAPACITY.replace('"capacity":6', f'"capacity":{capacity}')
    if slices is None:
        with pytest.raises(RecordError):
            offered(text)
    else:
        assert offered(text)[0].shares == slices


@pytest.mark.parametrize(
    "name",
    [example("Enflame DRS 620 slices", "4294967299g.20gb"), example("Enflame DRS 620 memory", "2g.4294967299gb"), "3g", "", "0g.6gb"],
)
def test_a_profile_that_no_card_has_is_none(name: str) -> None:
    assert read_profile(name, "1") is None


@pytest.mark.parametrize(
    "limits", [{SLICES: 0}, {SLICES: -1}, {MEMORY: 0}, {CORES: 0}, {CORES: 101}, {MEMORY: "1.5"}, {SLICES: 1, MEMORY: "x"}]
)
def test_what_no_profile_gives_is_refused(limits: dict[str, Any]) -> None:
    if limits == {SLICES: 1, MEMORY: "x"}:
        assert asked(limits) is not None  # slices say it all
        return
    with pytest.raises(RequestError, match=r"limits\[enflame.com/"):
        asked(limits)


def test_what_is_only_in_the_requests_becomes_a_limit() -> None:
    assert asked(requests={SLICES: 3}) == some(slices=3)
    assert SetLimit(path="spec.containers[0]", resource=SLICES, value="3") in changes(requests={SLICES: 3})
    assert changes({SLICES: 3}) == ()


def test_the_plugin_reads_the_profile_and_the_ledger_reads_it_back() -> None:
    (device,) = offered()
    node = fit_node([a_state(device, vendor="Enflame")], a_request(some(slices=3)))
    assert isinstance(node, NodeFit)
    (held,) = node.assignments
    pod = a_pod_asking({SLICES: 3})
    told = written(held, device, pod=pod, time_ns=7)
    assert told | {"assigned-containers": ""} == {
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": "7",
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "0",
        "enflame.com/gcu-request-size": "3",
        "assigned-containers": "",
    }
    assert msgspec.json.decode(told["assigned-containers"]) == {
        "c0": {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"}
    }
    annotations = {CATALOG.vendor("Enflame").allocated_key: assignment.encode(held), **told}
    annotations["assigned-containers"] = annotations["assigned-containers"].replace('"c0"', '"main"')
    again = read_assignment(a_pod_asking({SLICES: 3}, annotations=annotations), CATALOG.vendor("Enflame"))
    assert again is not None
    assert again.containers[0].shares == held.containers[0].shares


@pytest.mark.parametrize("text", ["{", "[]", '{"main": 3}', '{"main": {"request": 0}}', '{"main": {"request": "3"}}', "{}"])
def test_slices_that_cannot_be_read_back_are_an_error_never_one(text: str) -> None:
    annotations = {CATALOG.vendor("Enflame").allocated_key: "a,Enflame,20480,50:;", "assigned-containers": text}
    with pytest.raises(RecordError):
        read_assignment(a_pod_asking({SLICES: 3}, annotations=annotations), CATALOG.vendor("Enflame"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.text() | VALUES.map(lambda value: msgspec.json.encode(value).decode()))
def test_any_offer_is_read_or_refused(text: str) -> None:
    try:
        found = read_devices(text, "n1")
    except RecordError:
        return
    assert all(device.shares > 0 for device in found)

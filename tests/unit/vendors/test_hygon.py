"""Hygon DCU: worked examples."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.requests import RequestError
from hami_protocol.errors import RecordError
from tests.builders import a_state, example
from tests.unit.vendors.vendor_world import BINARY_SUFFIX, REFUSED, a_node_with, asked, configured, devices, figures, fit, selectors_of

COUNT, MEMORY, CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
REGISTER = "hami.io/node-dcu-register"


@pytest.mark.example("Hygon 497")
def test_devices_are_registered_as_text() -> None:
    (device,) = devices("DCU", a_node_with(annotations={REGISTER: "test-0,1,1024,100,DCU,0,true,0,test:"}))
    assert (device.shares, device.memory_mib, device.mode, device.index) == (1, 1024, "test", 0)


@pytest.mark.parametrize(
    "text",
    [example("Hygon 498 five", "test-0,1,1024,100,DCU:"), "test-0"],
)
def test_a_registration_that_cannot_be_read_fences_the_node(text: str) -> None:
    with pytest.raises(RecordError):
        devices("DCU", a_node_with(annotations={REGISTER: text}))


@pytest.mark.departs("an empty text registers no device, which is no error: the reference writes it where a vendor has none; so does ':'")
@pytest.mark.parametrize("text", [example("Hygon 498 colon", ":"), example("Hygon 498 empty", "")])
def test_no_device_is_no_error(text: str) -> None:
    assert devices("DCU", a_node_with(annotations={REGISTER: text})) == ()


@pytest.mark.parametrize(
    ("limits", "requests", "result"),
    [
        example("Hygon 499", {COUNT: 1, MEMORY: 1024, CORES: 1}, None, (1, 1024, 0, 1)),
        example("Hygon 500", {COUNT: 1}, {MEMORY: 1024, CORES: 1}, (1, 1024, 0, 1)),
        example("Hygon 501", {COUNT: 1, CORES: 1}, None, (1, 0, 100, 1)),
        example("Hygon 502 16Gi", {COUNT: 1, MEMORY: "16Gi"}, None, (1, 16384, 0, 100), departs=BINARY_SUFFIX),
        example("Hygon 504", {COUNT: 1, MEMORY: "16.0Gi"}, None, (1, 16384, 0, 100), departs=BINARY_SUFFIX),
    ],
)
def test_containers_ask_for(limits: dict[str, Any], requests: dict[str, Any] | None, result: tuple[int, int, int, int]) -> None:
    assert figures(asked(limits, requests=requests)) == result


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        example("Hygon 502 count", "", {COUNT: 2200000000}, departs=REFUSED),
        example("Hygon 502 cores", "", {COUNT: 1, CORES: -1}, departs=REFUSED),
        example("Hygon 503", "hygon: {memoryFactor: 1024}", {COUNT: 1, MEMORY: 3000000}, departs=REFUSED),
    ],
)
def test_what_is_out_of_range_is_refused(config: str, limits: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"spec.containers\[0\].resources.limits\[hygon.com/dcu"):
        asked(limits, catalog=configured(config))


@pytest.mark.parametrize(
    ("annotations", "type_", "fits"),
    [
        example("Hygon 505 accepted", {"hygon.com/use-dcutype": "dcu"}, "dcu", True),
        example("Hygon 505 rejected", {"hygon.com/use-dcutype": "dcu"}, "test", False),
        example("Hygon 506", {"hygon.com/nouse-dcutype": "test,dcu"}, "test", False),
    ],
)
def test_types_are_selected(annotations: dict[str, str], type_: str, fits: bool) -> None:
    request = asked({COUNT: 1})
    assert request is not None
    chosen = fit([a_state(vendor="DCU", uuid="d", type=type_)], request, selectors=selectors_of(request, annotations, {COUNT: 1}))
    assert chosen == (["d"] if fits else "1/1 CardTypeMismatch")

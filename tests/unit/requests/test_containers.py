"""What a container asks is read once, strictly, and the same for admission and scheduling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_devices.model import DeviceRequest
from hami_devices.requests import RequestError, read_container
from hami_devices.vendors.nvidia import vendor
from tests.builders import COUNT, MEMORY, PERCENT, a_container, example

PATH = "spec.containers[0]"


DEFAULTS = NvidiaConfig()


def read(config: NvidiaConfig = DEFAULTS, **container: Any) -> tuple[int, int, int, int] | None:
    """Count, MiB, percent and cores; None for no request."""
    request = read_container(vendor(config), a_container(**container), PATH)
    return None if request is None else (request.count, request.memory_mib, request.memory_percent, request.cores)


SAME_DEFAULT = "a container that says nothing of memory takes whole cards, so all cores: the reader gives the default that admission writes"
REFUSED = "what cannot be read is refused with its field's path; it never becomes an empty request, and is never rounded"
NO_SENTINEL = "a percentage that is not given is 0; there is no number with a second meaning"


@pytest.mark.parametrize(
    ("container", "result"),
    [
        example("webhook 89", {"gpu": 1}, (1, 0, 100, 100), departs=SAME_DEFAULT),
        example("webhook 91", {"gpu": 2, "mem": 4096}, (2, 4096, 0, 0), departs=NO_SENTINEL),
        example("NVIDIA 396", {"gpu": 1}, (1, 0, 100, 100), departs=SAME_DEFAULT),
        example("NVIDIA 397", {"gpu": 2, "mem": 4096}, (2, 4096, 0, 0), departs=NO_SENTINEL),
        example("NVIDIA 398", {"gpu": 1, "percent": 50}, (1, 0, 50, 0)),
        example("NVIDIA 400 0", {"gpu": 1, "percent": 0}, (1, 0, 100, 100), departs=SAME_DEFAULT),
        example("NVIDIA 401", {"gpu": 1, "mem": 2000, "percent": 0}, (1, 2000, 0, 0), departs=NO_SENTINEL),
        example("NVIDIA 402", {"gpu": 1, "cores": 50}, (1, 0, 100, 50)),
        example("NVIDIA 403", {"requests": {COUNT: "1"}}, (1, 0, 100, 100), departs=SAME_DEFAULT),
        example("NVIDIA 404 16Gi", {"gpu": 1, "mem": "16Gi"}, (1, 16384, 0, 0), departs="a binary suffix names bytes (HAMi#2336)"),
        example("NVIDIA 404 16.0Gi", {"gpu": 1, "mem": "16.0Gi"}, (1, 16384, 0, 0), departs="16.0Gi is the quantity 16Gi (HAMi#2336)"),
        example("webhook 93", {"gpu": 1, "mem": "16Gi"}, (1, 16384, 0, 0), departs="a binary suffix names bytes (HAMi#2336)"),
    ],
)
def test_containers_ask_for(container: dict[str, Any], result: tuple[int, int, int, int]) -> None:
    assert read(**container) == result


@pytest.mark.parametrize(
    ("config", "container", "result"),
    [
        example("webhook 94", {"memory_factor": 2}, {"gpu": 1, "mem": 1024}, (1, 2048, 0, 0)),
        example("NVIDIA 405", {"memory_factor": 2}, {"gpu": 1, "mem": 1024}, (1, 2048, 0, 0)),
        example(
            "NVIDIA 405 1Gi",
            {"memory_factor": 2},
            {"gpu": 1, "mem": "1Gi"},
            (1, 1024, 0, 0),
            departs="1Gi is 1024 MiB, whatever the unit",
        ),
        example("NVIDIA 406", {"default_memory_mib": 512}, {"gpu": 1}, (1, 512, 0, 0), departs=NO_SENTINEL),
        example("NVIDIA 406 percent 0", {"default_memory_mib": 512}, {"gpu": 1, "percent": 0}, (1, 512, 0, 0), departs=NO_SENTINEL),
        example("NVIDIA 406 gpumem 0", {"default_memory_mib": 512}, {"gpu": 1, "mem": 0}, (1, 512, 0, 0), departs=NO_SENTINEL),
        pytest.param({"default_cores": 30}, {"gpu": 1, "mem": 1024}, (1, 1024, 0, 30), id="default cores of a shared card"),
        pytest.param({"default_count": 2}, {"mem": 1024}, (2, 1024, 0, 0), id="default count"),
        pytest.param({"memory_factor": 0}, {"gpu": 1, "mem": 1024}, (1, 1024, 0, 0), id="factor 0 is no factor"),
        pytest.param(
            {"count_resource": "acme.io/card", "memory_resource": "acme.io/mem"},
            {"acme.io/card": 1, "acme.io/mem": 7},
            (1, 7, 0, 0),
            id="renamed",
        ),
    ],
)
def test_configuration_changes_names_units_and_defaults(config: dict[str, Any], container: dict[str, Any], result: tuple[int, ...]) -> None:
    assert read(NvidiaConfig(**config), **container) == result


@pytest.mark.parametrize(
    ("container", "field"),
    [
        example("NVIDIA 399 150", {"gpu": 1, "percent": 150}, "limits[nvidia.com/gpumem-percentage]", departs=REFUSED),
        example("NVIDIA 399 101", {"gpu": 1, "percent": 101}, "limits[nvidia.com/gpumem-percentage]", departs=REFUSED),
        example("NVIDIA 399 2^32+50", {"gpu": 1, "percent": 2**32 + 50}, "limits[nvidia.com/gpumem-percentage]", departs=REFUSED),
        example("webhook 92", {"gpu": 1, "percent": 150}, "limits[nvidia.com/gpumem-percentage]", departs=REFUSED),
        example("NVIDIA 400 -1", {"gpu": 1, "percent": -1}, "limits[nvidia.com/gpumem-percentage]", departs=REFUSED),
        pytest.param({"gpu": "1.5"}, "limits[nvidia.com/gpu]", id="half a card"),
        pytest.param({"gpu": "1Ki"}, "limits[nvidia.com/gpu]", id="cards in bytes"),
        pytest.param({"gpu": 2**31}, "limits[nvidia.com/gpu]", id="too many cards"),
        pytest.param({"gpu": 0, "mem": "x"}, "limits[nvidia.com/gpumem]", id="unreadable beside no card"),
        pytest.param({"gpu": 1, "mem": "-1"}, "limits[nvidia.com/gpumem]", id="negative memory"),
        pytest.param({"gpu": 1, "mem": "1500m"}, "limits[nvidia.com/gpumem]", id="fractional memory"),
        pytest.param({"gpu": 1, "mem": "2147483648"}, "limits[nvidia.com/gpumem]", id="A1 over 32 bits"),
        pytest.param({"gpu": 1, "mem": "4398046511104"}, "limits[nvidia.com/gpumem]", id="A1 far over 32 bits"),
        pytest.param({"gpu": 1, "percent": "99.1"}, "limits[nvidia.com/gpumem-percentage]", id="A3 99.1"),
        pytest.param({"gpu": 1, "percent": "50m"}, "limits[nvidia.com/gpumem-percentage]", id="A3 50m"),
        pytest.param({"gpu": 1, "cores": 101}, "limits[nvidia.com/gpucores]", id="over all cores"),
        pytest.param({"gpu": 1, "cores": "-1"}, "limits[nvidia.com/gpucores]", id="negative cores"),
        pytest.param({"gpu": 1, "mem": 2000, "requests": {MEMORY: "3000"}}, "requests[nvidia.com/gpumem]", id="limits and requests differ"),
        pytest.param({"requests": {COUNT: "x"}}, "requests[nvidia.com/gpu]", id="unreadable in requests"),
        *[
            pytest.param({"gpu": 1, "percent": text}, "limits[nvidia.com/gpumem-percentage]", id=f"A16 {text!r}")
            for text in ("NaN", "Inf", "1e400", "0x1", "", " 0.5", "-0.5", "0.5.1")
        ],
    ],
)
def test_what_cannot_be_read_is_refused_with_its_field(container: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**container)
    assert caught.value.field == f"{PATH}.resources.{field}"
    assert "accepted: " in str(caught.value)


@pytest.mark.parametrize(
    ("container", "result"),
    [
        ({"gpu": 1, "mem": "8Gi"}, (1, 8192, 0, 0)),
        ({"gpu": 1, "mem": "20k"}, (1, 20000, 0, 0)),
        ({"gpu": "1", "mem": "3k", "requests": {COUNT: 1, MEMORY: "3000"}}, (1, 3000, 0, 0)),
        ({"gpu": 1, "percent": 100, "requests": {PERCENT: "100"}}, (1, 0, 100, 100)),
        ({"gpu": 1, "mem": 8192, "percent": 100}, (1, 8192, 0, 0)),
        ({"gpu": 0, "mem": 3000}, None),
        ({"gpu": "0"}, None),
        ({}, None),
        ({"cpu": "1", "memory": "1Gi"}, None),
    ],
)
def test_more_containers_ask_for(container: dict[str, Any], result: tuple[int, ...] | None) -> None:
    assert read(**container) == result


def test_memory_without_a_card_is_refused_where_no_default_count_is_configured() -> None:
    with pytest.raises(RequestError, match=r"limits\[nvidia.com/gpu\]: missing"):
        read(NvidiaConfig(default_count=0), mem=1000)


@given(
    st.dictionaries(
        st.sampled_from(["gpu", "mem", "percent", "cores", "priority"]),
        st.one_of(st.integers(), st.floats(), st.text(max_size=6), st.from_regex(r"\A-?[0-9]{1,12}(Ki|Mi|Gi|k|M|m|e3)?\Z")),
    ),
    st.sampled_from([1, 2, 256]),
)
def test_a_request_is_never_zero_never_negative_and_in_range(amounts: dict[str, Any], factor: int) -> None:
    try:
        request = read_container(vendor(NvidiaConfig(memory_factor=factor)), a_container(**amounts), PATH)
    except RequestError:
        return
    if request is not None:
        assert request.count >= 1
        assert (request.memory_mib > 0) != (request.memory_percent > 0)
        assert request.memory_mib < 2**31
        assert request.memory_percent <= 100
        assert 0 <= request.cores <= 100


@pytest.mark.parametrize(("percent", "mib"), [(1, 245), (33, 8110), (50, 12288), (99, 24330), (100, 24576)])
def test_a_percentage_is_rounded_down_and_never_to_zero(percent: int, mib: int) -> None:
    request = DeviceRequest(vendor="NVIDIA", count=1, memory_percent=percent)
    assert request.memory_on(24576) == mib
    assert request.memory_on(24576) * (100 // percent) <= 24576
    assert request.memory_on(3) >= 1


def test_the_chart_s_defaults_need_no_file() -> None:
    assert vendor(DeviceConfig().nvidia).resources == (COUNT, MEMORY, "nvidia.com/gpucores", PERCENT, "nvidia.com/priority")

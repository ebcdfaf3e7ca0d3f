"""The one parser of quantities (HAMi#2336, #2788)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import quantities
from hami_protocol.errors import QuantityError

FIELD = "spec.containers[0].resources.limits[nvidia.com/gpumem]"


@pytest.mark.parametrize(
    ("given_text", "mib"),
    [
        ("16Gi", 16384),
        ("16.0Gi", 16384),
        ("8Gi", 8192),
        ("1.5Gi", 1536),
        ("3000", 3000),
        ("3k", 3000),
        ("20k", 20000),
        ("0", 0),
        ("2147483647", 2147483647),
        ("1048576Ki", 1024),
        (3000, 3000),
    ],
)
def test_memory_is_read_in_mib(given_text: str | int, mib: int) -> None:
    assert quantities.parse_memory_mib(given_text, field=FIELD) == mib


@pytest.mark.parametrize("unit_mib", [1, 256, 512, 1024])
@pytest.mark.parametrize("text", ["2147483648", "4398046511104", "-1", "-16Gi", "1.5", "500m", "1Ki", "1000Ki", "16G", "9Ei", "1e30"])
def test_memory_that_does_not_fit_is_refused_whatever_the_unit(text: str, unit_mib: int) -> None:
    with pytest.raises(QuantityError) as caught:
        quantities.parse_memory_mib(text, field=FIELD, unit_mib=unit_mib)
    assert FIELD in str(caught.value)
    assert text in str(caught.value)
    assert "accepted" in str(caught.value)


def test_a_unit_that_overflows_is_refused_not_wrapped() -> None:
    with pytest.raises(QuantityError):
        quantities.parse_memory_mib(2**31 // 256, field=FIELD, unit_mib=256)
    assert quantities.parse_memory_mib(10, field=FIELD, unit_mib=256) == 2560


@pytest.mark.parametrize(
    "text", ["99.1", "50m", "50.5", "-1", "101", "NaN", "Inf", "1e400", "0x1", "", " 0.5", "-0.5", "0.5.1", "50%", "1Ki"]
)
def test_percentages_that_are_no_whole_number_to_a_hundred_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        quantities.parse_percent(text, field=FIELD)


@pytest.mark.parametrize(("text", "percent"), [("0", 0), ("1", 1), ("100", 100), ("1e2", 100), ("0.1k", 100), ("33.0", 33)])
def test_whole_percentages_are_read(text: str, percent: int) -> None:
    assert quantities.parse_percent(text, field=FIELD) == percent


@pytest.mark.parametrize(
    "text", ["NaN", "Inf", "-Inf", "0x10", "1_000", "", " ", "1 ", "\n1", "\u0661", "1e", "1Kib", "k", ".", "+", "1" * 65]
)
def test_what_is_no_quantity_is_refused_everywhere(text: str) -> None:
    for parse in (quantities.parse_count, quantities.parse_percent, quantities.parse_memory_mib):
        with pytest.raises(QuantityError):
            parse(text, field=FIELD)


@pytest.mark.parametrize("value", [True, None, [], {}, float("nan"), float("inf")])
def test_json_values_that_are_no_quantity_are_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        quantities.exact(value, field=FIELD)  # type: ignore[arg-type]


@given(st.text())
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    try:
        value = quantities.exact(text)
    except QuantityError:
        return
    assert isinstance(value, Fraction)


@given(st.text() | st.integers() | st.floats())
def test_memory_is_never_negative_nor_over_range(value: str | float) -> None:
    try:
        mib = quantities.parse_memory_mib(value, field=FIELD, unit_mib=1024)
    except QuantityError:
        return
    assert 0 <= mib <= quantities.MAX_VALUE

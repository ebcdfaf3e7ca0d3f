"""The form in which the rig's API server stores a quantity, and in which the rig's scheduler sends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_rig import quantities


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("3000", "3k"),
        ("16384Mi", "16Gi"),
        ("0.5", "500m"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("16.0Gi", "16Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("1023Ki", "1023Ki"),
        ("0Gi", "0"),
        ("2e4", "20e3"),
        ("1e0", "1e0"),
        ("0.0000000001", "1m"),
        ("500u", "1m"),
        ("1n", "1m"),
        ("1E3", "1E3"),
        ("+5", "+5"),
        ("-3000", "-3k"),
    ],
)
def test_the_canonical_form_is_the_api_servers(text: str, canonical: str) -> None:
    assert quantities.canonical(text) == canonical


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi", "m"]))
def test_the_canonical_form_means_the_same(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert quantities.amount(quantities.canonical(text)) == quantities.amount(text)

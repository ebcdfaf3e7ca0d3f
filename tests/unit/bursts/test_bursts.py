"""When things happen too fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime.bursts import Bursts


def after(times: list[float], now: float, most: int = 3) -> float:
    bursts = Bursts(most)
    for time in times:
        bursts.happened(time)
    return bursts.lasts_until(now)


@pytest.mark.parametrize(
    ("times", "now", "until"),
    [
        ([], 5.0, 5.0),
        ([1.0, 1.1, 1.2], 1.2, 1.2),
        ([1.0, 1.1, 1.2, 1.3], 1.3, 2.0),
        ([1.0, 1.1, 1.2, 1.3], 2.5, 2.5),
        ([1.0, 1.1, 1.2, 1.3, 1.4], 1.4, 2.1),
        ([1.0, 2.0, 3.0, 4.0], 4.0, 4.0),
    ],
)
def test_a_burst_lasts_until_no_second_holds_too_many(times: list[float], now: float, until: float) -> None:
    assert after(times, now) == pytest.approx(until)


@given(st.lists(st.floats(0, 5), max_size=40).map(sorted), st.integers(1, 10), st.floats(0, 3))
def test_it_agrees_with_counting(times: list[float], most: int, later: float) -> None:
    now = (times[-1] if times else 0.0) + later
    too_many = sum(time > now - 1.0 for time in times) > most
    assert (after(times, now, most) > now) == too_many

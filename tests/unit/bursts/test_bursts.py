"""When things happen too fast."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime.bursts import LONGEST_WAIT_SECONDS, Bursts


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


def test_what_may_wait_gives_way_to_the_burst_but_not_for_ever() -> None:
    bursts = Bursts(2)
    assert bursts.seconds_to_wait(7.0, 7.0) <= 0
    for number in range(100):
        bursts.happened(7.0 + number / 10)
    now = 7.0 + 99 / 10
    assert bursts.seconds_to_wait(now - 1, now) == pytest.approx(0.8)
    assert bursts.seconds_to_wait(now - LONGEST_WAIT_SECONDS + 0.1, now) == pytest.approx(0.1)
    assert bursts.seconds_to_wait(now - LONGEST_WAIT_SECONDS, now) <= 0

"""How much of a kernel's least time is charged beside neighbours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import fairness
from hami_node_agent.fairness import LEAST, MOST, charge_permille


def test_who_gets_what_was_granted_is_charged_as_before() -> None:
    for ran in (48, 49, 50):
        assert charge_permille(900, ran_percent=ran, charged_percent=50.0, share_percent=50) == 900


def test_who_is_charged_more_than_the_driver_counts_is_charged_less() -> None:
    assert charge_permille(1000, ran_percent=24, charged_percent=50.0, share_percent=50) == 490


def test_who_runs_more_than_was_charged_is_charged_more() -> None:
    assert charge_permille(1000, ran_percent=60, charged_percent=30.0, share_percent=30) == 2017
    assert charge_permille(1000, ran_percent=90, charged_percent=4.0, share_percent=30) == 4000


def test_who_wants_less_than_the_share_is_left_alone() -> None:
    assert charge_permille(700, ran_percent=5, charged_percent=20.0, share_percent=50) == 700


def test_no_tenant_is_charged_less_by_saying_that_it_was_charged_more_than_its_share() -> None:
    honest = charge_permille(1000, ran_percent=50, charged_percent=50.0, share_percent=50)
    assert charge_permille(1000, ran_percent=50, charged_percent=100.0, share_percent=50) == honest == 1000


@given(st.integers(LEAST, MOST), st.integers(0, 100), st.floats(0, 100), st.integers(1, 99))
def test_the_factor_stays_in_its_bounds(before: int, ran: int, charged: float, share: int) -> None:
    assert LEAST <= charge_permille(before, ran_percent=ran, charged_percent=charged, share_percent=share) <= MOST


@given(st.floats(0.3, 8.0), st.integers(5, 95), st.floats(0.0, 100.0))
def test_whatever_a_tenant_says_it_settles_at_its_share_or_below(true_cost: float, share: int, lie: float) -> None:
    """A container that takes all it can: it runs as its charge lets it, and says anything about that charge."""
    permille = fairness.UNCHANGED
    ran = 0.0
    for _ in range(60):
        ran = min(share * true_cost * 1000 / permille, 100.0)
        permille = charge_permille(permille, ran_percent=int(ran), charged_percent=lie, share_percent=share)
    assert ran <= share + 3 or permille == MOST

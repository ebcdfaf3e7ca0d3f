"""Which devices each node had when: within a day what a list of everything that was seen would say, and no more than a bounded part of it kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_registry.web.facts import Group, NodeAnnotations
from hami_registry.web.history import KEPT_SECONDS
from hami_registry.web.past_devices import GONE, MOST_LOOKS, SWEEP_SECONDS, Look, PastDevices
from tests.builders import a_device

T0 = 1_000_000.0


def a_look(*uuids: str, alive: bool = True, cordon: str = "") -> Look:
    return Look((Group("nvidia", alive, tuple(a_device(uuid) for uuid in uuids)),), NodeAnnotations(cordon=cordon))


def test_a_node_is_shown_as_it_was() -> None:
    past = PastDevices()
    first, away, cordoned = a_look("a"), a_look("a", alive=False), a_look("a", "b", cordon="a")
    for seconds, look in ((0, first), (10, away), (20, cordoned), (30, GONE)):
        past.see("n1", look, T0 + seconds)
    assert [past.of("n1", T0 + seconds) for seconds in (0, 9.9, 10, 25, 30, 99)] == [first, first, away, cordoned, None, None]
    assert past.of("n2", T0) is None
    assert [list(past.at(T0 + seconds)) for seconds in (5, 35)] == [["n1"], []]


def test_before_anybody_looked_a_node_is_shown_as_it_was_seen_first() -> None:
    past = PastDevices()
    assert past.since(T0) == T0
    past.see("n1", a_look("a"), T0)
    past.see("n2", a_look("b"), T0 + 5)
    assert past.since(T0 + 99) == T0
    assert past.of("n1", T0 - 100) == a_look("a")
    assert past.of("n2", T0 - 100) is None, "it came while we looked"


def test_a_day_is_kept_and_nodes_that_are_gone_for_longer_are_forgotten() -> None:
    past = PastDevices()
    past.see("n1", a_look("a"), T0)
    past.see("n2", a_look("b"), T0)
    past.see("n1", a_look("a", "b"), T0 + 10)
    past.see("n2", GONE, T0 + 10)
    later = T0 + KEPT_SECONDS + SWEEP_SECONDS
    past.forget(later)
    assert past.of("n1", later - KEPT_SECONDS) == a_look("a", "b")
    assert past.of("n1", later) == a_look("a", "b"), "how it looks now is not"
    assert past.since(later) == later - KEPT_SECONDS
    past.see("n2", a_look("c"), later)
    assert past.of("n2", later - 1) is None


def test_a_node_that_never_rests_costs_no_more_than_its_part() -> None:
    past = PastDevices()
    past.see("quiet", a_look("q"), T0)
    for number in range(3 * MOST_LOOKS):
        past.see("restless", a_look("a", alive=number % 2 == 0), T0 + number)
    assert past.since(T0 + 3 * MOST_LOOKS) == T0 + 2 * MOST_LOOKS
    assert past.of("restless", T0 + 2 * MOST_LOOKS + 1) == a_look("a", alive=False)
    assert past.of("quiet", T0 + 1) == a_look("q")


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(-5, 300))
def test_within_a_day_it_says_what_a_list_of_everything_would_say(changes: list[tuple[str, int, int]], asked: int) -> None:
    past = PastDevices()
    seen: dict[str, list[tuple[float, Look]]] = {"n1": [], "n2": []}
    now = T0
    for name, kind, passed in changes:
        now += passed
        look = GONE if kind == 0 else a_look(f"card-{kind}")
        past.see(name, look, now)
        past.forget(now)
        seen[name].append((now, look))
    time = T0 + asked
    for name, looks in seen.items():
        before = [look for begin, look in looks if begin <= time]
        if time >= past.since(now):
            assert past.of(name, time) == (None if not before or before[-1] == GONE else before[-1])


@pytest.mark.parametrize("time", [T0 - 1, T0, T0 + 1])
def test_what_is_asked_of_nobody_is_nothing(time: float) -> None:
    assert PastDevices().at(time) == {}

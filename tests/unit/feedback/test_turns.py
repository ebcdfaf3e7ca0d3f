"""Who waits for whom on a card."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import feedback
from hami_node_agent.feedback import Contender, Turn

contenders = st.lists(
    st.builds(
        Contender,
        name=st.uuids().map(str),
        priority=st.integers(0, 3),
        devices=st.sets(st.sampled_from("abc"), min_size=1).map(lambda found: tuple(sorted(found))),
        active=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)


def one(name: str, priority: int, *devices: str, active: bool = True) -> Contender:
    return Contender(name=name, priority=priority, devices=devices, active=active)


def test_an_active_container_of_higher_priority_blocks_the_others_of_its_card() -> None:
    found = feedback.turns([one("high", 0, "a"), one("low", 1, "a"), one("elsewhere", 1, "b")])
    assert [found[name].blocked for name in ("high", "low", "elsewhere")] == [False, True, False]


def test_who_starts_nothing_blocks_nobody() -> None:
    assert not feedback.turns([one("high", 0, "a", active=False), one("low", 1, "a")])["low"].blocked


def test_a_share_of_compute_holds_among_equals_and_a_lone_container_has_the_card() -> None:
    assert feedback.turns([one("x", 1, "a"), one("y", 1, "a")]) == dict.fromkeys("xy", Turn(blocked=False, limited=True, shared=True))
    assert feedback.turns([one("x", 1, "a"), one("y", 1, "b")]) == dict.fromkeys("xy", Turn(blocked=False, limited=False))


def test_a_card_is_shared_with_others_that_are_active_whatever_their_priority() -> None:
    idle = one("idle", 1, "c", active=False)
    found = feedback.turns([one("high", 0, "a"), one("low", 1, "a"), one("lone", 1, "b"), one("beside-idle", 1, "c"), idle])
    assert {name for name, turn in found.items() if turn.shared} == {"high", "low", "idle"}


@given(contenders)
def test_somebody_of_the_highest_priority_that_is_active_is_never_blocked(found: list[Contender]) -> None:
    active = [each for each in found if each.active]
    if active:
        highest = min(active, key=lambda each: each.priority)
        assert not feedback.turns(found)[highest.name].blocked


def test_a_block_ends_by_itself() -> None:
    until = feedback.lease_until_ns(True, now_seconds=100.0)
    assert until == (100 + feedback.LEASE_SECONDS) * 10**9
    assert feedback.lease_until_ns(False, now_seconds=100.0) == 0

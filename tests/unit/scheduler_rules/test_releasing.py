"""Releases that the log lacks: each is said once, by whoever speaks first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_protocol.devices import PodRef
from hami_scheduler.allocations import Missing, released
from hami_scheduler.releasing import Releases


def a_pod(uid: str, name: str = "p") -> PodRef:
    return PodRef(namespace="ns", name=name, uid=uid)


def a_release(uid: str, name: str = "p") -> Missing:
    return released(a_pod(uid, name), "n1", "it has ended")


def uids(found: list[Missing]) -> list[str]:
    return [each.event.pod.uid for each in found]


def nobody(_pod: PodRef) -> bool:
    return False


def test_it_is_said_when_it_is_due_and_only_once() -> None:
    releases = Releases()
    releases.expect(a_release("a"), due=10.0)
    assert releases.due(9.9, unless=nobody) == []
    assert uids(releases.due(10.0, unless=nobody)) == ["a"]
    assert releases.due(11.0, unless=nobody) == []


def test_the_agents_own_word_is_enough() -> None:
    releases = Releases()
    releases.expect(a_release("a"), due=10.0)
    releases.heard("a")
    releases.heard("never heard of")
    assert releases.due(10.0, unless=nobody) == []
    assert not releases.expects("a")


def test_of_a_pod_that_was_seen_again_nothing_is_said_ever() -> None:
    releases = Releases()
    releases.expect(a_release("a"), due=10.0)
    assert releases.due(10.0, unless=lambda pod: pod.uid == "a") == []
    assert releases.due(20.0, unless=nobody) == []


def test_those_of_one_name_are_said_at_once_in_order() -> None:
    releases = Releases()
    for uid, name in (("b", "p"), ("x", "q"), ("a", "p")):
        releases.expect(a_release(uid, name), due=10.0)
    assert uids(releases.of_name(a_pod("new"))) == ["b", "a"]
    assert uids(releases.due(10.0, unless=nobody)) == ["x"]


@given(st.lists(st.tuples(st.sampled_from(["expect", "heard", "due", "named"]), st.integers(0, 5), st.integers(0, 20)), max_size=40))
def test_it_keeps_nothing_of_what_is_over(steps: list[tuple[str, int, int]]) -> None:
    releases, waiting = Releases(), dict[str, tuple[str, int]]()
    for what, number, time in steps:
        uid, name = f"u{number}", f"p{number % 2}"
        match what:
            case "expect":
                releases.expect(a_release(uid, name), due=time)
                waiting[uid] = (name, time)
            case "heard":
                releases.heard(uid)
                waiting.pop(uid, None)
            case "due":
                found = set(uids(releases.due(time, unless=nobody)))
                assert found == {each for each, (_, due) in waiting.items() if due <= time}
                waiting = {each: value for each, value in waiting.items() if each not in found}
            case _:
                found = set(uids(releases.of_name(a_pod("new", name))))
                assert found == {each for each, (named, _) in waiting.items() if named == name}
                waiting = {each: value for each, value in waiting.items() if each not in found}
        assert all(releases.expects(f"u{each}") == (f"u{each}" in waiting) for each in range(6))

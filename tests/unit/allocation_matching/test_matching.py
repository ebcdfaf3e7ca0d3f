"""``envvar`` mode: which pod is this Allocate for? A call is matched for certain, or refused (HAMi#382)."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import matching
from hami_node_agent.matching import Match, PendingPod
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.nodelock import NodeLock
from tests.builders import a_ref


def pending(name: str, *containers: tuple[int, int], bound: int = 100, served: frozenset[int] = frozenset(), uid: str = "") -> PendingPod:
    """A pod with a container per (devices, MiB each)."""
    return PendingPod(
        pod=a_ref(name, uid=uid),
        bind_time_seconds=bound,
        assignment=VendorAssignment(
            vendor="NVIDIA",
            containers=tuple(
                ContainerShares(
                    container=f"c{place}",
                    kind=ContainerKind.APP,
                    shares=tuple(DeviceShare(uuid=f"GPU-{one}", type="NVIDIA", memory_mib=mib, cores=0) for one in range(count)),
                )
                for place, (count, mib) in enumerate(containers)
            ),
        ),
        served=served,
    )


def lock(name: str) -> NodeLock:
    return NodeLock(time=datetime(2026, 1, 1, tzinfo=UTC), namespace="default", pod=name)


def found(result: Match | Refusal) -> tuple[str, str]:
    assert isinstance(result, Match), result
    return result.pod.pod.name, result.container.container


def kind(result: Match | Refusal) -> RefusalKind:
    assert isinstance(result, Refusal), result
    return result.kind


BIG, SMALL = pending("big", (1, 24576), bound=1), pending("small", (1, 600), bound=2)


def test_the_lock_decides_between_pods_that_ask_for_as_many_devices() -> None:
    assert found(matching.match([BIG, SMALL], lock("small"), 1)) == ("small", "c0")
    assert found(matching.match([BIG, SMALL], lock("big"), 1)) == ("big", "c0")


def test_without_a_lock_different_grants_are_refused_never_swapped() -> None:
    for none in (None, NodeLock(time=datetime(2026, 1, 1, tzinfo=UTC)), lock("gone")):
        assert kind(matching.match([BIG, SMALL], none, 1)) is RefusalKind.AMBIGUOUS


def test_without_a_lock_the_only_pod_that_fits_is_meant() -> None:
    assert found(matching.match([BIG, pending("pair", (2, 100))], None, 2)) == ("pair", "c0")


def test_a_done_pod_that_waits_for_its_image_is_never_picked() -> None:
    done = pending("done", (1, 24576), bound=1, served=frozenset({0}))
    assert found(matching.match([done, SMALL], None, 1)) == ("small", "c0")
    assert found(matching.match([done, SMALL], lock("done"), 1)) == ("small", "c0")


def test_containers_are_served_in_the_pods_order_and_those_without_devices_are_passed_over() -> None:
    pod = pending("p", (0, 0), (1, 500), (0, 0), (2, 700))
    assert found(matching.match([pod], lock("p"), 1)) == ("p", "c1")
    begun = pending("p", (0, 0), (1, 500), (0, 0), (2, 700), served=frozenset({1}))
    assert found(matching.match([begun], lock("p"), 2)) == ("p", "c3")


def test_a_count_that_differs_from_the_locked_pods_grant_is_its_failure() -> None:
    result = matching.match([BIG], lock("big"), 2)
    assert kind(result) is RefusalKind.COUNT_DIFFERS
    assert isinstance(result, Refusal)
    assert result.pod == BIG.pod


def test_twins_are_interchangeable_and_the_oldest_binding_goes_first() -> None:
    twins = [pending("b", (1, 500), (1, 700), bound=20), pending("a", (1, 500), (1, 700), bound=10)]
    assert found(matching.match(twins, None, 1)) == ("a", "c0")


def test_of_twins_the_one_that_has_begun_goes_on() -> None:
    begun = pending("b", (1, 500), (1, 700), bound=20, served=frozenset({0}))
    assert found(matching.match([pending("a", (1, 500), (1, 700), bound=10), begun], None, 1)) == ("b", "c1")


def test_pods_that_only_begin_alike_are_no_twins() -> None:
    assert kind(matching.match([pending("a", (1, 500), (1, 700)), pending("b", (1, 500), (1, 900))], None, 1)) is RefusalKind.AMBIGUOUS


def test_of_two_namesakes_under_the_lock_the_younger_one_is_meant() -> None:
    old, new = pending("p", (1, 1), bound=1, uid="old"), pending("p", (1, 2), bound=2, uid="new")
    result = matching.match([old, new], lock("p"), 1)
    assert isinstance(result, Match)
    assert result.pod.pod.uid == "new"


@pytest.mark.parametrize("count", [0, -1])
def test_a_call_without_ids_is_refused(count: int) -> None:
    assert kind(matching.match([BIG], lock("big"), count)) is RefusalKind.EMPTY_REQUEST


def test_nobody_waiting_is_refused() -> None:
    assert kind(matching.match([], None, 1)) is RefusalKind.UNKNOWN_POD


pods = st.lists(
    st.builds(
        lambda name, containers, bound, served: pending(name, *containers, bound=bound, served=served),
        st.sampled_from("abcdef"),
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from([100, 200])), min_size=1, max_size=3),
        st.integers(0, 3),
        st.frozensets(st.integers(0, 2)),
    ),
    unique_by=lambda pod: pod.pod.name,
    max_size=5,
)


@given(pods, st.integers(0, 3), st.sampled_from([None, "a", "b", "z"]), st.randoms())
def test_a_match_is_right_and_does_not_depend_on_the_order_of_pods(
    waiting: list[PendingPod], count: int, locked: str | None, rng: random.Random
) -> None:
    held = lock(locked) if locked else None
    result = matching.match(waiting, held, count)
    if isinstance(result, Match):
        assert result.place == result.pod.next_place
        assert len(result.container.shares) == count > 0
        named = [pod for pod in waiting if pod.pod.name == locked and pod.next_place is not None]
        others = [pod for pod in waiting if pod.next_place is not None and len(pod.assignment.containers[pod.next_place].shares) == count]
        assert result.pod in named or (not named and all(pod.grants == result.pod.grants for pod in others))
    rng.shuffle(waiting)
    assert matching.match(waiting, held, count) == result

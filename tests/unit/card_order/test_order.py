"""In which order devices are tried."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.model import DeviceState
from hami_devices.order import in_order, read_order
from tests.builders import a_state, example


def device(numa: int = 0, *, index: int = 0, used: int = 0, uuid: str = "") -> DeviceState:
    return a_state(uuid=uuid or f"GPU-{numa}-{index}-{used}", numa=numa, index=index, used_shares=used)


# HAMi sorts a list and takes from its end: "first before second" is "second is tried first".
@pytest.mark.parametrize(
    ("policy", "numa_bind", "first", "second", "before"),
    [
        example("device policy 10", "binpack", False, (device(1), 10), (device(0), 20), True),
        example("device policy 11", "spread", False, (device(1), 20), (device(0), 10), True),
        example("device policy 12", "binpack", False, (device(0), 15), (device(1), 15), True),
        example("device policy 13", "binpack", True, (device(1), 5), (device(0), 99), True),
        example("device policy 14", "spread", True, (device(0), 5), (device(1), 99), True),
        example("device policy 15", "mutex", False, (device(used=2), 0), (device(used=0), 0), True),
        example("device policy 16", "numa", False, (device(index=3), 0), (device(index=1), 0), False),
        example("device policy 17", "numa,spread", False, (device(1), 5), (device(0), 99), False),
        example("device policy 18", "mutex,topology-aware", False, (device(index=0), 10), (device(index=1), 20), False),
        example("device policy 19", "binpack,spread", True, (device(0), 99), (device(1), 5), True),
        example("device policy 20", "mutex,spread", False, (device(used=5), 10), (device(used=0), 20), False),
        pytest.param("", False, (device(1), 20), (device(0), 10), True, id="empty is spread"),
        pytest.param("nonsense", False, (device(1), 20), (device(0), 10), True, id="unknown is spread"),
        pytest.param("topology-aware", False, (device(1), 20), (device(0), 10), True, id="topology-aware is spread"),
        pytest.param(" binpack , numa ", False, (device(1), 10), (device(0), 20), True, id="spaces in a chain"),
    ],
)
def test_which_of_two_is_tried_first(
    policy: str, numa_bind: bool, first: tuple[DeviceState, float], second: tuple[DeviceState, float], before: bool
) -> None:
    tried = in_order(read_order(policy, numa_bind), [first, second])
    assert tried == ([second[0], first[0]] if before else [first[0], second[0]])


@pytest.mark.departs("with numa-bind the devices of one NUMA node stand together under mutex too, or a pair could never be collected")
def test_numa_bind_groups_under_mutex_too() -> None:
    devices = [
        (device(0, used=1, uuid="a"), 0),
        (device(1, used=0, uuid="b"), 0),
        (device(0, used=0, uuid="c"), 0),
        (device(1, used=1, uuid="d"), 0),
    ]
    assert [state.device.numa for state in in_order(read_order("mutex", True), devices)] == [1, 1, 0, 0]


CASE_B16 = [
    (device(0, index=0, uuid="a"), 27),
    (device(0, index=1, uuid="b"), 21),
    (device(1, index=2, uuid="c"), 9),
    (device(1, index=3, uuid="d"), 3),
]


@pytest.mark.parametrize(
    ("policy", "order"), [("spread", ["d", "c", "b", "a"]), ("binpack", ["a", "b", "c", "d"]), ("numa", ["d", "c", "b", "a"])]
)
def test_numa_decides_only_where_it_is_asked_for(policy: str, order: list[str]) -> None:
    assert [state.device.uuid for state in in_order(read_order(policy, False), CASE_B16)] == order


@given(
    st.sampled_from(["binpack", "spread", "mutex", "numa", "numa,binpack", "topology-aware"]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.sampled_from([0.0, 5.0, 9.5])), max_size=6),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_devices_are_listed_does_not_matter(
    policy: str, numa_bind: bool, values: list[tuple[int, int, int, float]], rng: random.Random
) -> None:
    listed = [(device(numa, index=index, used=used, uuid=f"u{place}"), score) for place, (numa, index, used, score) in enumerate(values)]
    once = in_order(read_order(policy, numa_bind), listed)
    rng.shuffle(listed)
    assert in_order(read_order(policy, numa_bind), listed) == once


def test_what_a_policy_says_beside_its_order() -> None:
    assert read_order("mutex", False).exclusive
    assert read_order("numa, mutex", False).exclusive
    assert not read_order("binpack", False).exclusive
    assert read_order("mutex,topology-aware", False).linked
    assert read_order("topology-aware", False).linked

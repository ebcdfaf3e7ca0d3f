"""Kunlunxin: where devices stand on the board, whole and in slices. Devices are given in any order: places are those of the indices."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.admission import SetLimit
from hami_devices.fit import NodeFit, fit_node
from hami_devices.model import DeviceRequest, DeviceState, Selectors
from hami_devices.requests import RequestError
from hami_devices.vendors.kunlun import COUNTS, bonus, brokenness, places_for, slice_for
from tests.builders import a_device, a_request, a_state, example
from tests.unit.vendors.vendor_world import a_node_with, asked, changes, devices, figures, fit, held, share, written

WHOLE, SHARED, MEMORY = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"


def some(resource: str, count: int, **more: Any) -> DeviceRequest:
    request = asked({resource: count, **more})
    assert request is not None
    return request


def board(*used: int, vendor: str = "kunlun", size: int = 8, **fields: Any) -> list[DeviceState]:
    """Devices in an order that says nothing; those in ``used`` have one share on them."""
    states = [
        a_state(
            vendor=vendor,
            uuid=f"xpu-{place}",
            index=place,
            memory_mib=98304,
            **({"used_shares": 1, "used_memory_mib": 98304, "used_cores": 100} if place in used else {}),
            **fields,
        )
        for place in range(size)
    ]
    random.Random(size).shuffle(states)
    return states


def indexes(result: list[str] | str) -> list[int] | str:
    return result if isinstance(result, str) else [int(uuid.removeprefix("xpu-")) for uuid in result]


NOBODY = "the reason says that the cards are in use, where the reference says NumaNotFit"
TWO_LISTS = "both pairs of lists must accept a device; lists with nothing in common are refused"


@pytest.mark.parametrize(
    ("used", "count", "result"),
    [
        example("Kunlunxin XPU 645 idle", (), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        example(
            "Kunlunxin XPU 645 used",
            (5,),
            8,
            "7/8 AllocatedCardsInsufficientRequest, 1/8 ExclusiveDeviceAllocateConflict",
            departs=NOBODY,
        ),
        example("Kunlunxin XPU 646 two", (5,), 2, [4, 6]),
        example("Kunlunxin XPU 646 one", (5,), 1, [4]),
        example("Kunlunxin XPU 647", (6, 7), 1, [4]),
        example("Kunlunxin XPU 648", (0, 1, 2, 4, 5, 6), 2, [3, 7]),
        example("Kunlunxin XPU 649", (2, 3, 7), 4, [0, 1, 4, 5]),
        example("Kunlunxin XPU 650 36", (3, 6), 4, [0, 1, 4, 5]),
        example("Kunlunxin XPU 650 26", (2, 6), 4, [0, 1, 4, 5]),
        example("Kunlunxin XPU 651", (0, 1, 2, 3, 4, 5, 6, 7), 1, "8/8 ExclusiveDeviceAllocateConflict", departs=NOBODY),
        pytest.param((0, 1, 2, 5, 6, 7), 2, "6/8 ExclusiveDeviceAllocateConflict, 1/8 NumaNotFit", id="two that are not linked"),
    ],
)
def test_whole_devices_are_chosen_by_place(used: tuple[int, ...], count: int, result: list[int] | str) -> None:
    found = indexes(fit(board(*used), some(WHOLE, count)))
    assert found == result or (isinstance(result, str) and sorted(str(found).split(", ")) == sorted(result.split(", ")))


@pytest.mark.example("Kunlunxin XPU 652")
def test_a_device_that_is_asked_by_name_is_taken() -> None:
    assert indexes(fit(board(), some(WHOLE, 1), selectors=Selectors(use_uuids=("xpu-5",)))) == [5]


@pytest.mark.departs(TWO_LISTS)
def test_two_lists_that_have_nothing_in_common_are_refused() -> None:
    with pytest.raises(RequestError, match=r"baidu.com/use-gpuuuid"):
        asked({WHOLE: 1}, annotations={"hami.io/use-xpu-uuid": "a", "baidu.com/use-gpuuuid": "b"})


@pytest.mark.parametrize(
    ("used", "broken"),
    [
        example("Kunlunxin XPU 653 none", set(), 1),
        example("Kunlunxin XPU 653 wing", {0, 1, 2, 3}, 1),
        example("Kunlunxin XPU 653 one", {0}, 3),
        example("Kunlunxin XPU 653 two", {0, 1}, 2),
    ],
)
def test_a_board_is_so_broken(used: set[int], broken: int) -> None:
    assert brokenness(used) == broken


RESULTING = "what counts is the board as it becomes, not the pod's own devices on an empty one"


@pytest.mark.parametrize(
    ("before", "taken", "points"),
    [
        example("Kunlunxin XPU 654 mended", {0, 1, 2, 3}, set(range(8)), 3000),
        example("Kunlunxin XPU 654 broken", set(), {0}, 0),
        example("node score 32", {3, 4, 5, 6, 7}, {0}, 3000, departs=RESULTING),
        pytest.param({0}, {0, 1}, 3000, id="by more than a step"),
    ],
)
def test_a_node_is_better_where_its_board_is_mended(before: set[int], taken: set[int], points: float) -> None:
    assert bonus(before, before | taken) == points


def test_a_pod_prefers_the_node_whose_board_it_mends() -> None:
    mends, breaks = (fit_node(states, a_request(some(WHOLE, 1))) for states in (board(0, 1, 2), board()))
    assert isinstance(mends, NodeFit)
    assert isinstance(breaks, NodeFit)
    assert mends.bonus > breaks.bonus


@pytest.mark.parametrize("count", [3, 5, 6, 7, 9])
def test_a_number_that_no_board_links_is_refused_where_it_is_asked(count: int) -> None:
    with pytest.raises(RequestError, match="1, 2, 4 or 8"):
        asked({WHOLE: count})


def test_devices_are_counted_from_capacity_on_two_numa_nodes() -> None:
    found = devices("kunlun", a_node_with({WHOLE: "8"}))
    assert [device.uuid for device in found] == [f"test-kunlun-{place}" for place in range(8)]
    assert [device.numa for device in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(device.memory_mib, device.cores, device.shares) for device in found} == {(98304, 100, 100)}


def test_the_plugin_reads_the_last_container_s_indexes() -> None:
    two = [share("a", "kunlun", 98304, 100), share("b", "kunlun", 98304, 100)]
    assert written(held("kunlun", two), a_device("a", index=4), a_device("b", index=6)) == {"BAIDU_COM_DEVICE_IDX": "4,6"}


@given(st.sets(st.integers(0, 7)), st.sampled_from(COUNTS), st.integers(0, 7))
def test_one_device_more_never_leaves_fewer_choices(eligible: set[int], count: int, more: int) -> None:
    found = places_for(count, sorted(eligible))
    if found is not None:
        assert len(set(found)) == count
        assert set(found) <= eligible
        assert places_for(count, sorted(eligible | {more})) is not None


def test_every_board_that_has_a_wing_with_room_takes_what_fits_in_it() -> None:
    for eligible in itertools.chain.from_iterable(itertools.combinations(range(8), size) for size in range(9)):
        for count in (1, 2, 4):
            wings = (sum(place < 4 for place in eligible), sum(place >= 4 for place in eligible))
            assert places_for(count, eligible) is not None or max(wings) < count


# Slices


@pytest.mark.parametrize(
    ("asked_mib", "slice_mib"),
    [
        example("Kunlunxin vXPU 667 0", 0, 24576),
        example("Kunlunxin vXPU 667 24577", 24577, 49152),
        example("Kunlunxin vXPU 667 49153", 49153, 98304),
        example("Kunlunxin vXPU 667 200000", 200000, None, departs="more than a card is refused, not cut to a card"),
    ],
)
def test_memory_is_rounded_up_to_a_slice(asked_mib: int, slice_mib: int | None) -> None:
    assert slice_for(asked_mib) == slice_mib


def test_more_than_a_card_is_refused() -> None:
    with pytest.raises(RequestError, match="at most 98304 MiB"):
        asked({SHARED: 1, MEMORY: 200000})


@pytest.mark.example("Kunlunxin vXPU 668")
def test_the_webhook_writes_the_slice() -> None:
    assert changes({SHARED: 1, MEMORY: 30000}) == (SetLimit(path="spec.containers[0]", resource=MEMORY, value="49152"),)
    assert changes({SHARED: 1, MEMORY: 49152}) == ()


@pytest.mark.parametrize(
    ("limits", "requests", "result"),
    [
        example(
            "Kunlunxin vXPU 669",
            {SHARED: 1},
            None,
            (1, 0, 100, 100),
            departs="a whole card is as large as it is, not always 98304 MiB",
        ),
        example("Kunlunxin vXPU 670", None, {SHARED: 2, MEMORY: 24576}, (2, 24576, 0, 25)),
    ],
)
def test_slices_are_asked(limits: dict[str, int] | None, requests: dict[str, int] | None, result: tuple[int, ...]) -> None:
    assert figures(asked(limits, requests=requests)) == result


def xpu(number: int = 0, **fields: Any) -> DeviceState:
    return a_state(vendor="XPU", **{"uuid": f"xpu-{number}", "index": number, "memory_mib": 98304, **fields})


@pytest.mark.parametrize(
    ("states", "memory_mib", "count", "policy", "result"),
    [
        example("Kunlunxin vXPU 671 ok", [xpu(used_shares=2, used_memory_mib=49152)], 24576, 1, "spread", ["xpu-0"]),
        example("Kunlunxin vXPU 671 no", [xpu(used_shares=1, used_memory_mib=49152)], 24576, 1, "spread", "1/1 ModeNotFit"),
        example("Kunlunxin vXPU 672", [xpu(used_shares=4, used_memory_mib=90000)], 20000, 1, "spread", "1/1 ModeNotFit"),
        example(
            "Kunlunxin vXPU 673",
            [xpu(place, used_shares=1, used_memory_mib=24576) for place in range(8)],
            24576,
            1,
            "mutex",
            "8/8 ExclusiveDeviceAllocateConflict",
        ),
        example("Kunlunxin vXPU 674", [xpu(place) for place in range(8)], 24576, 8, "spread", [f"xpu-{place}" for place in range(8)]),
    ],
)
def test_slices_fit(states: list[DeviceState], memory_mib: int, count: int, policy: str, result: list[str] | str) -> None:
    assert fit(states, some(SHARED, count, **{MEMORY: memory_mib}), policy=policy) == result

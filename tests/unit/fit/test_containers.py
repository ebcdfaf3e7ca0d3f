"""Which devices of one node take one container's shares, and the reason where they do not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.fit import charged, fit_container, fit_device
from hami_devices.model import DeviceRequest, DeviceState, Reason, Selectors
from hami_devices.order import read_order
from hami_devices.reasons import Misfit, render
from hami_devices.topology import PairScores
from hami_protocol.devices import DeviceShare
from tests.builders import a_share, a_state, example
from tests.unit.placement.clusters import SELECTORS, devices, shares

CLAMPED = "more than all cores is refused where the pod is read; fit clamps nothing"


ANY = Selectors()


def fit(
    states: Sequence[DeviceState],
    request: DeviceRequest,
    *,
    policy: str = "spread",
    selectors: Selectors = ANY,
    pair_scores: PairScores | None = None,
) -> list[str] | str:
    """UUIDs taken, or the reason."""
    chosen = fit_container(states, request, order=read_order(policy, selectors.numa_bind), selectors=selectors, pair_scores=pair_scores)
    return chosen.text if isinstance(chosen, Misfit) else [state.device.uuid for state in chosen]


def dev(number: int = 0, **fields: int | str | bool) -> DeviceState:
    """The examples' device: 100 shares, 1280 MiB, 100 cores, unused."""
    return a_state(**{"uuid": f"dev-{number}", "index": number, "shares": 100, "memory_mib": 1280, **fields})  # type: ignore[arg-type]


HALF = a_share(1, memory_mib=512, cores=50)


@pytest.mark.parametrize(
    ("states", "request_", "options", "result"),
    [
        example("standard fit 1", [dev(0, memory_mib=128), dev(1, memory_mib=128)], a_share(1, memory_mib=64, cores=50), {}, ["dev-1"]),
        example("standard fit 2", [dev(memory_mib=128)], HALF, {}, "1/1 CardInsufficientMemory"),
        example("standard fit 3", [dev(memory_mib=1024, used_cores=100)], HALF, {}, "1/1 CardInsufficientCore"),
        example("standard fit 4", [dev()], a_share(1, memory_mib=1, vendor="OtherType"), {}, "1/1 CardTypeMismatch"),
        example(
            "standard fit 5", [dev(1)], a_share(2, memory_mib=1), {"selectors": Selectors(use_uuids=("dev-0",))}, "1/1 CardUuidMismatch"
        ),
        example(
            "standard fit 6", [dev()], a_share(2, memory_mib=1), {"selectors": Selectors(avoid_uuids=("dev-0",))}, "1/1 CardUuidMismatch"
        ),
        example("standard fit 7", [dev(used_shares=100)], HALF, {}, "1/1 CardTimeSlicingExhausted"),
        example("standard fit 8", [dev()], a_share(1, memory_mib=1, cores=120), {}, "1/1 CardInsufficientCore", departs=CLAMPED),
        example("standard fit 9", [dev(used_shares=20)], a_share(1, memory_mib=1, cores=100), {}, "1/1 ExclusiveDeviceAllocateConflict"),
        example("standard fit 10", [dev(used_shares=20, used_cores=100)], a_share(1, memory_mib=1), {}, "1/1 CardComputeUnitsExhausted"),
        example(
            "standard fit 11",
            [dev(used_shares=20, used_cores=10)],
            a_share(2, memory_mib=512, cores=20),
            {},
            "1/1 AllocatedCardsInsufficientRequest",
        ),
        example("standard fit 12", [dev(0), dev(1)], a_share(3, memory_mib=512, cores=20), {}, "2/2 AllocatedCardsInsufficientRequest"),
        example("standard fit 13", [dev(used_shares=20, used_cores=10)], a_share(1, memory_percent=10, cores=20), {}, ["dev-0"]),
        example("standard fit 14", [dev(healthy=False)], a_share(1), {}, "1/1 CardNotHealth"),
        example(
            "standard fit 15",
            [dev(used_shares=1)],
            a_share(1, memory_mib=64, cores=50),
            {"policy": "mutex"},
            "1/1 ExclusiveDeviceAllocateConflict",
        ),
        example("standard fit 16", [dev(memory_mib=128, used_cores=100)], HALF, {}, "1/1 CardInsufficientMemory"),
        example("NVIDIA fit 38", [dev(memory_mib=128)], a_share(1, memory_mib=512), {}, "1/1 CardInsufficientMemory"),
        example("NVIDIA fit 39", [dev(used_cores=100)], a_share(1, memory_mib=1, cores=50), {}, "1/1 CardInsufficientCore"),
        example("NVIDIA fit 40", [dev(used_shares=100)], a_share(1, memory_mib=1), {}, "1/1 CardTimeSlicingExhausted"),
        example("NVIDIA fit 41", [dev()], a_share(1, memory_mib=1, cores=120), {}, "1/1 CardInsufficientCore", departs=CLAMPED),
        example("NVIDIA fit 42", [dev(used_shares=20)], a_share(1, memory_mib=1, cores=100), {}, "1/1 ExclusiveDeviceAllocateConflict"),
        example("NVIDIA fit 43", [dev(used_cores=100)], a_share(1, memory_mib=1), {}, "1/1 CardComputeUnitsExhausted"),
        example("NVIDIA fit 44", [dev(0), dev(1)], a_share(3, memory_mib=1), {}, "2/2 AllocatedCardsInsufficientRequest"),
        example("NVIDIA fit 45", [dev(0, cordoned=True), dev(1, cordoned=True)], a_share(1), {}, "2/2 CardCordoned"),
        example("NVIDIA fit 45 one", [dev(0), dev(1, cordoned=True)], a_share(1), {}, ["dev-0"]),
        example(
            "NVIDIA fit 46",
            [dev(0, numa=1), dev(1, numa=1), dev(2, numa=0)],
            a_share(2),
            {"selectors": Selectors(numa_bind=True)},
            ["dev-1", "dev-0"],
        ),
        example(
            "NVIDIA 417",
            [dev(0, numa=1), dev(1, numa=1), dev(2, numa=0)],
            a_share(2),
            {"selectors": Selectors(numa_bind=True)},
            ["dev-1", "dev-0"],
        ),
        example(
            "NVIDIA 418",
            [dev(0, numa=0), dev(1, numa=1)],
            a_share(2),
            {"selectors": Selectors(numa_bind=True)},
            "1/2 AllocatedCardsInsufficientRequest, 1/2 NumaNotFit",
        ),
        example("NVIDIA fit 49", [dev(0, used_shares=1), dev(1)], a_share(1, memory_mib=1), {"policy": "mutex"}, ["dev-1"]),
        example(
            "NVIDIA fit 49 two",
            [dev(0, used_shares=1), dev(1)],
            a_share(2, memory_mib=1),
            {"policy": "mutex"},
            "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
        ),
        example("NVIDIA 420", [dev(0, used_shares=1), dev(1)], a_share(1, memory_mib=1), {"policy": "mutex"}, ["dev-1"]),
        example("NVIDIA fit 50", [dev(memory_mib=11264, used_memory_mib=11260)], a_share(1), {}, "1/1 CardInsufficientMemory"),
        example("NVIDIA 421", [dev(memory_mib=11264)], a_share(1), {}, ["dev-0"]),
        example(
            "edge 22",
            [dev(used_cores=120)],
            a_share(1, memory_mib=1),
            {},
            "1/1 CardComputeUnitsExhausted",
            departs="more than all cores used is all cores used",
        ),
    ],
)
def test_containers_fit(states: list[DeviceState], request_: DeviceRequest, options: dict[str, object], result: list[str] | str) -> None:
    assert fit(states, request_, **options) == result  # type: ignore[arg-type]


def links(**points: int) -> PairScores:
    """``d0_1=100``: the pair dev-0, dev-1 has 100."""
    scores: dict[str, dict[str, int]] = {}
    for pair, score in points.items():
        one, other = (f"dev-{number}" for number in pair[1:].split("_"))
        scores.setdefault(one, {})[other] = scores.setdefault(other, {})[one] = score
    return scores


THREE = [dev(0), dev(1), dev(2)]
NEGATIVE = links(d0_1=-5, d0_2=-3, d1_2=-1)


@pytest.mark.parametrize(
    ("scores", "count", "result"),
    [
        example("NVIDIA 414", links(d0_1=100, d0_2=200, d1_2=150), 1, {"dev-1"}),
        example("NVIDIA 415", links(d0_1=100, d0_2=200, d1_2=150), 2, {"dev-0", "dev-2"}),
        example("NVIDIA 416 one", NEGATIVE, 1, {"dev-0"}),
        example("NVIDIA 416 two", NEGATIVE, 2, {"dev-1", "dev-2"}),
        example("NVIDIA fit 47", links(d0_1=100, d0_2=200, d1_2=150), 1, {"dev-1"}),
        example("NVIDIA fit 48", links(d0_1=100, d0_2=200, d1_2=150), 2, {"dev-0", "dev-2"}),
        pytest.param({}, 1, {"dev-2"}, id="B23 no scores: as without"),
        pytest.param(links(d0_1=100), 2, {"dev-0", "dev-1"}, id="B23 some scores"),
        pytest.param({"dev-9": {"dev-8": 5}}, 2, {"dev-1", "dev-2"}, id="B23 scores of other devices"),
    ],
)
def test_the_best_linked_devices_are_taken(scores: PairScores, count: int, result: set[str]) -> None:
    assert set(fit(THREE, a_share(count), policy="topology-aware", pair_scores=scores)) == result


def test_many_devices_are_grown_into_a_well_linked_set_in_bounded_time() -> None:
    many = [dev(number) for number in range(24)]
    scores = {f"dev-{a}": {f"dev-{b}": 100 for b in range(24) if a != b and a % 2 == b % 2} for a in range(24)}
    chosen = fit(many, a_share(12), policy="topology-aware", pair_scores=scores)
    assert len({int(uuid.removeprefix("dev-")) % 2 for uuid in chosen}) == 1


@pytest.mark.parametrize(
    ("policy", "count", "result"),
    [("spread", 1, ["dev-3"]), ("spread", 2, ["dev-3", "dev-2"]), ("binpack", 1, ["dev-0"])],
)
def test_numa_does_not_come_before_load(policy: str, count: int, result: list[str]) -> None:
    loads = [(0, 0, 900), (1, 0, 700), (2, 1, 300), (3, 1, 100)]
    cards = [dev(number, numa=numa, memory_mib=1000, used_memory_mib=used, used_shares=1) for number, numa, used in loads]
    assert fit(cards, a_share(count, memory_mib=100), policy=policy) == result


def test_a_card_in_mig_mode_takes_no_share() -> None:
    assert fit([dev(mode="mig")], a_share(1)) == "1/1 CardMigTopologyInfeasible"
    assert fit([dev(mode="mig")], a_share(1), selectors=Selectors(modes=("hami-core",))) == "1/1 CardTypeMismatch"


@pytest.mark.example("init containers 287")
def test_a_share_adds_one_slot_its_memory_and_its_cores() -> None:
    after = charged(dev(used_cores=15, used_memory_mib=2000), DeviceShare(uuid="dev-0", type="NVIDIA", memory_mib=1024, cores=50))
    assert (after.used_shares, after.used_cores, after.used_memory_mib) == (1, 65, 3024)


STATES = st.builds(
    lambda device, used_shares, memory, cores, cordoned: a_state(
        device, used_shares=used_shares, used_memory_mib=memory, used_cores=cores, cordoned=cordoned
    ),
    devices("n1", "NVIDIA").filter(bool).map(lambda listed: listed[0]),
    st.integers(0, 3),
    st.sampled_from([0, 0, 500, 2000]),
    st.sampled_from([0, 0, 50, 100]),
    st.booleans(),
)
ONE_NODE = st.lists(STATES, max_size=5, unique_by=lambda state: state.device.uuid)
REQUESTS = shares(("NVIDIA",))
POLICY = st.sampled_from(["binpack", "spread", "mutex", "numa", "topology-aware"])


@given(ONE_NODE, REQUESTS, SELECTORS, POLICY, st.randoms(use_true_random=False))
def test_the_order_of_devices_does_not_matter(
    states: list[DeviceState], request_: DeviceRequest, selectors: Selectors, policy: str, rng: random.Random
) -> None:
    once = fit(states, request_, selectors=selectors, policy=policy)
    rng.shuffle(states)
    assert fit(states, request_, selectors=selectors, policy=policy) == once


@given(ONE_NODE, REQUESTS, SELECTORS, POLICY, st.data())
def test_more_room_never_turns_a_fit_into_a_misfit(
    states: list[DeviceState], request_: DeviceRequest, selectors: Selectors, policy: str, data: st.DataObject
) -> None:
    before = fit(states, request_, selectors=selectors, policy=policy)
    if isinstance(before, str) or not states:
        return
    place = data.draw(st.integers(0, len(states) - 1))
    freed = replace(
        states[place], used_memory_mib=states[place].used_memory_mib // 2, used_shares=0, used_cores=states[place].used_cores // 2
    )
    assert not isinstance(fit([*states[:place], freed, *states[place + 1 :]], request_, selectors=selectors, policy=policy), str)


@given(STATES, REQUESTS, SELECTORS, st.booleans())
def test_what_fits_stays_within_the_device(state: DeviceState, request_: DeviceRequest, selectors: Selectors, exclusive: bool) -> None:
    if fit_device(state, request_, selectors=selectors, exclusive=exclusive) is None:
        assert state.used_shares + 1 <= state.device.shares
        assert state.used_memory_mib + request_.memory_on(state.device.memory_mib) <= state.device.memory_mib
        assert not request_.cores or state.used_cores + request_.cores <= state.device.cores
        assert state.device.healthy
        assert not state.cordoned


@pytest.mark.parametrize(
    ("counts", "total", "text"),
    [
        example(
            "reasons 247",
            {Reason.MEMORY: 3, Reason.CORES: 2, Reason.HEALTH: 3},
            8,
            "2/8 CardInsufficientCore, 3/8 CardInsufficientMemory, 3/8 CardNotHealth",
        ),
        pytest.param({Reason.MEMORY: 0}, 2, "", id="nothing"),
        pytest.param(
            {Reason.MEMORY: 10, Reason.SLOTS: 2}, 12, "10/12 CardInsufficientMemory, 2/12 CardTimeSlicingExhausted", id="sorted as text"
        ),
    ],
)
def test_reasons_are_counted_and_sorted_as_text(counts: dict[Reason, int], total: int, text: str) -> None:
    assert render(counts, total) == text

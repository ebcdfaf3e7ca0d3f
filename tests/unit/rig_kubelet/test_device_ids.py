"""Which ids containers get: as kubelet's device manager was seen to give them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol.devices import ContainerKind
from hami_rig.kubelet.devices import AllocationRefused, DeviceLedger, Held

GPU = "nvidia.com/gpu"


def a_ledger(ids: Sequence[str], seed: int = 0) -> DeviceLedger:
    ledger = DeviceLedger(rng=random.Random(seed))
    ledger.report(GPU, ids, ())
    return ledger


def allocate(ledger: DeviceLedger, pod: str, container: str, count: int, kind: ContainerKind = ContainerKind.APP) -> set[str]:
    choice = ledger.choices(pod, container, GPU, count)
    assert choice is not None
    ids = ledger.chosen(choice, ())
    ledger.hold(Held(pod_uid=pod, container=container, resource=GPU, ids=ids, answer=b"answer"))
    ledger.settle(pod, container, kind)
    return set(ids)


@given(st.integers(0, 1000))
def test_init_ids_are_given_again_within_the_pod_and_sidecars_keep_theirs(seed: int) -> None:
    ledger = a_ledger([str(number) for number in range(10)], seed)
    init = allocate(ledger, "p", "i0", 1, ContainerKind.INIT)
    sidecar = allocate(ledger, "p", "sidecar", 1, ContainerKind.SIDECAR)
    second = allocate(ledger, "p", "i2", 2, ContainerKind.INIT)
    app = allocate(ledger, "p", "c", 1)
    last = allocate(ledger, "p", "d", 2)
    assert init == sidecar
    assert second.isdisjoint(sidecar)
    assert app < second
    assert second - app < last
    assert len(last - second) == 1
    assert last.isdisjoint(sidecar)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=12), st.integers(0, 1000))
def test_no_id_is_held_by_two_pods_and_released_ids_come_back(requests: list[tuple[int, int]], seed: int) -> None:
    ledger = a_ledger([str(number) for number in range(8)], seed)
    for place, (pod, count) in enumerate(requests):
        try:
            allocate(ledger, f"p{pod}", f"c{place}", count)
        except AllocationRefused:
            assert sum(len(held.ids) for held in ledger.held) + count > 8
    holders: dict[str, str] = {}
    for held in ledger.held:
        for each in held.ids:
            assert holders.setdefault(each, held.pod_uid) == held.pod_uid
    for pod in range(5):
        ledger.release(f"p{pod}")
    assert ledger.held == ()
    assert len(allocate(ledger, "last", "c", 8)) == 8


def test_a_preference_is_followed_as_far_as_it_can_be_had() -> None:
    ledger = a_ledger(["a", "b", "c", "d"])
    allocate(ledger, "other", "c", 1)
    choice = ledger.choices("p", "c", GPU, 2)
    assert choice is not None
    free = sorted(choice.available)
    assert set(ledger.chosen(choice, ["unknown", free[2], free[2], free[1]])) == {free[1], free[2]}
    assert set(ledger.chosen(choice, [free[2]])) > {free[2]}


def test_what_was_given_stays_when_kubelet_or_the_container_restarts() -> None:
    ledger = a_ledger(["a", "b"])
    given_ids = allocate(ledger, "p", "c", 1)
    assert ledger.choices("p", "c", GPU, 1) is None
    again = DeviceLedger(ledger.held, [GPU], rng=random.Random(1))
    assert again.resources[GPU].capacity == 0
    again.report(GPU, ["a", "b"], ())
    assert again.choices("p", "c", GPU, 1) is None
    assert allocate(again, "q", "c", 1).isdisjoint(given_ids)


@pytest.mark.parametrize(
    ("prepare", "count", "message"),
    [
        (lambda ledger: ledger.forget_resource(GPU), 1, "cannot allocate unregistered device nvidia.com/gpu"),
        (lambda ledger: ledger.restart(), 1, "cannot allocate unregistered device nvidia.com/gpu"),
        (lambda ledger: ledger.disconnect(GPU), 1, "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"),
        (lambda ledger: None, 3, r"requested number of devices unavailable for nvidia.com/gpu. Requested: 3, Available: 2"),
    ],
)
def test_a_refusal_has_kubelets_words(prepare: object, count: int, message: str) -> None:
    ledger = a_ledger(["a", "b"])
    prepare(ledger)  # type: ignore[operator]
    with pytest.raises(AllocationRefused, match=f"^{message}$"):
        ledger.choices("p", "c", GPU, count)

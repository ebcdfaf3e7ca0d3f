"""What a wish for other sizes comes to: booking equals limit at every step, and no card is charged over what it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_devices.accounting import charges_of
from hami_devices.model import DeviceState
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.events import PodReleased, ShareResizeApplied, ShareResized, ShareResizeRefused
from hami_protocol.resize import ResizeRequest
from hami_scheduler.resizing import ResizeRefused, Resizes, larger, shortfall, wished
from tests.builders import a_device

POD = PodRef(namespace="default", name="p1", uid="u1")
Held = tuple[VendorAssignment, ...]


def held(*sizes: tuple[int, int], vendor: str = "NVIDIA") -> Held:
    containers = tuple(
        ContainerShares(
            container=f"c{place}",
            kind=ContainerKind.APP,
            shares=(DeviceShare(uuid="GPU-a", type=vendor, memory_mib=mib, cores=cores),) if mib else (),
        )
        for place, (mib, cores) in enumerate(sizes)
    )
    return (VendorAssignment(vendor=vendor, containers=containers),)


def a_wish(memory_mib: int | None = None, cores: int | None = None, container: str = "") -> ResizeRequest:
    return ResizeRequest(namespace="default", pod="p1", container=container, memory_mib=memory_mib, cores=cores)


def sized(before: Held, wish: ResizeRequest) -> Held:
    return wished(before, wish, lambda name: name == "NVIDIA")


def test_only_what_was_asked_for_changes() -> None:
    assert sized(held((1000, 30), (0, 0)), a_wish(2000)) == held((2000, 30), (0, 0))
    assert sized(held((1000, 30), (500, 0)), a_wish(cores=10, container="c1")) == held((1000, 30), (500, 10))


@pytest.mark.parametrize(
    ("before", "wish", "reason"),
    [
        (held((1000, 30)), a_wish(), "nothing was asked for"),
        (held((1000, 30), (500, 0)), a_wish(2000), "name one of c0, c1"),
        (held((1000, 30)), a_wish(2000, container="c7"), "'c7' has no share"),
        (held((0, 0)), a_wish(2000), "no share that can be resized"),
        (held((1000, 30), vendor="Ascend"), a_wish(2000), "no share that can be resized"),
    ],
)
def test_what_cannot_be_resized_is_refused_with_what_can(before: Held, wish: ResizeRequest, reason: str) -> None:
    with pytest.raises(ResizeRefused, match=reason):
        sized(before, wish)


def lacking(before: Held, after: Held, *, others_mib: int = 0, others_cores: int = 0) -> str:
    state = DeviceState(
        device=replace(a_device("GPU-a"), memory_mib=10000),
        vendor="NVIDIA",
        used_shares=1 if others_mib else 0,
        used_memory_mib=others_mib,
        used_cores=others_cores,
    )
    return shortfall([state], charges_of(before)[0], charges_of(after)[0])


def test_a_share_grows_into_what_others_leave_and_no_further() -> None:
    assert lacking(held((1000, 30)), held((4000, 30)), others_mib=6000) == ""
    assert lacking(held((1000, 30)), held((4001, 30)), others_mib=6000) == (
        "device GPU-a has 4000 MiB for this pod, 4001 MiB were asked for"
    )
    assert "40 % for this pod" in lacking(held((1000, 30)), held((1000, 50)), others_mib=1, others_cores=60)
    assert "alone" in lacking(held((1000, 30)), held((1000, 100)), others_mib=1)


def test_what_shrinks_fits_whatever_the_card_says() -> None:
    assert shortfall([], charges_of(held((1000, 30)))[0], charges_of(held((900, 30)))[0]) == ""
    assert "not registered" in shortfall([], charges_of(held((1000, 30)))[0], charges_of(held((1100, 30)))[0])


sizes = st.tuples(st.integers(1, 10**6), st.integers(0, 100))


@given(sizes, st.lists(st.tuples(sizes, st.booleans()), max_size=5))
def test_what_is_charged_is_never_less_than_what_any_limit_may_be_now(
    first: tuple[int, int], steps: list[tuple[tuple[int, int], bool]]
) -> None:
    resizes = Resizes()
    limit = annotated = held(first)
    for generation, (size, applied) in enumerate(steps, start=1):
        wanted = held(size)
        resizes.observe(ShareResized(pod=POD, node="n1", assignments=wanted, generation=generation))
        assert resizes.charged("u1", annotated) == larger(limit, wanted)
        if applied:
            resizes.observe(ShareResizeApplied(pod=POD, node="n1", assignments=wanted, generation=generation))
            limit = wanted
        else:
            resizes.observe(ShareResizeRefused(pod=POD, node="n1", generation=generation, reason="in use"))
        assert resizes.charged("u1", annotated) == limit


def test_an_outcome_twice_or_of_another_resize_changes_nothing() -> None:
    resizes = Resizes()
    wanted = ShareResized(pod=POD, node="n1", assignments=held((2000, 0)), generation=7)
    assert resizes.observe(wanted)
    assert not resizes.observe(wanted)
    assert not resizes.observe(ShareResizeApplied(pod=POD, node="n1", assignments=held((9000, 0)), generation=6))
    assert resizes.pending("u1")
    applied = ShareResizeApplied(pod=POD, node="n1", assignments=held((9000, 0)), generation=7)
    assert resizes.observe(applied)
    assert not resizes.observe(applied)
    assert resizes.charged("u1", held((1000, 0))) == held((2000, 0))  # as the scheduler said, not as the agent did
    assert resizes.generation_after("u1", 3) == 8


def test_a_pod_that_is_released_leaves_nothing_behind() -> None:
    resizes = Resizes()
    resizes.observe(ShareResized(pod=POD, node="n1", assignments=held((2000, 0)), generation=7))
    resizes.observe(PodReleased(pod=POD, node="n1"))
    assert resizes.charged("u1", held((1000, 0))) == held((1000, 0))

"""Who held what when."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.events import (
    AllocationEvent,
    AllocationFailed,
    AllocationSucceeded,
    AssignmentLapsed,
    PodAllocating,
    PodAssigned,
    PodReleased,
    ShareResizeApplied,
)
from hami_protocol.holdings import CardCharge, PodHolding
from hami_registry.web import history
from hami_registry.web.history import ALLOCATED, BOUND, FAILED, KEPT_SECONDS, RESERVED, History
from tests.builders import a_ref

NOW = 1_800_000_000.0


def held(memory_mib: int = 1000, cores: int = 10, uuid: str = "GPU-A") -> tuple[VendorAssignment, ...]:
    share = DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=memory_mib, cores=cores)
    return (VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),)),)


def assigned(pod: PodRef, node: str = "n1", memory_mib: int = 1000) -> PodAssigned:
    return PodAssigned(pod=pod, node=node, assignments=held(memory_mib))


def allocating(pod: PodRef, node: str = "n1", memory_mib: int = 1000) -> PodAllocating:
    return PodAllocating(pod=pod, node=node, assignments=held(memory_mib), bind_time_seconds=0)


def holding(pod: PodRef, node: str = "n1", memory_mib: int = 1000, phase: str = "bound") -> PodHolding:
    return PodHolding(pod=pod, node=node, phase=phase, charges=(CardCharge(uuid="GPU-A", memory_mib=memory_mib, cores=10),))


def told(*events: AllocationEvent, begin: float = NOW) -> History:
    found = History()
    for place, event in enumerate(events):
        found.observe(event, begin + place)
    return found


def memory_at(found: History, time: float) -> int:
    return sum(charge.memory_mib for span in found.at(time) for charge in span.charges)


def test_a_pod_holds_from_its_assignment_to_its_release() -> None:
    pod = a_ref()
    found = told(assigned(pod), allocating(pod), AllocationSucceeded(pod=pod, node="n1"), PodReleased(pod=pod, node="n1"))
    assert [memory_at(found, NOW + second) for second in (-1, 0, 1, 2, 3)] == [0, 1000, 1000, 1000, 0]
    assert not list(found.now_on("n1"))


@pytest.mark.parametrize(
    ("event", "phase"),
    [(AllocationSucceeded(pod=a_ref(), node="n1"), ALLOCATED), (AllocationFailed(pod=a_ref(), node="n1", reason="x"), FAILED)],
)
def test_phases_only_move_forward(event: AllocationEvent, phase: str) -> None:
    found = told(assigned(a_ref()))
    assert [span.phase for span in found.now_on("n1")] == [RESERVED]
    found.observe(allocating(a_ref()), NOW + 1)
    assert [span.phase for span in found.now_on("n1")] == [BOUND]
    found.observe(event, NOW + 2)
    found.observe(allocating(a_ref()), NOW + 3)
    assert [span.phase for span in found.now_on("n1")] == [phase]


def test_a_reservation_that_lapsed_frees_its_own_node_alone_and_may_come_again() -> None:
    pod = a_ref()
    found = told(assigned(pod, "n1"), assigned(pod, "n2"), AssignmentLapsed(pod=pod, node="n1", reason="late"))
    assert [span.node for span in found.at(NOW + 5)] == ["n2"]
    found.observe(AssignmentLapsed(pod=pod, node="n2", reason="late"), NOW + 6)
    assert not list(found.at(NOW + 7))
    found.observe(assigned(pod, "n1"), NOW + 8)
    assert [span.node for span in found.at(NOW + 9)] == ["n1"]


def test_a_released_pod_never_holds_again_whatever_is_said_late() -> None:
    pod = a_ref()
    found = told(allocating(pod), PodReleased(pod=pod, node="n1"), allocating(pod), assigned(pod))
    found.reconcile([holding(pod)], asked_at=NOW + 100, now=NOW + 100)
    assert not list(found.at(NOW + 200))


def test_a_namesake_is_another_pod() -> None:
    first, second = a_ref(uid="one"), a_ref(uid="two")
    found = told(allocating(first), PodReleased(pod=first, node="n1"), allocating(second))
    assert [span.pod.uid for span in found.now_on("n1")] == ["two"]


def test_other_sizes_hold_from_when_they_are_applied() -> None:
    pod = a_ref()
    found = told(allocating(pod), ShareResizeApplied(pod=pod, node="n1", assignments=held(4000), generation=1))
    assert (memory_at(found, NOW), memory_at(found, NOW + 1)) == (1000, 4000)
    assert len(list(found.of_card("n1", "GPU-A"))) == 2


def test_what_the_log_has_no_more_comes_from_the_scheduler() -> None:
    found = History()
    assert found.reconcile([holding(a_ref())], asked_at=NOW, now=NOW) == {"n1"}
    assert [span.begin for span in found.at(NOW - 3600)] == [0.0]
    found.observe(allocating(a_ref()), NOW - 100)  # the log is read later
    assert [span.begin for span in found.at(NOW)] == [NOW - 100]


def test_what_the_scheduler_does_not_know_any_more_is_over_unless_it_is_new() -> None:
    found = told(allocating(a_ref("old")), begin=NOW - 100)
    found.observe(allocating(a_ref("new")), NOW - 1)
    found.reconcile([], asked_at=NOW, now=NOW)
    assert [span.pod.name for span in found.at(NOW)] == ["new"]


def test_charges_are_mended_by_the_scheduler() -> None:
    found = told(allocating(a_ref(), memory_mib=5000), begin=NOW - 100)
    found.reconcile([holding(a_ref(), memory_mib=2000, phase="shrunk")], asked_at=NOW, now=NOW)
    assert (memory_at(found, NOW - 50), memory_at(found, NOW)) == (5000, 2000)


def test_the_past_begins_with_the_log_and_is_a_day_at_most() -> None:
    found = History()
    assert found.begins(NOW) == NOW
    found.observe(allocating(a_ref()), NOW - 3600)
    assert found.begins(NOW) == NOW - 3600
    assert found.begins(NOW + KEPT_SECONDS) == NOW


def test_what_is_over_for_a_day_is_forgotten() -> None:
    found = told(allocating(a_ref()), PodReleased(pod=a_ref(), node="n1"), begin=NOW - KEPT_SECONDS - 10)
    found.forget(NOW)
    assert not list(found.of_card("n1", "GPU-A"))


def test_what_is_kept_is_bounded_and_the_past_then_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_ENDED", 3)
    found = History()
    for number in range(6):
        pod = a_ref(f"p{number}")
        found.observe(allocating(pod), NOW + 10 * number)
        found.observe(PodReleased(pod=pod, node="n1"), NOW + 10 * number + 5)
    assert [span.pod.name for span in found.of_card("n1", "GPU-A")] == ["p3", "p4", "p5"]
    assert found.begins(NOW + 100) == NOW + 25


@st.composite
def logs(draw: st.DrawFn) -> list[AllocationEvent]:
    """Any events on three pods and two nodes, in any order."""
    pods, nodes = [a_ref(f"p{number}") for number in range(3)], ["n1", "n2"]
    kinds = [
        lambda pod, node: assigned(pod, node),
        lambda pod, node: allocating(pod, node),
        lambda pod, node: AllocationSucceeded(pod=pod, node=node),
        lambda pod, node: AssignmentLapsed(pod=pod, node=node, reason=""),
        lambda pod, node: PodReleased(pod=pod, node=node),
        lambda pod, node: ShareResizeApplied(pod=pod, node=node, assignments=held(draw(st.integers(1, 5)) * 1000), generation=1),
    ]
    return [
        draw(st.sampled_from(kinds))(draw(st.sampled_from(pods)), draw(st.sampled_from(nodes))) for _ in range(draw(st.integers(0, 25)))
    ]


@given(logs())
def test_at_any_time_a_pod_holds_once_at_most_and_now_is_the_last_moment(events: list[AllocationEvent]) -> None:
    found = told(*events)
    for second in range(len(events) + 1):
        uids = [span.pod.uid for span in found.at(NOW + second)]
        assert len(uids) == len(set(uids))
    last = {(span.pod.uid, span.node) for span in found.at(NOW + len(events) + 1)}
    assert last == {(span.pod.uid, span.node) for node in ("n1", "n2") for span in found.now_on(node)}


@given(logs())
def test_saying_the_last_event_twice_changes_nothing(events: list[AllocationEvent]) -> None:
    found = told(*events)
    before = [(span.pod.uid, span.node, span.phase, span.charges, span.begin) for node in ("n1", "n2") for span in found.now_on(node)]
    if events:
        assert not found.observe(events[-1], NOW + 100)
    assert before == [
        (span.pod.uid, span.node, span.phase, span.charges, span.begin) for node in ("n1", "n2") for span in found.now_on(node)
    ]

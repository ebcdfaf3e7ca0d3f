"""Which pods wait."""

from __future__ import annotations

from hami_protocol.events import PodAllocating, PodAssigned, PodPlaced, PodRefused, PodReleased
from hami_protocol.holdings import MOST_WAITING, WaitingPod
from hami_registry.web.waiting import Waiting
from tests.builders import a_ref


def refused(name: str = "p1", summary: str = "too big") -> PodRefused:
    return PodRefused(pod=a_ref(name), summary=summary, node_count=2, reasons={"CardInsufficientMemory": 2})


def waits(name: str = "p1", summary: str = "too big") -> WaitingPod:
    return WaitingPod(pod=a_ref(name), since="2026-01-01T00:00:00Z", summary=summary, reasons={"CardInsufficientMemory": 2})


def names(waiting: Waiting) -> list[str]:
    return [each.pod.name for each in waiting.listed()]


def test_a_refused_pod_waits_until_it_is_placed_or_granted() -> None:
    for event in (PodAssigned, PodAllocating):
        waiting = Waiting()
        assert waiting.verdict(refused(), time="t", now=1)
        assert not waiting.verdict(refused(), time="t", now=2)
        details = {"bind_time_seconds": 0} if event is PodAllocating else {}
        assert waiting.granted(event(pod=a_ref(), node="n", assignments=(), **details))
        assert names(waiting) == []
    waiting = Waiting()
    waiting.verdict(refused(), time="t", now=1)
    assert not waiting.granted(PodReleased(pod=a_ref(), node="n"))
    assert waiting.verdict(PodPlaced(pod=a_ref(), node="n", fitting_node_count=1, node_count=1), time="t", now=2)
    assert waiting.count == 0


def test_a_new_reason_keeps_the_time_since_when_it_waits() -> None:
    waiting = Waiting()
    waiting.reconcile([waits()], 1, asked_at=0)
    waiting.verdict(refused(summary="still too big"), time="later", now=5)
    (pod,) = waiting.listed()
    assert (pod.since, pod.summary) == ("2026-01-01T00:00:00Z", "still too big")


def test_the_schedulers_list_replaces_ours_but_for_what_it_said_meanwhile() -> None:
    waiting = Waiting()
    waiting.verdict(refused("deleted"), time="t", now=1)
    waiting.verdict(refused("just-refused"), time="t", now=10)
    assert waiting.reconcile([waits("listed")], 1, asked_at=5)
    assert names(waiting) == ["just-refused", "listed"]
    assert waiting.reconcile([waits("listed")], 1, asked_at=20)
    assert not waiting.reconcile([waits("listed")], 1, asked_at=30)
    assert names(waiting) == ["listed"]


def test_what_is_kept_is_bounded_and_all_are_counted() -> None:
    waiting = Waiting()
    for number in range(MOST_WAITING + 5):
        waiting.verdict(refused(f"p{number}"), time="t", now=1)
    assert len(waiting.listed()) == MOST_WAITING
    waiting.reconcile([waits()], 900, asked_at=5)
    assert (len(waiting.listed()), waiting.count) == (1, 900)

"""How long an outcome waits for the grant that it answers."""

import math

import pytest

from hami_node_agent.outcomes import GRACE_SECONDS, patience_seconds
from hami_protocol.events import (
    AllocationFailed,
    AllocationSucceeded,
    ContainerServed,
    DevicesReported,
    Event,
    PodReleased,
    ShareResizeApplied,
    ShareResizeRefused,
)
from hami_runtime.outbox import LONGEST_DELAY_SECONDS
from tests.builders import a_ref

POD = a_ref("p1")
ANSWERS: list[Event] = [
    ContainerServed(pod=POD, node="n1", container="main", vendor="NVIDIA", to_allocate=";"),
    AllocationSucceeded(pod=POD, node="n1"),
    AllocationFailed(pod=POD, node="n1", reason=""),
    PodReleased(pod=POD, node="n1"),
]
OTHERS: list[Event] = [
    ShareResizeApplied(pod=POD, node="n1", assignments=(), generation=1),
    ShareResizeRefused(pod=POD, node="n1", generation=1, reason=""),
    DevicesReported(node="n1", device_type="nvidia", generation=1, devices=()),
]


@pytest.mark.parametrize(
    ("told", "grants_expected", "waits"), [(True, True, False), (True, False, False), (False, False, False), (False, True, True)]
)
@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("event", ANSWERS, ids=lambda event: type(event).__name__)
def test_only_the_answer_to_a_grant_that_is_still_to_come_waits(
    event: Event, lives: bool, told: bool, grants_expected: bool, waits: bool
) -> None:
    known = {POD.uid} if told else set()
    seconds = patience_seconds(event, told=known.__contains__, lives=lambda _uid: lives, grants_expected=grants_expected)
    assert (seconds > 0) == waits


@pytest.mark.parametrize("event", OTHERS, ids=lambda event: type(event).__name__)
def test_the_answer_to_another_event_never_waits(event: Event) -> None:
    assert patience_seconds(event, told=lambda _uid: False, lives=lambda _uid: True, grants_expected=True) == 0


@pytest.mark.parametrize("event", ANSWERS, ids=lambda event: type(event).__name__)
def test_the_outcome_of_a_pod_that_has_ended_waits_for_a_bounded_time(event: Event) -> None:
    seconds = patience_seconds(event, told=lambda _uid: False, lives=lambda _uid: False, grants_expected=True)
    assert seconds == GRACE_SECONDS
    assert LONGEST_DELAY_SECONDS < GRACE_SECONDS < 30.0


def test_only_success_of_a_pod_that_lives_waits_without_a_bound() -> None:
    """A refusal for want of a grant has none to wait for."""
    unbounded = {
        type(event)
        for event in ANSWERS
        if patience_seconds(event, told=lambda _uid: False, lives=lambda _uid: True, grants_expected=True) == math.inf
    }
    assert unbounded == {ContainerServed, AllocationSucceeded}

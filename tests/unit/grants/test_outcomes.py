"""How long an outcome waits for the grant that it answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
@pytest.mark.parametrize("event", ANSWERS, ids=lambda event: type(event).__name__)
def test_only_what_answers_a_grant_that_is_still_to_come_waits(event: Event, told: bool, grants_expected: bool, waits: bool) -> None:
    known = {POD.uid} if told else set()
    assert (patience_seconds(event, told=known.__contains__, grants_expected=grants_expected) > 0) == waits


@pytest.mark.parametrize("event", OTHERS, ids=lambda event: type(event).__name__)
def test_what_answers_another_word_never_waits(event: Event) -> None:
    assert patience_seconds(event, told=lambda _uid: False, grants_expected=True) == 0


@given(st.sampled_from(ANSWERS), st.sets(st.sampled_from(["uid-p1", "uid-p2"])), st.booleans())
def test_a_scheduler_that_is_back_has_time_to_speak_and_the_wait_is_bounded(event: Event, told: set[str], grants_expected: bool) -> None:
    seconds = patience_seconds(event, told=told.__contains__, grants_expected=grants_expected)
    assert seconds in (0.0, GRACE_SECONDS)
    assert LONGEST_DELAY_SECONDS < GRACE_SECONDS < 30.0
    assert (seconds == 0.0) == (not grants_expected or POD.uid in told)

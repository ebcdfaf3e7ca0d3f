"""How long a reservation is kept that bind has not used."""

from typing import Any

import msgspec

from hami_protocol.kubernetes import Condition, Pod, PodStatus
from hami_scheduler.reservations import Reservation, Reservations
from tests.builders import a_pod, a_ref

REFUSED = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="0/3 nodes are available")


def with_condition(condition: Condition) -> Pod:
    return msgspec.structs.replace(a_pod(), status=PodStatus(conditions=(condition,)))


def kept(**fields: Any) -> Reservations:
    reservations = Reservations(**fields)
    reservations.put(Reservation(pod=a_ref(), node="n1", attempt=1, since_seconds=100.0))
    return reservations


def test_a_pod_of_which_nothing_new_is_said_is_held() -> None:
    reservations = kept()
    reservations.pod_changed(a_pod(), a_pod(labels={"touched": "yes"}))
    assert reservations.held("uid-p1", pod=a_pod(), now=130.0)
    assert reservations.held("uid-p1", pod=a_pod(), now=699.0)


def test_none_is_held_for_ever() -> None:
    assert not kept().held("uid-p1", pod=a_pod(), now=700.0)
    assert not kept(longest_seconds=60.0).held("uid-p1", pod=a_pod(), now=160.0)


def test_a_pod_that_kube_scheduler_has_given_up_is_not_held() -> None:
    reservations = kept()
    reservations.pod_changed(a_pod(), with_condition(REFUSED))
    assert not reservations.held("uid-p1", pod=with_condition(REFUSED), now=130.0)


def test_a_new_text_counts_and_the_old_one_does_not() -> None:
    reservations = kept()
    before = with_condition(REFUSED)
    reservations.pod_changed(before, before)
    assert reservations.held("uid-p1", pod=before, now=130.0)
    after = with_condition(msgspec.structs.replace(REFUSED, reason="SchedulerError"))
    reservations.pod_changed(before, after)
    assert not reservations.held("uid-p1", pod=after, now=130.0)


def test_a_new_reservation_is_not_doubtful_any_more() -> None:
    reservations = kept()
    reservations.pod_changed(a_pod(), with_condition(REFUSED))
    reservations.put(Reservation(pod=a_ref(), node="n2", attempt=2, since_seconds=110.0))
    assert reservations.held("uid-p1", pod=with_condition(REFUSED), now=140.0)


def test_a_pod_that_is_gone_or_a_namesake_is_not_held() -> None:
    assert not kept().held("uid-p1", pod=None, now=130.0)
    assert not kept().held("uid-p1", pod=a_pod(uid="another"), now=130.0)
    assert not kept().held("another", pod=a_pod(uid="another"), now=130.0)

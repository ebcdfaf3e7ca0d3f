"""What the log of grants lacks after a restart."""

from typing import Any

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.events import AllocationFailed, AllocationSucceeded, AssignmentLapsed, PodAllocating, PodAssigned, PodReleased
from hami_protocol.kubernetes import Pod, PodStatus
from hami_protocol.subjects import DAY_SECONDS
from hami_scheduler.allocations import RESTARTED, GrantLog
from tests.builders import a_pod, a_ref

RECORD = {"hami.io/vgpu-devices-allocated": "GPU-A,NVIDIA,1000,0:;"}


@pytest.fixture
def log() -> GrantLog:
    return GrantLog(Catalog())


def bound(name: str = "p1", *, phase: str = "allocating", time: str = "1700000000", status: str = "Pending", **fields: Any) -> Pod:
    annotations = RECORD | {keys.BIND_PHASE: phase, keys.BIND_TIME: time, keys.ASSIGNED_NODE: "n1"}
    pod = a_pod(name, gpu=1, node_name="n1", annotations=annotations, **fields)
    return msgspec.structs.replace(pod, status=PodStatus(phase=status))


def assigned(name: str = "p1", node: str = "n1") -> PodAssigned:
    return PodAssigned(pod=a_ref(name), node=node, assignments=())


def granted(name: str = "p1", node: str = "n1") -> PodAllocating:
    return PodAllocating(pod=a_ref(name), node=node, assignments=(), bind_time_seconds=1700000000)


def said(log: GrantLog, pods: list[Pod], reserved: list[str] | None = None, *, days_later: int = 0) -> list[tuple[str, str]]:
    missing = log.missing(pods, reserved=reserved or [], utc_seconds=1700000000 + days_later * DAY_SECONDS)
    return [(type(each.event).__name__, each.event_id) for each in missing]


GRANT = ("PodAllocating", "uid-p1/allocating/1700000000")
FROM_THE_START = [("PodAssigned", "uid-p1/assigned/1700000000"), GRANT]


def test_a_grant_that_was_not_published_is_said_with_its_first_id_behind_its_assignment(log: GrantLog) -> None:
    assert said(log, [bound()]) == FROM_THE_START
    log.observe(assigned())
    assert said(log, [bound()]) == [GRANT]


def test_of_a_pod_that_is_over_by_the_log_and_not_yet_by_the_watch_no_assignment_is_said(log: GrantLog) -> None:
    log.observe(granted())
    log.observe(PodReleased(pod=a_ref(), node="n1"))
    assert said(log, [bound()]) == [GRANT]  # the bus knows it by its id


def test_an_assignment_that_is_heard_behind_the_release_has_not_lapsed(log: GrantLog) -> None:
    """Ours, which came back from the bus when the release was on its way there already."""
    log.observe(PodReleased(pod=a_ref(), node="n1"))
    log.observe(assigned())
    assert said(log, []) == []


def test_of_one_pod_the_same_is_missing_as_of_it_among_all(log: GrantLog) -> None:
    log.observe(assigned("p2"))
    log.observe(granted("p3"))
    for pod, name, reserved in ((bound(), "p1", False), (None, "p2", False), (None, "p2", True), (None, "p3", False), (None, "p4", False)):
        among_all = log.missing([pod] if pod else [], reserved=["uid-p2"] if reserved else [], utc_seconds=1700000000.0)
        of_it = log.missing_of(a_ref(name), pod, reserved=reserved, utc_seconds=1700000000.0)
        assert of_it == tuple(each for each in among_all if each.event.pod.name == name)


def test_a_grant_that_was_published_is_not_said_again(log: GrantLog) -> None:
    log.observe(granted())
    assert said(log, [bound()]) == []
    log.observe(AllocationSucceeded(pod=a_ref(), node="n1"))
    assert said(log, [bound()]) == []


def test_a_pod_that_has_ended_or_waits_needs_no_grant(log: GrantLog) -> None:
    assert said(log, [bound("p2", status="Succeeded"), a_pod("p3", gpu=1)]) == []


def test_a_pod_that_was_served_while_the_bus_was_away_is_granted_all_the_same(log: GrantLog) -> None:
    assert said(log, [bound(phase="success")]) == FROM_THE_START
    log.observe(AllocationSucceeded(pod=a_ref(), node="n1"))
    assert said(log, [bound(phase="success")]) == FROM_THE_START


def test_and_where_its_assignment_was_heard_that_is_not_said_again(log: GrantLog) -> None:
    log.observe(assigned(), "uid-p1/assigned/7")
    log.observe(AllocationSucceeded(pod=a_ref(), node="n1"))
    assert said(log, [bound(phase="success")]) == [GRANT]


def test_a_grant_that_the_log_no_longer_keeps_is_not_said_again(log: GrantLog) -> None:
    assert said(log, [bound(phase="success")], days_later=8) == []
    assert said(log, [bound()], days_later=8) == FROM_THE_START


def test_grants_are_said_in_the_order_of_binding(log: GrantLog) -> None:
    pods = [bound("p1", time="3"), bound("p2", time="1"), bound("p3", time="2"), bound("p4", time="rubbish")]
    assert [event_id for kind, event_id in said(log, pods) if kind == "PodAllocating"] == [
        "uid-p4/allocating/0",
        "uid-p2/allocating/1",
        "uid-p3/allocating/2",
        "uid-p1/allocating/3",
    ]


def test_a_reservation_of_before_the_restart_has_lapsed(log: GrantLog) -> None:
    log.observe(assigned(), "uid-p1/assigned/17")
    missing = log.missing([a_pod(gpu=1)], reserved=[], utc_seconds=1700000000)
    assert [each.event for each in missing] == [AssignmentLapsed(pod=a_ref(), node="n1", reason=RESTARTED)]
    assert [each.event_id for each in missing] == ["uid-p1/lapsed/17"]
    assert said(log, [a_pod(gpu=1)], reserved=["uid-p1"]) == []


def test_a_pod_that_ended_meanwhile_is_released(log: GrantLog) -> None:
    log.observe(granted("p1"))
    log.observe(granted("p2"))
    assert said(log, [bound("p2", status="Failed")]) == [("PodReleased", "uid-p1/released"), ("PodReleased", "uid-p2/released")]


def test_what_was_released_or_lapsed_needs_no_word(log: GrantLog) -> None:
    log.observe(granted("p1"))
    log.observe(PodReleased(pod=a_ref("p1"), node="n1"))
    log.observe(assigned("p2"))
    log.observe(AssignmentLapsed(pod=a_ref("p2"), node="n1", reason="not bound in time"))
    assert said(log, []) == []
    assert not log.holds("uid-p1")


def test_a_late_lapse_of_another_node_takes_no_grant_back(log: GrantLog) -> None:
    log.observe(assigned(node="n2"))
    log.observe(AssignmentLapsed(pod=a_ref(), node="n1", reason="the pod goes to n2 instead"))
    assert log.holds("uid-p1")
    log.observe(granted(node="n2"))
    log.observe(AssignmentLapsed(pod=a_ref(), node="n2", reason="late"))
    assert log.holds("uid-p1")


def test_a_record_that_cannot_be_read_is_not_granted(log: GrantLog) -> None:
    pod = a_pod(gpu=1, node_name="n1", annotations={"hami.io/vgpu-devices-allocated": "rubbish", keys.BIND_PHASE: "allocating"})
    assert said(log, [pod]) == []


def test_an_outcome_that_comes_behind_the_release_grants_nothing(log: GrantLog) -> None:
    log.observe(granted())
    log.observe(PodReleased(pod=a_ref(), node="n1"))
    log.observe(AllocationFailed(pod=a_ref(), node="n1", reason=""))
    assert not log.holds("uid-p1")
    assert said(log, []) == []


@pytest.mark.parametrize("outcome", [AllocationSucceeded, AllocationFailed, PodReleased])
def test_an_outcome_from_another_node_than_the_pods_changes_nothing(log: GrantLog, outcome: type[AllocationSucceeded]) -> None:
    log.observe(assigned())
    log.observe(granted())
    log.observe(msgspec.convert({"type": outcome.__struct_config__.tag, "pod": a_ref(), "node": "n2", "reason": ""}, outcome))
    assert log.holds("uid-p1")
    assert said(log, [bound()]) == []


def test_a_release_that_another_node_reports_before_the_pod_is_known_ends_no_story(log: GrantLog) -> None:
    log.observe(PodReleased(pod=a_ref(), node="n2"))
    assert said(log, [bound()]) == FROM_THE_START
    log.observe(assigned())
    assert log.holds("uid-p1")


def test_after_a_loss_an_assignment_whose_release_was_lost_lapses(log: GrantLog) -> None:
    log.observe(assigned())
    log.observe(granted())
    log.observe(PodReleased(pod=a_ref(), node="n1"))
    log.forget_all()
    log.observe(assigned())
    assert [kind for kind, _ in said(log, [])] == ["AssignmentLapsed"]


def test_of_a_pod_that_is_gone_and_that_only_an_outcome_names_no_release_is_said(log: GrantLog) -> None:
    """Another pod of its name has the last word on its grant subject: its release is further back there, or it was never granted."""
    log.observe(AllocationSucceeded(pod=a_ref(), node="n2"))
    assert said(log, []) == []

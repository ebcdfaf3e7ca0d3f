"""Who may take a node that works in envvar mode."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hami_protocol import keys
from hami_protocol.kubernetes import ContainerState, ContainerStatus, Pod, PodStatus
from hami_protocol.nodelock import NodeLock
from hami_scheduler.lock_rules import Holder, Standing, holder_state, judge
from tests.builders import a_pod, a_ref

TIME = datetime(2026, 1, 1, tzinfo=UTC)
OTHERS = NodeLock(time=TIME, namespace="default", pod="other")
OURS = NodeLock(time=TIME, namespace="default", pod="p1")
LEGACY = NodeLock(time=TIME)


@pytest.mark.parametrize(
    ("lock", "unreadable", "holder", "unchanged_seconds", "expected"),
    [
        pytest.param(None, False, Holder.UNKNOWN, 0.0, Standing.FREE, id="no lock"),
        pytest.param(OURS, False, Holder.PENDING, 0.0, Standing.OURS, id="ours already"),
        pytest.param(OTHERS, False, Holder.PENDING, 300.0, Standing.HELD, id="held"),
        pytest.param(OTHERS, False, Holder.PENDING, 300.1, Standing.STALE, id="held and unchanged for too long"),
        pytest.param(OTHERS, False, Holder.UNBOUND, 10.0, Standing.HELD, id="about to be bound"),
        pytest.param(OTHERS, False, Holder.UNBOUND, 10.1, Standing.STALE, id="not bound for longer than a bind takes"),
        pytest.param(OTHERS, False, Holder.DONE, 0.0, Standing.STALE, id="the holder is done"),
        pytest.param(LEGACY, False, Holder.UNKNOWN, 1.0, Standing.HELD, id="legacy, names nobody"),
        pytest.param(LEGACY, False, Holder.UNKNOWN, 301.0, Standing.STALE, id="legacy, unchanged for too long"),
        pytest.param(None, True, Holder.UNKNOWN, 1.0, Standing.HELD, id="unreadable"),
        pytest.param(None, True, Holder.UNKNOWN, 301.0, Standing.STALE, id="unreadable for too long"),
    ],
)
def test_a_node_is_taken_when_it_is_free_or_its_holder_is_done(
    lock: NodeLock | None, unreadable: bool, holder: Holder, unchanged_seconds: float, expected: Standing
) -> None:
    found = judge(lock, unreadable=unreadable, pod=a_ref("p1"), holder=holder, unchanged_seconds=unchanged_seconds, expiry_seconds=300.0)
    assert found is expected


def test_the_time_in_a_lock_decides_nothing() -> None:
    ancient = NodeLock(time=datetime(1999, 1, 1, tzinfo=UTC), namespace="default", pod="other")
    found = judge(ancient, unreadable=False, pod=a_ref("p1"), holder=Holder.PENDING, unchanged_seconds=0.0, expiry_seconds=300.0)
    assert found is Standing.HELD


def holder(phase: str = "Pending", *, node: str = "n1", bind_phase: str = "allocating", **fields: Any) -> Pod:
    pod = a_pod("other", gpu=1, node_name=node, annotations={keys.BIND_PHASE: bind_phase}, **fields)
    return msgspec.structs.replace(pod, status=PodStatus(phase=phase))


def started(pod: Pod) -> Pod:
    running = ContainerStatus(name="prepare", state=ContainerState(running={}))
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, init_container_statuses=(running,)))


@pytest.mark.parametrize(
    ("pod", "uid", "expected"),
    [
        pytest.param(holder(), "", Holder.PENDING, id="waits for its devices"),
        pytest.param(holder(node=""), "", Holder.UNBOUND, id="not bound yet"),
        pytest.param(holder(bind_phase="success"), "", Holder.DONE, id="has its devices"),
        pytest.param(holder(bind_phase="failed"), "", Holder.DONE, id="will not get them"),
        pytest.param(started(holder()), "", Holder.DONE, id="a container of it has started, so it has its devices"),
        pytest.param(holder("Failed"), "", Holder.DONE, id="failed before Allocate"),
        pytest.param(holder("Succeeded"), "", Holder.DONE, id="has ended"),
        pytest.param(holder(node="n2"), "", Holder.DONE, id="on another node"),
        pytest.param(None, "", Holder.DONE, id="gone"),
        pytest.param(holder(uid="u2"), "u1", Holder.DONE, id="a namesake"),
        pytest.param(holder(uid="u1"), "u1", Holder.PENDING, id="the very pod"),
    ],
)
def test_a_holder_is_done_when_it_needs_the_node_no_longer(pod: Pod | None, uid: str, expected: Holder) -> None:
    assert holder_state(pod, "n1", uid=uid) is expected

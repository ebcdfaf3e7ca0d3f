"""Who is tried when: order, back-off, what wakes a refused pod."""

from __future__ import annotations

import msgspec

from hami_rig.scheduler.objects import SchedulingPod
from hami_rig.scheduler.queue import SchedulingQueue, Wake


def a_pod(name: str, priority: int = 0) -> SchedulingPod:
    body = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"priority": priority}}
    return msgspec.convert(body, SchedulingPod)


def popped(queue: SchedulingQueue, now: float) -> str | None:
    pod = queue.pop(now)
    return pod.metadata.name if pod else None


def test_priority_comes_first_then_arrival() -> None:
    queue = SchedulingQueue()
    for name, priority in (("first", 0), ("second", 0), ("high", 10)):
        queue.add(a_pod(name, priority), 0.0)
    assert [popped(queue, 0.0) for _ in range(4)] == ["high", "first", "second", None]


def test_a_refused_pod_waits_until_something_changes_or_five_minutes_have_passed() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod("a"), 0.0)
    popped(queue, 0.0)
    queue.refused("a", 0.0, by_extender=True)
    assert popped(queue, 299.0) is None
    assert queue.next_due(299.0) == 1.0
    assert popped(queue, 300.0) == "a"
    queue.refused("a", 300.0, by_extender=True)
    queue.wake(Wake.POD, 301.0)
    assert popped(queue, 301.0) == "a"


def test_an_event_during_the_call_is_not_lost() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod("a"), 0.0)
    popped(queue, 0.0)
    queue.wake(Wake.RELEASE, 0.1)
    queue.refused("a", 0.2, by_extender=True)
    assert popped(queue, 0.3) == "a", "an idle scheduler does not wait out the back-off of a refusal"
    queue.refused("a", 0.4, by_extender=True)
    assert popped(queue, 0.5) is None


def test_an_error_is_tried_again_by_itself_once_the_second_is_over_in_which_its_back_off_ends() -> None:
    queue = SchedulingQueue(initial_backoff_seconds=1.0, max_backoff_seconds=3.0)
    queue.add(a_pod("a"), 0.0)
    now, tries = 0.0, []
    for _ in range(4):
        assert popped(queue, now) == "a"
        queue.failed("a", now)
        assert popped(queue, now + 0.9) is None
        queue.wake(Wake.NODE, now)
        assert popped(queue, now + 0.9) is None, "nothing shortens it"
        tries.append(queue.next_due(now))
        now += tries[-1] or 0.0
    assert tries == [2.0, 3.0, 4.0, 4.0]


def test_a_pod_that_only_own_filters_refused_is_woken_by_what_makes_room() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod("a"), 0.0)
    popped(queue, 0.0)
    queue.refused("a", 0.0, by_extender=False)
    queue.wake(Wake.POD, 1.0)
    assert popped(queue, 1.0) is None
    queue.wake(Wake.RELEASE, 1.0)
    assert popped(queue, 1.0) == "a"


def test_a_busy_scheduler_lets_ready_pods_go_before_those_that_back_off() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod("refused", priority=5), 0.0)
    popped(queue, 0.0)
    queue.wake(Wake.POD, 0.0)
    queue.refused("refused", 0.0, by_extender=True)
    queue.add(a_pod("new"), 0.1)
    assert [popped(queue, 0.2), popped(queue, 0.2)] == ["new", "refused"]


def test_its_own_change_wakes_a_pod_and_a_change_of_nothing_does_not() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod("a"), 0.0)
    popped(queue, 0.0)
    queue.refused("a", 0.0, by_extender=True)
    queue.update(a_pod("a"), 2.0, wakes=False)
    assert popped(queue, 2.0) is None
    queue.update(a_pod("a"), 2.0, wakes=True)
    assert popped(queue, 2.0) == "a"
    queue.remove("a")
    assert queue.next_due(2.0) is None

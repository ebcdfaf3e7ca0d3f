"""Which refused pods are worth another try."""

import itertools

import pytest

from hami_devices.catalog import Catalog
from hami_protocol.devices import PodRef
from hami_scheduler.placement import ClusterState, Placement
from hami_scheduler.waking import LONGEST_GAP_SECONDS, SETTLE_SECONDS, Waking
from tests.builders import a_device, a_ref, a_request

WHOLE = a_request(memory_percent=100)
SMALL = a_request(memory_mib=1000)


class World:
    def __init__(self) -> None:
        self.state = ClusterState(Catalog())
        self.waking = Waking(self.state, lambda pod, request, names: self.state.judge(request, names, uid=pod.uid))
        self.now = 100.0
        for node in ("n1", "n2"):
            self.state.upsert_node(node, {"NVIDIA": (a_device(f"GPU-{node}"),)})
            self.fill(a_ref(f"full-{node}"), node)

    def fill(self, pod: PodRef, node: str) -> None:
        found = self.state.judge(WHOLE, [node], uid=pod.uid)
        assert isinstance(found, Placement)
        self.state.reserve(pod, found, now=self.now)

    def free(self, node: str) -> None:
        self.state.release(f"uid-full-{node}")
        self.waking.improved(frozenset({node}), now=self.now)

    def refuse(self, name: str, priority: int = 0) -> None:
        request = a_request(memory_percent=100, priority=priority)
        self.waking.refused(a_ref(name), request, now=self.now)

    def due(self, *, after: float = SETTLE_SECONDS) -> list[str]:
        self.now += after
        woken = [pod.name for pod in self.waking.due(now=self.now)]
        self.state.validate()
        return woken


@pytest.fixture
def world() -> World:
    return World()


def test_a_pod_refused_before_a_release_is_woken_by_it(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    assert world.due() == ["p1"]
    assert world.due(after=10.0) == []


def test_a_pod_refused_after_a_release_has_seen_it(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    world.refuse("p1")
    assert world.due() == []


def test_kube_schedulers_own_retry_is_waited_for(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    assert world.waking.due_seconds() == pytest.approx(world.now + SETTLE_SECONDS)
    assert world.due(after=SETTLE_SECONDS / 2) == []
    assert world.due(after=SETTLE_SECONDS / 2) == ["p1"]
    assert world.waking.due_seconds() is None


def test_a_release_that_does_not_help_wakes_nobody(world: World) -> None:
    world.waking.refused(a_ref("p1"), a_request(count=2, memory_percent=100), now=world.now)
    world.free("n1")
    assert world.due() == []


def test_room_for_one_wakes_one_the_longest_waiting(world: World) -> None:
    for name in ("p1", "p2", "p3"):
        world.refuse(name)
        world.now += 1
    world.free("n1")
    assert world.due() == ["p1"]


def test_room_for_two_wakes_two(world: World) -> None:
    for name in ("p1", "p2", "p3"):
        world.refuse(name)
    world.free("n1")
    world.free("n2")
    assert world.due() == ["p1", "p2"]


def test_the_highest_priority_goes_first(world: World) -> None:
    world.refuse("p1")
    world.refuse("p2", priority=1)
    world.free("n1")
    assert world.due() == ["p2"]


def test_a_pod_that_is_placed_or_gone_is_not_woken(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    world.waking.forget("uid-p1")
    assert world.due() == []


def test_wakings_of_a_pod_that_is_refused_every_time_stand_ever_further_apart(world: World) -> None:
    """Its nodes are closed to it for a reason that only kube-scheduler knows: no hot loop."""
    world.state.release("uid-full-n1")
    times = []
    for _ in range(2000):
        world.refuse("p1")
        world.waking.improved(frozenset({"n1"}), now=world.now)
        if world.due(after=0.2):
            times.append(world.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] >= 1.0
    assert all(later >= earlier - 0.3 for earlier, later in itertools.pairwise(gaps))
    assert LONGEST_GAP_SECONDS <= gaps[-1] < LONGEST_GAP_SECONDS + 1
    assert len(times) < 15


def test_a_pod_woken_too_recently_is_looked_at_again_when_its_gap_is_over(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    assert world.due() == ["p1"]
    world.fill(a_ref("thief"), "n1")
    world.refuse("p1")
    world.state.release("uid-thief")
    world.waking.improved(frozenset({"n1"}), now=world.now)
    assert world.due() == []
    assert world.due(after=1.0) == ["p1"]


def test_a_waking_that_failed_is_tried_again(world: World) -> None:
    world.refuse("p1")
    world.free("n1")
    assert world.due() == ["p1"]
    world.waking.not_woken("uid-p1", now=world.now)
    assert world.due(after=1.0) == ["p1"]


def test_improvements_before_anybody_waits_are_forgotten(world: World) -> None:
    world.free("n1")
    world.refuse("p1")
    assert world.waking.due_seconds() is None

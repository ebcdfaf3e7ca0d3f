"""What went well is told in bursts only so far; what went wrong always."""

import random

from hami_protocol.devices import PodRef
from hami_runtime.clock import SystemClock
from hami_runtime.kube.events import NORMAL_BURST, NORMAL_PER_SECOND, Allowance, EventRecorder
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore


def test_a_burst_is_told_and_then_so_many_a_second() -> None:
    allowance = Allowance()
    assert sum(allowance.take(100.0) for _ in range(NORMAL_BURST + 10)) == NORMAL_BURST
    assert sum(allowance.take(102.0) for _ in range(100)) == 2 * NORMAL_PER_SECOND


def test_it_never_saves_more_than_a_burst() -> None:
    allowance = Allowance()
    allowance.take(0.0)
    assert sum(allowance.take(1e6) for _ in range(1000)) == NORMAL_BURST


def test_warnings_are_recorded_however_many_there_are() -> None:
    clock = SystemClock()
    recorder = EventRecorder(MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1))), clock, "hami-test")
    for number in range(2 * NORMAL_BURST):
        pod = PodRef(namespace="default", name=f"p{number}", uid=f"u{number}")
        recorder.record(pod, "Normal", "BindingSucceed", "bound")
        recorder.record(pod, "Warning", "FilteringFailed", "no card has room")
    assert 3 * NORMAL_BURST <= recorder.pending < 4 * NORMAL_BURST

"""Whom kube-scheduler would evict: nobody where only the extender refused, and else as few as will do."""

from __future__ import annotations

import msgspec
import pytest

from hami_protocol import kubernetes as k
from hami_rig.scheduler import fit, preemption
from hami_rig.scheduler.objects import SchedulingPod
from hami_rig.scheduler.preemption import Candidates, PreemptionError


def a_pod(name: str, cpu: str, priority: int = 0) -> SchedulingPod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    body = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"priority": priority, "containers": [container]}}
    return msgspec.convert(body, SchedulingPod)


def nodes(**cpu: str) -> dict[str, k.Node]:
    bodies = {name: {"metadata": {"name": name}, "status": {"allocatable": {"cpu": amount, "pods": "10"}}} for name, amount in cpu.items()}
    return {name: msgspec.convert(body, k.Node) for name, body in bodies.items()}


def tried(pod: SchedulingPod, has: dict[str, k.Node], there: dict[str, list[SchedulingPod]], hopeless: tuple[str, ...] = ()) -> Candidates:
    return preemption.candidates(pod, fit.pod_requests(pod), has, there, hopeless, ignored=frozenset())


def names(found: Candidates) -> dict[str, list[str]]:
    return {node: [pod.metadata.name for pod in pods] for node, pods in found.victims.items()}


def test_as_many_as_still_fit_are_spared_the_more_important_first() -> None:
    there = {"m1": [a_pod("low", "2", 1), a_pod("mid", "2", 5), a_pod("equal", "1", 10)]}
    assert names(tried(a_pod("high", "2", 10), nodes(m1="5"), there)) == {"m1": ["low"]}


def test_a_node_that_needs_no_victim_ends_the_whole_attempt() -> None:
    with pytest.raises(PreemptionError, match=r'^expected at least one victim pod on node "m1"$'):
        tried(a_pod("high", "1", 10), nodes(m1="5"), {"m1": [a_pod("low", "2")]})


def test_every_other_node_says_why_it_is_none() -> None:
    there = {"full": [a_pod("peer", "4", 10)], "small": [a_pod("low", "1")]}
    found = tried(a_pod("high", "2", 10), nodes(full="4", small="1", out="9"), there, hopeless=("out",))
    assert found.victims == {}
    assert found.reasons == {
        "full": "No preemption victims found for incoming pod",
        "small": "Insufficient cpu",
        "out": "Preemption is not helpful for scheduling",
    }


def test_the_least_harm_is_chosen() -> None:
    victims = {"a": (a_pod("x", "1", 5),), "b": (a_pod("y", "1", 1), a_pod("z", "1", 1)), "c": (a_pod("w", "1", 1),)}
    assert preemption.least_harm(victims) == "c"

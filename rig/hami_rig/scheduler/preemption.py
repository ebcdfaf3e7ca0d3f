"""Whom kube-scheduler would evict for a pod: its own filters only, the smallest harm, one node. Pure.

A node that fits without any eviction (because only the extender refused it) is an error here, as it is there: so a refusal by the extender
alone never evicts anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hami_protocol import kubernetes as k
from hami_rig.scheduler import fit
from hami_rig.scheduler.objects import SchedulingPod

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NO_CANDIDATE = "no candidate node for preemption"


class PreemptionError(Exception):
    """Preemption gave up; the text goes into the pod's condition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidates:
    """Victims by node, and why every other node is none."""

    victims: Mapping[str, tuple[SchedulingPod, ...]]
    reasons: Mapping[str, str]


def priority(pod: SchedulingPod) -> int:
    """The pod's priority, 0 where it has none."""
    return pod.spec.priority or 0


def candidates(
    pod: SchedulingPod,
    requests: Mapping[str, Fraction],
    nodes: Mapping[str, k.Node],
    pods_by_node: Mapping[str, Sequence[SchedulingPod]],
    unresolvable: Iterable[str],
    *,
    ignored: frozenset[str],
) -> Candidates:
    """Try each node that an eviction could help, without its pods of lower priority, and give back as many of them as still fit.

    Raises:
        PreemptionError: a node needs no victim at all.
    """
    hopeless = frozenset(unresolvable)
    victims: dict[str, tuple[SchedulingPod, ...]] = {}
    reasons: dict[str, str] = {}
    for name, node in nodes.items():
        if name in hopeless:
            reasons[name] = NOT_HELPFUL
            continue
        present = pods_by_node.get(name, ())
        lower = [each for each in present if priority(each) < priority(pod)]
        if not lower:
            reasons[name] = NO_VICTIMS
            continue
        load = fit.load_of(each for each in present if priority(each) >= priority(pod))
        if blocked := fit.misfit(pod, requests, node, load, ignored=ignored):
            reasons[name] = ", ".join(blocked.reasons)
            continue
        chosen = []
        for each in sorted(lower, key=_importance):
            own = fit.pod_requests(each)
            load.add(own)
            if fit.misfit(pod, requests, node, load, ignored=ignored):
                load.add(own, -1)
                chosen.append(each)
        if not chosen:
            raise PreemptionError(f'expected at least one victim pod on node "{name}"')
        victims[name] = tuple(chosen)
    return Candidates(victims=victims, reasons=reasons)


def least_harm(victims: Mapping[str, tuple[SchedulingPod, ...]]) -> str:
    """The node whose victims matter least: lowest top priority, lowest sum of priorities, fewest, then its name."""
    return min(victims, key=lambda name: (*_harm(victims[name]), name))


def _harm(pods: Sequence[SchedulingPod]) -> tuple[int, int, int]:
    priorities = [priority(each) for each in pods]
    return max(priorities, default=0), sum(value + 2**31 for value in priorities), len(pods)


def _importance(pod: SchedulingPod) -> tuple[int, str, str]:
    return -priority(pod), pod.metadata.creation_timestamp or "", pod.metadata.uid

"""Whether kubelet lets a pod in that was bound to its node, by what the node has. Pure.

As kubelet does it: an extended resource that the node does not list at all is not looked at, one that it lists with too little is
``OutOf<resource>``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hami_protocol import kubernetes as k
from hami_rig.scheduler import fit
from hami_rig.scheduler.objects import SchedulingPod


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why a pod is not let in: it goes to Failed with these and is never tried again."""

    reason: str
    message: str


def out_of(pod: SchedulingPod, node: k.Node, present: Iterable[SchedulingPod]) -> Rejection | None:
    """Whether the node is out of something that the pod asks, beside the pods that are ``present``."""
    listed = node.status.allocatable or {}
    requests = {name: amount for name, amount in fit.pod_requests(pod).items() if "/" not in name or name in listed}
    blocked = fit.misfit(pod, requests, node, fit.load_of(present))
    if blocked is None or blocked.reasons in ((fit.UNSCHEDULABLE,), (fit.TAINTED,)):
        return None
    first = blocked.reasons[0]
    if first == fit.NOT_SELECTED:
        return Rejection(
            reason="NodeAffinity",
            message="Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        )
    resource = "pods" if first == fit.TOO_MANY_PODS else first.removeprefix("Insufficient ")
    asked = requests.get(resource, 1)
    return Rejection(
        reason=f"OutOf{resource}",
        message=f"Pod was rejected: Node didn't have enough resource: {resource}, requested: {asked}, capacity: {listed.get(resource, 0)}",
    )


def unexpected(problem: str) -> Rejection:
    """A device plugin, or the want of one, stood in the way."""
    return Rejection(reason="UnexpectedAdmissionError", message=f"Pod was rejected: Allocate failed due to {problem}, which is unexpected")

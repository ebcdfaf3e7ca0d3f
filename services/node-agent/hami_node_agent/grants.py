"""Is what kubelet gave, what the pod's annotation says and what the scheduler granted one and the same? Pure.

The agent grants only what the scheduler recorded. With the bus up, the grant event, which only the scheduler's credentials can publish,
must be there and must equal the annotation; an annotation that a tenant wrote is no grant. With the bus down, the annotation alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerShares, PodRef, VendorAssignment


def agreed(
    pod: PodRef, annotated: VendorAssignment | None, granted: VendorAssignment | None, *, event_required: bool
) -> VendorAssignment | Refusal:
    """What the pod may be served from: ``annotated``, where nothing speaks against it.

    Args:
        pod: whose they are.
        annotated: from the pod's annotation, None where it has none.
        granted: from the scheduler's event, None where there is none.
        event_required: whether an event must be there (the bus is up, our scheduler is in charge, and the pod was not served before).
    """
    if annotated is None:
        return Refusal(kind=RefusalKind.NO_GRANT, reason=f"{pod} has no assignment annotation", pod=pod)
    if granted is None:
        if not event_required:
            return annotated
        return Refusal(kind=RefusalKind.NO_GRANT, reason=f"the scheduler has published no grant for {pod} (uid {pod.uid})", pod=pod)
    difference = _difference(annotated, granted)
    if difference:
        return Refusal(kind=RefusalKind.GRANT_DIFFERS, reason=f"{pod}: {difference}", pod=pod)
    return annotated


def _difference(annotated: VendorAssignment, granted: VendorAssignment) -> str:
    theirs = {container.container: container.shares for container in granted.containers if container.shares}
    ours = {container.container: container.shares for container in annotated.containers if container.shares}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return (
                f"container {name} has {_shown(ours.get(name))} by its annotation, {_shown(theirs.get(name))} by the scheduler's grant; "
                "the annotation was changed by somebody else"
            )
    return ""


def counted(pod: PodRef, assignment: VendorAssignment, given: Mapping[str, int]) -> Refusal | None:
    """None where kubelet gave every container as many device ids as it was granted slots. ``given`` is by container."""
    granted = {container.container: slots(container) for container in assignment.containers if container.shares}
    for name in sorted(granted.keys() | given.keys()):
        if granted.get(name, 0) != given.get(name, 0):
            return Refusal(
                kind=RefusalKind.COUNT_DIFFERS,
                reason=f"kubelet gave container {name} of {pod} {given.get(name, 0)} devices, its grant has {granted.get(name, 0)}",
                pod=pod,
            )
    return None


def slots(container: ContainerShares) -> int:
    """How many device ids kubelet gives for what a container was granted."""
    return sum(share.slots for share in container.shares)


def _shown(shares: object) -> str:
    if not isinstance(shares, tuple):
        return "nothing"
    return ", ".join(f"{share.uuid} ({share.memory_mib} MiB, {share.cores} %)" for share in shares)

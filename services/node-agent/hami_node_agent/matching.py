"""``envvar`` mode: which pod is this Allocate call for? Kubelet names device ids only. Pure.

Candidates are the pods bound to this node that have a grant and a container still to be served. The node lock, where it names one of them,
decides. Without it a call is matched only where all candidates that fit are *twins*, pods whose grants are equal from first to last
container: then it does not matter which of them it was (and PreStartContainer settles it). Anything else is refused, never guessed.

Invariants: a container is never served twice; a pod that is done, ended or unreadable is never a candidate; the answer does not depend on
the order in which candidates are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami_node_agent.grants import slots
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.nodelock import NodeLock


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPod:
    """A pod of this node that is not fully served."""

    pod: PodRef
    bind_time_seconds: int
    assignment: VendorAssignment
    served: frozenset[int] = frozenset()
    """Places of containers that have their devices."""

    @property
    def next_place(self) -> int | None:
        """Place of the container that kubelet asks for next: it goes through them in order."""
        for place, container in enumerate(self.assignment.containers):
            if container.shares and place not in self.served:
                return place
        return None

    @property
    def grants(self) -> tuple[tuple[DeviceShare, ...], ...]:
        """What its containers hold, in order, whatever their names."""
        return tuple(container.shares for container in self.assignment.containers if container.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """The container that a call is for."""

    pod: PendingPod
    place: int

    @property
    def container(self) -> ContainerShares:
        """What it was granted."""
        return self.pod.assignment.containers[self.place]


def match(pending: Iterable[PendingPod], lock: NodeLock | None, count: int) -> Match | Refusal:
    """Find the container that a call for ``count`` devices is for.

    Args:
        pending: pods of this node, served ones too.
        lock: the node's lock; None where there is none, or where nobody could read it.
        count: how many device ids kubelet named.
    """
    if count < 1:
        return Refusal(kind=RefusalKind.EMPTY_REQUEST, reason="kubelet named no device id")
    waiting = [pod for pod in pending if pod.next_place is not None]
    if (holder := _holder(waiting, lock)) is not None:
        return _next_of(holder, count)
    fitting = [pod for pod in waiting if _next_count(pod) == count]
    if not fitting:
        others = f"; waiting: {_listed(waiting)}" if waiting else ""
        return Refusal(
            kind=RefusalKind.UNKNOWN_POD, reason=f"no pod on this node waits for a container with {count} granted devices{others}"
        )
    if any(pod.grants != fitting[0].grants for pod in fitting):
        return Refusal(
            kind=RefusalKind.AMBIGUOUS,
            reason=f"{count} devices could be for any of {_listed(fitting)}, whose grants differ, and the node lock names none of them",
        )
    return _next_of(min(fitting, key=_turn), count)


def likely(pending: Iterable[PendingPod], count: int) -> Match | None:
    """The container that a call for ``count`` devices is most likely for, where nothing says which: good enough for a preference, for no more."""
    fitting = [pod for pod in pending if pod.next_place is not None and _next_count(pod) == count]
    found = _next_of(min(fitting, key=_turn), count) if fitting else None
    return found if isinstance(found, Match) else None


def _holder(waiting: Sequence[PendingPod], lock: NodeLock | None) -> PendingPod | None:
    """The waiting pod that the lock names. A lock of a pod that is gone or done is no lock: its holder releases it."""
    if lock is None or not lock.pod:
        return None
    named = [pod for pod in waiting if pod.pod.name == lock.pod and pod.pod.namespace == lock.namespace]
    return max(named, key=_turn) if named else None  # two namesakes: the older one is being deleted


def _next_of(pod: PendingPod, count: int) -> Match | Refusal:
    place = pod.next_place
    if place is None:  # pragma: no cover - callers pass waiting pods only
        raise ValueError(f"{pod.pod} waits for nothing")
    found = Match(pod=pod, place=place)
    if slots(found.container) != count:
        return Refusal(
            kind=RefusalKind.COUNT_DIFFERS,
            reason=f"kubelet asks for {count} devices; container {found.container.container} of {pod.pod} was granted "
            f"{slots(found.container)}",
            pod=pod.pod,
        )
    return found


def _next_count(pod: PendingPod) -> int:
    place = pod.next_place
    return 0 if place is None else slots(pod.assignment.containers[place])


def _turn(pod: PendingPod) -> tuple[int, int, str]:
    """Kubelet goes pod by pod, so one that has begun goes on; then the oldest binding."""
    return (-len(pod.served), pod.bind_time_seconds, pod.pod.uid)


def _listed(pods: Iterable[PendingPod]) -> str:
    return ", ".join(sorted(f"{pod.pod} ({_next_count(pod)})" for pod in pods))

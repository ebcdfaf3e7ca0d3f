"""Whether a pod may take a node that works in ``envvar`` mode, from the lock's text and what is known of its holder. Pure.

The time in a lock is never compared with a clock: it may be another machine's. What counts is for how long we have seen the same value.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from hami_protocol import keys, nodelock
from hami_protocol.devices import PodRef
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.nodelock import NodeLock
from hami_protocol.pods import is_terminal

DONE_PHASES: Final = frozenset({"success", "failed"})
UNBOUND_SECONDS: Final = 10.0


class Holder(StrEnum):
    """What is known of the pod that a lock names."""

    PENDING = "pending"
    """It is being bound here, or is bound and waits for its devices: the lock is in force."""
    UNBOUND = "unbound"
    """It is not bound, and not being bound here: another scheduler is about to bind it, or whoever was has died."""
    DONE = "done"
    """It has its devices, or will not get them; or it has ended, is on another node, or is gone."""
    UNKNOWN = "unknown"
    """The lock names nobody, or cannot be read."""


class Standing(StrEnum):
    """What a pod that wants the node finds."""

    FREE = "free"
    OURS = "ours"
    HELD = "held"
    STALE = "stale"
    """Written over by compare-and-set."""


def judge(
    lock: NodeLock | None, *, unreadable: bool, pod: PodRef, holder: Holder, unchanged_seconds: float, expiry_seconds: float
) -> Standing:
    """Whether ``pod`` may take a node.

    Args:
        lock: what the node's annotation says, None where it has none or an unreadable one.
        unreadable: the annotation is there but is no lock; it is treated as one that names nobody.
        pod: who wants it.
        holder: what is known of the pod that ``lock`` names.
        unchanged_seconds: for how long this process has seen exactly this value; the time written in it is never compared with a clock.
        expiry_seconds: after so long, a lock is taken over from whoever holds it; from a pod that is not bound, after 10 s.
    """
    if lock is None and not unreadable:
        return Standing.FREE
    if lock is not None and (lock.namespace, lock.pod) == (pod.namespace, pod.name):
        return Standing.OURS
    if holder is Holder.DONE or unchanged_seconds > patience_seconds(holder, expiry_seconds):
        return Standing.STALE
    return Standing.HELD


def patience_seconds(holder: Holder, expiry_seconds: float) -> float:
    """For how long a lock that does not change is respected. From the lock to the Binding is a matter of milliseconds."""
    return min(UNBOUND_SECONDS, expiry_seconds) if holder is Holder.UNBOUND else expiry_seconds


def holder_state(pod: Pod | None, node: str, *, uid: str = "") -> Holder:
    """What ``pod``, as the cluster has it now, says about a lock on ``node`` that names it. ``uid`` is the holder's where it is known."""
    if pod is None or is_terminal(pod) or (uid and pod.metadata.uid != uid):
        return Holder.DONE
    if pod.spec.node_name and pod.spec.node_name != node:
        return Holder.DONE
    if pod.metadata.annotations.get(keys.BIND_PHASE) in DONE_PHASES or _started(pod):
        return Holder.DONE
    return Holder.PENDING if pod.spec.node_name else Holder.UNBOUND


def read(text: str) -> tuple[NodeLock | None, bool]:
    """The lock that a node's annotation is, and whether it is there but is none."""
    if not text:
        return None, False
    try:
        return nodelock.decode(text), False
    except RecordError:
        return None, True


def _started(pod: Pod) -> bool:
    """Whether a container of the pod has run: kubelet asks for the devices of all its containers before it starts the first.

    So a lock is released too where a vendor's device plugin does not say that it has served the pod.
    """
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    return any(each.state is not None and (each.state.running is not None or each.state.terminated is not None) for each in statuses)

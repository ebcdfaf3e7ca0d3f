"""Whether this agent serves new pods, and why not: what its reports say and what it answers the scheduler. Decides; no I/O.

Pods that are bound to a node whose agent kubelet does not watch fail for good, so the scheduler has to know at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hami_devices.vendor import Vendor
from hami_node_agent.bell import Bell
from hami_node_agent.checkpoint import Checkpoint, Unreadable
from hami_node_agent.node_pods import NodePods, annotated
from hami_protocol import keys
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal
from hami_runtime.clock import Clock

MAX_CHARACTERS: Final = 256
STOPPING: Final = "its agent is about to stop"
UNWATCHED: Final = "kubelet does not watch the devices of its agent"
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
_REJECTED: Final = "UnexpectedAdmissionError"


class Serving:
    """The agent's own state, as others must know it."""

    def __init__(self, not_ready: Callable[[], str | None]) -> None:
        self._not_ready = not_ready
        self._streams: int | None = None
        self._stopping = False
        self.changed = Bell()

    @property
    def not_serving(self) -> str:
        """Why no new pods are served now; empty where they are."""
        if self._stopping:
            return STOPPING
        if (lacking := self._not_ready()) is not None:
            return lacking[:MAX_CHARACTERS]
        return UNWATCHED if self._streams == 0 else ""

    def watched(self, streams: int) -> None:
        """Kubelet has so many streams of our devices open. Without a word of it they are taken for watched."""
        before, self._streams = self.not_serving, streams
        if self.not_serving != before:
            self.changed.ring()

    def stop(self) -> None:
        """The agent is about to stop."""
        self._stopping = True
        self.changed.ring()


def unadmitted(pods: NodePods, vendor: Vendor, node: str, known: Checkpoint | Unreadable) -> list[Pod]:
    """Pods bound to ``node`` whose containers kubelet has not allocated all devices for; none where its checkpoint cannot be read."""
    if isinstance(known, Unreadable):
        return []
    allocated = {(held.pod_uid, held.container) for held in known.held if held.resource == vendor.count_resource}
    return [pod for pod in pods.live.values() if _waits(pod, node) and not _containers(pod, vendor) <= allocated]


def _waits(pod: Pod, node: str) -> bool:
    annotations = pod.metadata.annotations
    allocating = annotations.get(keys.ASSIGNED_NODE) == node and annotations.get(keys.BIND_PHASE) == "allocating"
    return allocating and pod.status.phase in {"", "Pending"} and pod.metadata.deletion_timestamp is None


def _containers(pod: Pod, vendor: Vendor) -> set[tuple[str, str]]:
    """The pod's containers that hold devices, as the checkpoint names them."""
    try:
        held = annotated(pod, vendor)
    except RecordError:
        return set()
    return {(pod.metadata.uid, one.container) for one in held.containers if one.shares} if held is not None else set()


class Rejections:
    """Pods of this node that kubelet rejected: the scheduler holds the node until the agent reports anew.

    The first report comes at once. While kubelet goes on rejecting and no pod starts, each is later than the one before.
    """

    def __init__(self, pods: NodePods, vendor: Vendor, clock: Clock, *, rejected: Callable[[Pod], None]) -> None:
        """``rejected`` is called with each such pod."""
        self._vendor = vendor
        self._rejected = rejected
        self._clock = clock
        self._count = 0
        self.due_at: float | None = None
        """When to report, on the monotonic clock; None where nothing waits for it."""
        self.changed = Bell()
        pods.subscribe(self._pod_changed)

    def reported(self) -> None:
        """A report has been published."""
        self.due_at = None

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or is_terminal(old) or self._vendor.allocated_key not in new.metadata.annotations:
            return
        if new.status.phase == "Running":
            self._count = 0
        elif new.status.phase == "Failed" and new.status.reason == _REJECTED:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._count, 10))
            self._count += 1
            self._rejected(new)
            self.due_at = self._clock.monotonic() + pause
            self.changed.ring()

"""What the log of grants still lacks: compares the last word on the bus with the cluster's own record. Pure.

After a restart, or a change of leader, what could not be published is known only from the pods' annotations. The log is followed by every replica;
whoever begins to lead says what is missing, in the order of binding, with the same event ids as the first time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.events import (
    AllocationEvent,
    AllocationFailed,
    AllocationSucceeded,
    AssignmentLapsed,
    ContainerServed,
    GrantEvent,
    PodAllocating,
    PodAssigned,
    PodReleased,
    ShareResizeApplied,
    ShareResized,
    ShareResizeRefused,
)
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_protocol.subjects import ALLOCATIONS

REMEMBERED_RELEASES = 10_000
RESTARTED = "the scheduler was restarted before the pod was bound"


class Said(Struct, frozen=True, kw_only=True):
    """The last thing that the log says of a pod."""

    pod: PodRef
    node: str
    granted: bool
    """Bound, and not only reserved."""
    announced: bool = False
    """The grant itself has been said, and not only how it went."""
    begun: bool = False
    """The scheduler has said of the pod that it was assigned, or more."""
    attempt: str = ""
    assignments: tuple[VendorAssignment, ...] = ()
    """What it was granted, as last carried out; empty where the log no longer has that."""
    wished: tuple[VendorAssignment, ...] = ()
    """What the last resize asked for."""


class Missing(Struct, frozen=True, kw_only=True):
    """An event that the log lacks."""

    event: GrantEvent
    event_id: str


class GrantLog:
    """By UID, what the log says of pods that hold something."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._said: dict[str, Said] = {}
        self._released: OrderedDict[str, str] = OrderedDict()
        """The node that reported it, where the log had nothing of the pod before; empty where it agrees with what the log had."""

    def observe(self, event: AllocationEvent, event_id: str = "") -> None:
        """Take one event of the log, in its order, or one of ours that is on its way there. Seeing it twice changes nothing."""
        uid = event.pod.uid
        match event:
            case PodAssigned() if self._is_over(uid, event.node) or (uid in self._said and self._said[uid].granted):
                pass  # what is bound is bound, and what is over is over: this word is late
            case PodAssigned():
                self._said[uid] = Said(pod=event.pod, node=event.node, granted=False, begun=True, attempt=event_id.rpartition("/")[2])
            case PodAllocating():
                self._said[uid] = Said(
                    pod=event.pod, node=event.node, granted=True, announced=True, begun=True, assignments=event.assignments
                )
            case (
                ShareResized()
                | ContainerServed()
                | AllocationSucceeded()
                | AllocationFailed()
                | ShareResizeApplied()
                | ShareResizeRefused()
            ):
                if not self._is_over(uid, event.node) and self._counts(event):
                    self._said[uid] = self._granted_on(event)
            case AssignmentLapsed():
                earlier = self._said.get(uid)
                if earlier is not None and not earlier.granted and earlier.node == event.node:
                    del self._said[uid]
            case PodReleased() if self._counts(event):
                known = self._said.pop(uid, None) is not None or not self._released.get(uid, event.node)
                self._released[uid] = "" if known else event.node
                if len(self._released) > REMEMBERED_RELEASES:
                    self._released.popitem(last=False)

    def _is_over(self, uid: str, node: str) -> bool:
        """Whether a pod that is on ``node`` was released. An agent that reports the release of another node's pod changes nothing."""
        return self._released.get(uid, "-") in {"", node}

    def _counts(self, event: AllocationEvent) -> bool:
        """Whether ``event`` can be true: an outcome is not, of a pod that the scheduler has placed on another node than the outcome names."""
        said = self._said.get(event.pod.uid)
        return said is None or said.node == event.node or isinstance(event, ShareResized) or not said.begun

    def _granted_on(self, event: AllocationEvent) -> Said:
        """What the log says of a pod with ``event``, which says at least that it was granted something on that node."""
        said = self._said.get(event.pod.uid)
        if said is None or said.node != event.node:
            said = Said(pod=event.pod, node=event.node, granted=True)
        match event:
            case ShareResized():
                return msgspec.structs.replace(said, granted=True, announced=True, begun=True, wished=event.assignments)
            case ShareResizeApplied():
                return msgspec.structs.replace(said, granted=True, assignments=said.wished or said.assignments)
            case _:
                return msgspec.structs.replace(said, granted=True)

    def assignments(self, uid: str, node: str) -> tuple[VendorAssignment, ...]:
        """What the pod was granted on ``node``, as last carried out; empty where the log does not say."""
        said = self._said.get(uid)
        return said.assignments if said is not None and said.node == node else ()

    def forget_all(self) -> None:
        """The log has lost messages, and is read anew."""
        self._said.clear()
        self._released.clear()

    def granted(self, uid: str) -> bool:
        """Whether the log says that the pod was granted what it holds, and not only that room was reserved."""
        return uid in self._said and self._said[uid].granted

    def begins(self, uid: str) -> bool:
        """Whether the pod's story has its beginning in the log: that it was assigned, or at least granted."""
        return uid in self._said and self._said[uid].begun

    def holds(self, uid: str) -> bool:
        """Whether the log says that the pod holds something, and has not said that it was released."""
        return uid in self._said

    def missing(self, pods: Iterable[Pod], *, reserved: Iterable[str], utc_seconds: float) -> tuple[Missing, ...]:
        """What must be said so that the log agrees with ``pods``, all pods of the cluster.

        Args:
            pods: as the watch shows them.
            reserved: UIDs that this scheduler has reserved room for now.
            utc_seconds: the wall clock, only to tell what the log may have forgotten because of its age.
        """
        events: list[Missing] = []
        by_uid = {pod.metadata.uid: pod for pod in pods}
        kept = set(reserved)
        for uid, said in self._said.items():
            events += self._unsaid_end(said, by_uid.get(uid), kept=uid in kept)
        unsaid = [grant for pod in by_uid.values() if (grant := self._unsaid_grant(pod, utc_seconds)) is not None]
        unsaid.sort(key=lambda grant: (grant.bind_time_seconds, grant.pod.uid))
        return (*events, *(each for grant in unsaid for each in self._from_the_start(grant)))

    def missing_of(self, ref: PodRef, pod: Pod | None, *, reserved: bool, utc_seconds: float) -> tuple[Missing, ...]:
        """What must be said so that the log agrees with one ``pod``; None where the watch shows none with the UID of ``ref``. See ``missing``."""
        said = self._said.get(ref.uid)
        ends = () if said is None else self._unsaid_end(said, pod, kept=reserved)
        grant = None if pod is None else self._unsaid_grant(pod, utc_seconds)
        return (*ends, *(() if grant is None else self._from_the_start(grant)))

    def _unsaid_end(self, said: Said, pod: Pod | None, *, kept: bool) -> tuple[Missing, ...]:
        """That what the log says of ``pod`` is over."""
        if kept if pod is None else (pod.spec.node_name or kept) and not is_terminal(pod):
            return ()  # a pod that is kept and not there is newer than what the watch shows
        if said.granted:
            if (pod is not None and not is_terminal(pod)) or (pod is None and not said.begun):
                return ()  # of one that is gone and that the scheduler's own events do not name, only an agent says that it was there
            return (released(said.pod, said.node, "the pod was deleted" if pod is None else f"the pod is {pod.status.phase}"),)
        lapsed = AssignmentLapsed(pod=said.pod, node=said.node, reason=RESTARTED)
        return (Missing(event=lapsed, event_id=f"{said.pod.uid}/lapsed/{said.attempt}"),)

    def _from_the_start(self, grant: PodAllocating) -> Iterator[Missing]:
        """A grant, and before it the word that it was assigned, where the log has none of the pod: what was said of it died with who said it."""
        if not self.begins(grant.pod.uid) and not self._is_over(grant.pod.uid, grant.node):
            yield assigned(grant)
        yield allocating(grant)

    def _unsaid_grant(self, pod: Pod, utc_seconds: float) -> PodAllocating | None:
        """The grant of a pod of which the log says nothing; not one that the log no longer keeps because it is so old."""
        said = self._said.get(pod.metadata.uid)
        annotations = pod.metadata.annotations
        phase = annotations.get(keys.BIND_PHASE)
        if is_terminal(pod) or not pod.spec.node_name or not phase or (said and said.announced):
            return None
        bind_time = annotations.get(keys.BIND_TIME, "")
        bind_time_seconds = int(bind_time) if bind_time.isascii() and bind_time.isdigit() and len(bind_time) < 12 else 0
        if phase != "allocating" and bind_time_seconds < utc_seconds - ALLOCATIONS.max_age_seconds:
            return None  # it has its devices: served from its annotation while the bus was away, unless it is older than the log
        try:
            assignments = self._catalog.read_assignments(pod)
        except RecordError:
            return None  # its node is fenced for it
        return PodAllocating(pod=pod_ref(pod), node=pod.spec.node_name, assignments=assignments, bind_time_seconds=bind_time_seconds)


def assigned(grant: PodAllocating) -> Missing:
    """What goes before ``grant`` where nobody has said it, with its id."""
    event = PodAssigned(pod=grant.pod, node=grant.node, assignments=grant.assignments)
    return Missing(event=event, event_id=f"{grant.pod.uid}/assigned/{grant.bind_time_seconds}")


def allocating(event: PodAllocating) -> Missing:
    """``event`` with its id."""
    return Missing(event=event, event_id=f"{event.pod.uid}/allocating/{event.bind_time_seconds}")


def released(pod: PodRef, node: str, reason: str) -> Missing:
    """The scheduler's own word that ``pod`` holds nothing any more, with its id."""
    return Missing(event=PodReleased(pod=pod, node=node, reason=reason), event_id=f"{pod.uid}/released")

"""Pods that wait: ready to be tried, backing off, or refused until something changes. Pure: ``now`` is passed in.

::

    add ──▶ active ──pop──▶ in flight ──refused──▶ refused ──wake──▶ backing off ──due──▶ active
                                │                     ▲  └─ after 5 min ─────┘
                                ├──error──▶ backing off (always waits)
                                └──placed──▶ gone

Order: priority first, then how long a pod has been here, then arrival. A wake that comes while the pod is in flight is not lost. A pod that was
only refused does not wait out its back-off while nothing else is ready; one that met an error does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from hami_rig.scheduler.objects import SchedulingPod

REFUSED_AT_MOST_SECONDS = 300.0
FLUSH_EVERY_SECONDS = 30.0
BACKOFF_WINDOW_SECONDS = 1.0


class _Place(StrEnum):
    ACTIVE = "active"
    BACKING_OFF = "backing off"
    REFUSED = "refused"
    IN_FLIGHT = "in flight"


class Wake(StrEnum):
    """What happened in the cluster."""

    RELEASE = "release"
    """A scheduled pod went or finished."""
    POD = "pod"
    """A scheduled pod came, or changed in labels, annotations or status."""
    NODE = "node"
    """A node came, went or changed in what matters."""


@dataclass(slots=True)
class Waiting:
    """One pod in the queue."""

    pod: SchedulingPod
    arrival: int
    attempts: int = 0
    place: _Place = _Place.ACTIVE
    since: float = 0.0
    """When it was last put where it is."""
    ready_at: float = 0.0
    after_error: bool = False
    by_extender: bool = False
    """Whether the last refusal had the extender's word in it: then everything wakes it, else only what makes room."""
    woken: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """Who is tried first."""
        return -(self.pod.spec.priority or 0), self.arrival


@dataclass(slots=True)
class SchedulingQueue:
    """The queue. At most one entry per pod UID."""

    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 10.0
    _entries: dict[str, Waiting] = field(default_factory=dict)
    _arrivals: int = 0

    def add(self, pod: SchedulingPod, now: float) -> None:
        """A new pod, ready at once."""
        self._arrivals += 1
        self._entries[pod.metadata.uid] = Waiting(pod=pod, arrival=self._arrivals, since=now)

    def update(self, pod: SchedulingPod, now: float, *, wakes: bool) -> None:
        """A pod that waits has changed; ``wakes`` says whether in a way that may place it."""
        entry = self._entries.get(pod.metadata.uid)
        if entry is None:
            self.add(pod, now)
            return
        entry.pod = pod
        if wakes:
            self._wake(entry, now)

    def remove(self, uid: str) -> None:
        """A pod is gone, or bound."""
        self._entries.pop(uid, None)

    def wake(self, what: Wake, now: float) -> None:
        """Something changed in the cluster: whoever it may help is tried again."""
        for entry in self._entries.values():
            if entry.by_extender or what is not Wake.POD or entry.place is _Place.IN_FLIGHT:
                self._wake(entry, now)

    def pop(self, now: float) -> SchedulingPod | None:
        """The pod to try now, or None."""
        self._flush(now)
        ready = [entry for entry in self._entries.values() if entry.place is _Place.ACTIVE]
        if not ready:
            ready = [entry for entry in self._entries.values() if entry.place is _Place.BACKING_OFF and not entry.after_error]
        if not ready:
            return None
        entry = min(ready, key=lambda each: each.order)
        entry.place, entry.since, entry.woken = _Place.IN_FLIGHT, now, False
        entry.attempts += 1
        return entry.pod

    def refused(self, uid: str, now: float, *, by_extender: bool) -> None:
        """The pod in flight found no node."""
        if entry := self._entries.get(uid):
            entry.by_extender, entry.after_error = by_extender, False
            entry.ready_at = self._backed_off_at(entry, now)
            entry.place, entry.since = (_Place.BACKING_OFF if entry.woken else _Place.REFUSED), now

    def failed(self, uid: str, now: float) -> None:
        """The pod in flight met an error: it is tried again after its back-off, whatever happens."""
        if entry := self._entries.get(uid):
            entry.after_error = True
            entry.ready_at = self._backed_off_at(entry, now)
            entry.place, entry.since = _Place.BACKING_OFF, now

    def next_due(self, now: float) -> float | None:
        """Seconds until something becomes ready by itself; None if nothing does."""
        due = []
        for entry in self._entries.values():
            if entry.place is _Place.ACTIVE:
                return 0.0
            if entry.place is _Place.BACKING_OFF:
                due.append(entry.ready_at if entry.after_error else now)
            elif entry.place is _Place.REFUSED:
                due.append(entry.since + REFUSED_AT_MOST_SECONDS)
        return max(0.0, min(due) - now) if due else None

    def _flush(self, now: float) -> None:
        for entry in self._entries.values():
            backed_off = entry.place is _Place.BACKING_OFF and entry.ready_at <= now
            forgotten = entry.place is _Place.REFUSED and now - entry.since >= REFUSED_AT_MOST_SECONDS
            if backed_off or forgotten:
                entry.place, entry.since = _Place.ACTIVE, now

    def _wake(self, entry: Waiting, now: float) -> None:
        if entry.place is _Place.IN_FLIGHT:
            entry.woken = True
        elif entry.place is _Place.REFUSED:
            entry.place, entry.since = (_Place.ACTIVE if entry.ready_at <= now else _Place.BACKING_OFF), now

    def _backed_off_at(self, entry: Waiting, now: float) -> float:
        """When the back-off is over: kube-scheduler looks once a second, and the second in which it ends still belongs to it."""
        seconds: float = min(self.initial_backoff_seconds * 2 ** min(entry.attempts - 1, 16), self.max_backoff_seconds)
        return math.floor(now + seconds) + BACKOFF_WINDOW_SECONDS

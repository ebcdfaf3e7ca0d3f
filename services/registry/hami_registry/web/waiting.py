"""Which pods wait, and why: the scheduler's list, kept up to date between two askings by its verdicts and grants. Pure; times are given."""

from __future__ import annotations

from collections.abc import Iterable

from hami_protocol.events import AllocationEvent, PodAllocating, PodAssigned, PodPlaced, PodRefused, VerdictEvent
from hami_protocol.holdings import MOST_WAITING, WaitingPod


class Waiting:
    """The pods that fit nowhere yet."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}
        self._told_at: dict[str, float] = {}
        self._more = 0

    @property
    def count(self) -> int:
        """How many wait, also those that ``listed`` has no room for."""
        return len(self._pods) + self._more

    def listed(self) -> tuple[WaitingPod, ...]:
        """The pods, by namespace and name."""
        return tuple(sorted(self._pods.values(), key=lambda each: (each.pod.namespace, each.pod.name, each.pod.uid)))

    def verdict(self, event: VerdictEvent, *, time: str, now: float) -> bool:
        """Take one verdict, said at ``time``; return whether it changed anything."""
        uid = event.pod.uid
        match event:
            case PodPlaced():
                return self._remove(uid)
            case PodRefused():
                before = self._pods.get(uid)
                if before is None and len(self._pods) >= MOST_WAITING:
                    return False
                since = time if before is None else before.since
                after = WaitingPod(pod=event.pod, since=since, summary=event.summary, reasons=event.reasons)
                self._pods[uid] = after
                self._told_at[uid] = now
                return before != after

    def granted(self, event: AllocationEvent) -> bool:
        """Take one event of the log: who has been given devices waits no more."""
        return self._remove(event.pod.uid) if isinstance(event, PodAssigned | PodAllocating) else False

    def reconcile(self, pods: Iterable[WaitingPod], count: int, *, asked_at: float) -> bool:
        """Take the scheduler's own list, but for pods of which it has said something since it was asked; return whether that changed anything."""
        before, more = self.listed(), self._more
        younger = {uid: pod for uid, pod in self._pods.items() if self._told_at.get(uid, 0.0) >= asked_at}
        listed = {pod.pod.uid: pod for pod in pods}
        self._more = max(0, count - len(listed))
        self._pods = {**listed, **younger}
        self._told_at = {uid: at for uid, at in self._told_at.items() if uid in younger}
        return (before, more) != (self.listed(), self._more)

    def _remove(self, uid: str) -> bool:
        self._told_at.pop(uid, None)
        return self._pods.pop(uid, None) is not None

"""Releases that the log of grants lacks, and when to say them if the pod's agent does not. Pure; times are given."""

from __future__ import annotations

from collections.abc import Callable

from hami_protocol.devices import PodRef
from hami_scheduler.allocations import Missing


class Releases:
    """What is to be said of each pod that has ended, and when."""

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Missing]] = {}
        self._named: dict[tuple[str, str], dict[str, None]] = {}
        """UIDs by namespace and name, in order: pods come and go under one name."""

    def expect(self, missing: Missing, *, due: float) -> None:
        """Say ``missing`` at ``due`` (monotonic), in place of what was to be said of the pod."""
        pod = missing.event.pod
        self._due[pod.uid] = (due, missing)
        self._named.setdefault((pod.namespace, pod.name), {})[pod.uid] = None

    def expects(self, uid: str) -> bool:
        """Whether something is to be said of the pod."""
        return uid in self._due

    def heard(self, uid: str) -> None:
        """There is nothing to be said of the pod any more."""
        self._take(uid)

    def due(self, now: float, *, unless: Callable[[PodRef], bool]) -> list[Missing]:
        """What must be said now; of pods that ``unless`` holds for, nothing ever."""
        found = [each for when, each in list(self._due.values()) if when <= now]
        for each in found:
            self._take(each.event.pod.uid)
        return [each for each in found if not unless(each.event.pod)]

    def of_name(self, pod: PodRef) -> list[Missing]:
        """What is to be said of earlier pods of this name, and must be said now: another word of the name would hide it."""
        uids = tuple(self._named.get((pod.namespace, pod.name), ()))
        return [missing for uid in uids if (missing := self._take(uid)) is not None]

    def _take(self, uid: str) -> Missing | None:
        _, missing = self._due.pop(uid, (0.0, None))
        if missing is not None:
            name = (missing.event.pod.namespace, missing.event.pod.name)
            del self._named[name][uid]
            if not self._named[name]:
                del self._named[name]
        return missing

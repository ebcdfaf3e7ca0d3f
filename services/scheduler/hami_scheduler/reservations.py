"""How long a reservation is kept that filter made and bind has not used. Pure.

It lapses after 30 s, unless kube-scheduler still holds the pod: bind comes long after filter where a volume is bound first, or where pods are
let go only together. It gives a pod up by saying so in the pod's condition ``PodScheduled``; a reservation during which that has changed is not
renewed, and none is kept longer than kube-scheduler itself waits for volumes. A reservation that lapses too early costs one more fit at bind.
"""

from __future__ import annotations

from dataclasses import dataclass

from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Condition, Pod

LONGEST_SECONDS = 600.0


@dataclass(slots=True)
class Reservation:
    """One reservation of ours."""

    pod: PodRef
    node: str
    attempt: int
    """Unlike any other of this pod; part of its events' ids."""
    since_seconds: float
    unsaid: bool = False
    """Its word was withdrawn before anybody was seen to have heard it."""
    doubtful: bool = False
    """kube-scheduler has said something new about the pod since."""


class Reservations:
    """What is known of every pod that filter has reserved room for and bind has not finished."""

    def __init__(self, *, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest_seconds = longest_seconds
        self._reservations: dict[str, Reservation] = {}

    def put(self, reservation: Reservation) -> None:
        """Filter has reserved; an earlier reservation of the same pod is forgotten."""
        self._reservations[reservation.pod.uid] = reservation

    def get(self, uid: str) -> Reservation | None:
        """The pod's reservation."""
        return self._reservations.get(uid)

    def pop(self, uid: str) -> Reservation | None:
        """The pod's reservation, which is over."""
        return self._reservations.pop(uid, None)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take one change of a pod."""
        if new is None or (reservation := self._reservations.get(new.metadata.uid)) is None:
            return
        now_said = _said(new)
        if now_said is not None and (old is None or now_said != _said(old)):
            reservation.doubtful = True

    def held(self, uid: str, *, pod: Pod | None, now: float) -> bool:
        """Whether kube-scheduler still holds the pod, as far as anybody can see.

        Args:
            uid: whose reservation.
            pod: the pod as the watch last showed it, None where it is gone.
            now: on the monotonic clock.
        """
        reservation = self._reservations.get(uid)
        if reservation is None or reservation.doubtful or pod is None or pod.metadata.uid != uid:
            return False
        return now - reservation.since_seconds < self._longest_seconds


def _said(pod: Pod) -> Condition | None:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition
    return None

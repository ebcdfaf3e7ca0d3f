"""Pods that are of use only together: which group a pod is of, and whether all of it has room. Decides; waits for nobody.

A group is named by coscheduling's label, Volcano's annotation, or ``spec.schedulingGroup``; how many of it must be there at least is said by its
PodGroup, else by an annotation of its pods. Room is kept for all of them or for none: the first member that is filtered finds places for as many
others as must be there, beside its own, so that two groups never hold half of the cards each. What is kept lapses like a reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_devices.requests import RequestError, annotation_field
from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_scheduler.placement import ClusterState, Figures, Phase, Placement, Refusal
from hami_scheduler.placement.ledger import RESERVATION_SECONDS

MOST_MEMBERS: Final = 1000
WAITS: Final = "pod group waits for more members"
UNFIT: Final = "pod group does not fit"

Judge = Callable[[PodRef, PodRequest, Sequence[str]], Placement | Refusal]


class GroupKind(StrEnum):
    """Who defines the group's PodGroup."""

    COSCHEDULING = "coscheduling"
    VOLCANO = "volcano"
    NATIVE = "native"


class Group(NamedTuple):
    """One group of pods."""

    namespace: str
    name: str
    kind: GroupKind

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def group_of(pod: Pod) -> Group | None:
    """The group that ``pod`` is of."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    native = pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else ""
    for name, kind in (
        (labels.get(keys.POD_GROUP) or labels.get(keys.OLD_POD_GROUP), GroupKind.COSCHEDULING),
        (annotations.get(keys.VOLCANO_GROUP), GroupKind.VOLCANO),
        (native, GroupKind.NATIVE),
    ):
        if name:
            return Group(pod.metadata.namespace, name[:253], kind)
    return None


def annotated_size(pod: Pod) -> int | None:
    """How many must be there by the pod's own annotation; None where it has none.

    Raises:
        RequestError: it is no such number.
    """
    text = pod.metadata.annotations.get(keys.GROUP_SIZE)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST_MEMBERS)) and 1 <= int(text) <= MOST_MEMBERS):
        raise RequestError(annotation_field(keys.GROUP_SIZE), f"{text[:64]!r} is not accepted; accepted: 1 to {MOST_MEMBERS}")
    return int(text)


class Gangs:
    """The groups' pods, as the watch shows them, and the room that is kept for them."""

    def __init__(self, state: ClusterState, catalog: Catalog, judge: Judge) -> None:
        self._state = state
        self._catalog = catalog
        self._judge = judge
        self._members: dict[Group, dict[str, Pod]] = {}

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take one change of a pod."""
        for pod in (old, new):
            group = None if pod is None else group_of(pod)
            if pod is None or group is None:
                continue
            members = self._members.setdefault(group, {})
            if pod is new and not is_terminal(pod) and pod.metadata.deletion_timestamp is None:
                members[pod.metadata.uid] = pod
            else:
                members.pop(pod.metadata.uid, None)
            if not members:
                del self._members[group]

    def firm(self, group: Group) -> int:
        """How many members are bound or come to be, or need no device."""
        return sum(1 for pod in self._members.get(group, {}).values() if self._is_firm(pod))

    def _is_firm(self, pod: Pod) -> bool:
        entry = self._state.entry(pod.metadata.uid)
        if entry is not None:
            return entry.phase in {Phase.ASSUMED, Phase.BOUND, Phase.SHRUNK}
        return bool(pod.spec.node_name) or self._request(pod) is None

    def _request(self, pod: Pod) -> PodRequest | None:
        """What the pod asks; None where it asks for no device. What cannot be read is refused when it is filtered."""
        try:
            request = self._catalog.read_pod(pod)
        except RequestError:
            return PodRequest(containers=())
        return request if request.asks else None

    def keep_room(
        self, pod: Pod, request: PodRequest, names: Sequence[str], *, group: Group, size: int, now: float
    ) -> Refusal | tuple[PodRef, ...]:
        """Keep room for ``pod`` and for as many of its group as must be there.

        Returns:
            The others for whom room was found now (they may have been refused before), or why there is not room for all; nothing is kept then.
        """
        uid = pod.metadata.uid
        others = {each: other for each, other in self._members.get(group, {}).items() if each != uid}
        there = sum(1 for each, other in others.items() if self._state.entry(each) is not None or self._is_firm(other))
        missing = size - 1 - there
        if missing <= 0:
            return ()
        waiting = sorted((other for each, other in others.items() if self._waits(each, other)), key=lambda other: other.metadata.name)
        if len(waiting) < missing:
            found = 1 + there + len(waiting)
            return _refusal(names, WAITS, f"pod group {group.name}: {found} of {size} members are there")
        kept: list[PodRef] = []
        for member in (pod, *waiting[:missing]):
            asked = request if member is pod else self._request(member)
            found_room = self._judge(pod_ref(member), asked, names) if asked is not None and asked.asks else None
            if not isinstance(found_room, Placement):
                why = f": {found_room.summary}" if found_room is not None else ""  # asked for while what is kept is charged
                for ref in kept:
                    self._state.release(ref.uid)
                placed = there + len(kept)
                return _refusal(names, UNFIT, f"pod group {group.name}: {size} members must be placed together, {placed} fit{why}")
            self._state.nominate(pod_ref(member), found_room, lapses_at=now + RESERVATION_SECONDS)
            kept.append(pod_ref(member))
        return tuple(kept[1:])

    def _waits(self, uid: str, pod: Pod) -> bool:
        return self._state.entry(uid) is None and not pod.spec.node_name and self._request(pod) is not None


def _refusal(names: Sequence[str], reason: str, summary: str) -> Refusal:
    return Refusal(failed=dict.fromkeys(names, reason), unresolvable={}, reasons={reason: len(names)}, reckon=lambda: Figures(summary))

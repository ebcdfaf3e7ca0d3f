"""Whose word counts where two replicas of the scheduler speak of one pod: what to say still, when somebody else has spoken first. Decides, and logs.

A lease changes hands while the bus is away: then the one that led has grants to say, and the one that leads says of the same pods what came of
them. So every word on a pod's grant subject is kept by the bus only behind the word that its speaker knew to be the last (``Outbox``), and who is
refused decides anew by the table below. Invariant of the log: of one pod nothing is assigned or lapsed behind its grant, and nothing is said behind
its release.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message, event_id, open_message
from hami_protocol.errors import EventError
from hami_protocol.events import AssignmentLapsed, Event, GrantEvent, PodAllocating, PodAssigned, PodReleased, ShareResized
from hami_scheduler.allocations import Missing
from hami_scheduler.picture import Picture

log = structlog.get_logger()

REMEMBERED_SUBJECTS = 50_000
"""Of a subject that is forgotten one more question to the bus is asked, when something is to be said there again."""

MAY_FOLLOW: Mapping[type[GrantEvent], frozenset[type[GrantEvent]]] = {
    PodAssigned: frozenset({PodAssigned, AssignmentLapsed}),
    AssignmentLapsed: frozenset({PodAssigned}),
    PodAllocating: frozenset({PodAssigned, AssignmentLapsed}),
    ShareResized: frozenset({PodAssigned, AssignmentLapsed, PodAllocating, ShareResized}),
    PodReleased: frozenset({PodAssigned, AssignmentLapsed, PodAllocating, ShareResized}),
}
"""Behind which words of somebody else on the same pod a word of ours still says something."""


def still_said(ours: GrantEvent, last: GrantEvent | None, *, leading: bool, held: bool) -> bool:
    """Whether ``ours`` is to be said behind ``last``, which we did not know when we decided it.

    Args:
        ours: what we were about to say.
        last: the last word on the subject; None where the bus has lost what it kept.
        leading: whether this replica leads. One that does not leaves all to the leader but what nobody else has seen: that it has bound a pod.
        held: whether the pod that ``ours`` is of holds something, as far as this replica knows.
    """
    if not leading and not (held and isinstance(ours, PodAssigned | PodAllocating)):
        return False
    return last is None or last.pod.uid != ours.pod.uid or type(last) in MAY_FOLLOW[type(ours)]


def left_to_the_next_leader(unsaid: Sequence[Event]) -> list[Event]:
    """What of ``unsaid`` a replica that leads no more leaves to the next leader: what came of a pod that it had not bound.

    A grant stays true, and so does the word that goes before it.
    """
    granted = {event.pod.uid for event in unsaid if isinstance(event, PodAllocating)}
    return [
        event
        for event in unsaid
        if isinstance(event, AssignmentLapsed) or (isinstance(event, PodAssigned) and event.pod.uid not in granted)
    ]


class Turns:
    """The last word on each pod's grant subject, as far as it is known, and what follows from another one."""

    def __init__(
        self,
        picture: Picture,
        *,
        leading: Callable[[], bool],
        missing: Callable[[PodRef], Iterable[Missing]],
        capacity: int = REMEMBERED_SUBJECTS,
    ) -> None:
        """``missing``: what the log lacks of one pod, as ``GrantLog.missing`` says."""
        self._picture = picture
        self._leading = leading
        self._missing = missing
        self._capacity = capacity
        self._last: OrderedDict[str, int] = OrderedDict()

    def heard(self, subject: str, sequence: int) -> None:
        """A word is on ``subject``, ours or somebody else's; heard twice, or late, it changes nothing."""
        if subjects.is_grant(subject):
            self._keep(subject, max(sequence, self._last.get(subject, 0)))

    def taken_into_account(self, subject: str) -> int | None:
        """The sequence of the last word that is known; None for subjects that are not about grants."""
        return self._last.get(subject, 0) if subjects.is_grant(subject) else None

    def decide_anew(
        self, subject: str, said: Sequence[tuple[Event, str]], last: Message | None, sequence: int
    ) -> Sequence[tuple[Event, str]]:
        """What to say instead of ``said`` behind ``last``: of it what is still true, and what the log lacks of the pod of ``last``."""
        self._keep(subject, sequence)
        theirs = None if last is None else _opened(last)
        leading = self._leading()
        if last is None or theirs is None:
            return [each for each in said if self._is_still_said(each[0], theirs, leading=leading)]
        last_id = event_id(last)  # the other replica derives the same id from the same Binding
        still = [each for each in said if each[1] != last_id and self._is_still_said(each[0], theirs, leading=leading)]
        self._picture.grants.observe(theirs, last_id)  # the feed will bring it, but not before we speak
        known = {last_id, *(each_id for _, each_id in still)}
        lacking = [(each.event, each.event_id) for each in self._missing(theirs.pod) if each.event_id not in known]
        if any(_is_of(event, theirs.pod) for event, _ in still):
            return [*still, *lacking]
        return [*lacking, *still]  # an earlier pod of the name: what came of it is said before the later one's word hides its own

    def _is_still_said(self, ours: Event, theirs: GrantEvent | None, *, leading: bool) -> bool:
        if not isinstance(ours, GrantEvent):
            return True
        held = self._picture.state.entry(ours.pod.uid) is not None
        return still_said(ours, theirs, leading=leading, held=held)

    def _keep(self, subject: str, sequence: int) -> None:
        self._last[subject] = sequence
        self._last.move_to_end(subject)
        if len(self._last) > self._capacity:
            self._last.popitem(last=False)


def _opened(last: Message) -> GrantEvent | None:
    try:
        event = open_message(last)
    except EventError as exc:
        log.warning("message not read", subject=last.subject, error=str(exc))
        return None
    return event if isinstance(event, GrantEvent) else None


def _is_of(event: Event, pod: PodRef) -> bool:
    return isinstance(event, GrantEvent) and event.pod.uid == pod.uid

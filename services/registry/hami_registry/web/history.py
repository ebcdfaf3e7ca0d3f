"""Who held what when: the last day of the log of allocations, put right by what the scheduler says that pods hold. Pure; times are given.

A *span* is one pod's charges on one node for a while. It begins when the pod is assigned, changes its phase on the way, and ends when the
reservation lapses or the pod is released; other sizes are another span. What the log says twice changes nothing. What the scheduler says of its
ledger adds spans whose beginning the log does not have any more (``begin`` is 0), mends charges, and ends what it does not know any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from hami_devices.accounting import charges_of
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.events import (
    AllocationEvent,
    AllocationFailed,
    AllocationSucceeded,
    AssignmentLapsed,
    PodAllocating,
    PodAssigned,
    PodReleased,
    ShareResizeApplied,
)
from hami_protocol.holdings import CardCharge, PodHolding

KEPT_SECONDS: Final = 24 * 3600.0
MOST_ENDED: Final = 100_000
"""Spans that are over; beyond it the oldest are forgotten, and the past begins later."""
MOST_RELEASED: Final = 100_000
SETTLING_SECONDS: Final = 30.0
"""The scheduler's ledger and the log may differ for so long while both are right."""

RESERVED: Final = "reserved"
BOUND: Final = "bound"
ALLOCATED: Final = "allocated"
FAILED: Final = "failed"
_ORDER: Final = {RESERVED: 0, BOUND: 1, ALLOCATED: 2, FAILED: 2}


@dataclass(slots=True)
class Span:
    """What one pod held on one node for a while."""

    pod: PodRef
    node: str
    phase: str
    charges: tuple[CardCharge, ...]
    begin: float
    """Unix seconds; 0 for longer than anybody remembers."""
    end: float | None = None
    """None while it lasts."""

    def covers(self, time: float) -> bool:
        """Whether it held at ``time``."""
        return self.begin <= time and (self.end is None or time < self.end)


class History:
    """The spans of all nodes."""

    def __init__(self) -> None:
        self._open: dict[str, Span] = {}
        self._by_node: dict[str, dict[str, Span]] = {}
        self._ended: deque[Span] = deque()
        self._released: OrderedDict[str, None] = OrderedDict()
        self._first: float | None = None
        self._forgotten = 0.0

    def begins(self, now: float, watched_since: float | None = None) -> float:
        """The earliest time, in Unix seconds, of which ``at`` can tell: of the first event, or from when on it was watched."""
        first = min(time for time in (self._first, watched_since, now) if time is not None)
        return max(first, now - KEPT_SECONDS, self._forgotten)

    def now_on(self, node: str) -> Iterable[Span]:
        """What is held on ``node`` now."""
        return self._by_node.get(node, {}).values()

    def nodes(self) -> Iterable[str]:
        """Where anything is held now."""
        return self._by_node.keys()

    def at(self, time: float) -> Iterator[Span]:
        """What was held at ``time``."""
        return (span for span in self._all() if span.covers(time))

    def of_card(self, node: str, uuid: str) -> Iterator[Span]:
        """The spans that one card was part of."""
        return (span for span in self._all() if span.node == node and any(charge.uuid == uuid for charge in span.charges))

    def observe(self, event: AllocationEvent, time: float) -> frozenset[str]:
        """Take one event of the log, which happened at ``time``; return the nodes whose picture it changed."""
        self._first = time if self._first is None else min(self._first, time)
        uid = event.pod.uid
        if uid in self._released:
            return frozenset()
        match event:
            case PodAssigned() | PodAllocating():
                phase = RESERVED if isinstance(event, PodAssigned) else BOUND
                return self._hold(event.pod, event.node, phase, _charges(event.assignments), time)
            case AllocationSucceeded() | AllocationFailed():
                return self._advance(uid, ALLOCATED if isinstance(event, AllocationSucceeded) else FAILED)
            case ShareResizeApplied():
                span = self._open.get(uid)
                return frozenset() if span is None else self._resize(span, _charges(event.assignments), time)
            case AssignmentLapsed():
                return self._close(uid, time, node=event.node)
            case PodReleased():
                self._released[uid] = None
                if len(self._released) > MOST_RELEASED:
                    self._released.popitem(last=False)
                return self._close(uid, time)
            case _:
                return frozenset()

    def reconcile(self, holdings: Iterable[PodHolding], *, asked_at: float, now: float) -> frozenset[str]:
        """Take what the scheduler says of all pods, who was asked from ``asked_at`` to ``now``; return the nodes whose picture that changed."""
        changed: set[str] = set()
        told: set[str] = set()
        for holding in holdings:
            uid = holding.pod.uid
            told.add(uid)
            span = self._open.get(uid)
            if span is None:
                if uid not in self._released:
                    changed |= self._hold(holding.pod, holding.node, _phase(holding.phase), holding.charges, 0.0)
            elif span.node == holding.node and span.charges != holding.charges and span.begin < asked_at - SETTLING_SECONDS:
                changed |= self._resize(span, holding.charges, now)
        for uid in [uid for uid, span in self._open.items() if uid not in told and span.begin < asked_at - SETTLING_SECONDS]:
            changed |= self._close(uid, now)
        return frozenset(changed)

    def forget(self, now: float) -> None:
        """Drop what is older than a day."""
        while self._ended and ((self._ended[0].end or 0.0) < now - KEPT_SECONDS or len(self._ended) > MOST_ENDED):
            self._forgotten = max(self._forgotten, self._ended.popleft().end or 0.0)

    def _all(self) -> Iterator[Span]:
        yield from self._ended
        yield from self._open.values()

    def _hold(self, pod: PodRef, node: str, phase: str, charges: tuple[CardCharge, ...], time: float) -> frozenset[str]:
        span = self._open.get(pod.uid)
        if span is not None and span.node == node:
            if span.begin == 0.0:
                span.begin = time  # the scheduler knew of it before the log was read so far
            return self._advance(pod.uid, phase)
        changed = self._close(pod.uid, time)
        span = self._open[pod.uid] = Span(pod=pod, node=node, phase=phase, charges=charges, begin=time)
        self._by_node.setdefault(node, {})[pod.uid] = span
        return changed | {node}

    def _advance(self, uid: str, phase: str) -> frozenset[str]:
        span = self._open.get(uid)
        if span is None or _ORDER[phase] <= _ORDER[span.phase]:
            return frozenset()
        span.phase = phase
        return frozenset({span.node})

    def _resize(self, span: Span, charges: tuple[CardCharge, ...], time: float) -> frozenset[str]:
        if charges == span.charges:
            return frozenset()
        uid = span.pod.uid
        self._close(uid, time)
        self._open[uid] = after = Span(pod=span.pod, node=span.node, phase=span.phase, charges=charges, begin=time)
        self._by_node.setdefault(span.node, {})[uid] = after
        return frozenset({span.node})

    def _close(self, uid: str, time: float, *, node: str = "") -> frozenset[str]:
        """End the span of a pod; with ``node``, only one on that node."""
        span = self._open.get(uid)
        if span is None or (node and span.node != node):
            return frozenset()
        del self._open[uid]
        there = self._by_node[span.node]
        del there[uid]
        if not there:
            del self._by_node[span.node]
        span.end = max(time, span.begin)
        self._ended.append(span)
        if len(self._ended) > MOST_ENDED:
            self._forgotten = max(self._forgotten, self._ended.popleft().end or 0.0)
        return frozenset({span.node})


def _charges(assignments: tuple[VendorAssignment, ...]) -> tuple[CardCharge, ...]:
    """What a pod with these assignments is charged until its init containers are over."""
    return tuple(
        CardCharge(uuid=charge.uuid, memory_mib=charge.memory_mib, cores=charge.cores, shares=charge.shares)
        for charge in charges_of(assignments)[0]
    )


def _phase(ledger_phase: str) -> str:
    """The scheduler's word in ours; whether the agent has served the pod is in the log alone."""
    return RESERVED if ledger_phase == RESERVED else BOUND

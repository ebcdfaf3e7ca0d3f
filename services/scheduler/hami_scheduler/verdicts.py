"""Why a pod was refused or where it goes, said to whoever asks: one Event per pod and change, the verdict on the bus, and what explain shows.

The texts of FailedNodes are stable; figures are only here (a reason that changes at every try makes kube-scheduler try again at once, for ever).
The store is bounded: the verdict that has not changed for longest is dropped first. Filter does not wait for any of it: a verdict is put into words
right after the answer, or when somebody asks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from hami_protocol.devices import PodRef
from hami_protocol.events import Event, PodPlaced, PodRefused
from hami_runtime.clock import Clock
from hami_runtime.kube.events import Type
from hami_scheduler.placement import Placement, Refusal

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
INVALID_REQUEST = "invalid device request"
"""In FailedAndUnresolvableNodes where the pod's request cannot be read; the Event has the field's path."""


Publish = Callable[[Event, str], object]
"""Where events for the bus go: ``Outbox.put``, with the event's id."""


Record = Callable[[PodRef | str, Type, str, str], object]
"""Where Kubernetes Events go: ``EventRecorder.record``, with what it is about (a pod, or the node of that name), type, reason and message."""


class Verdict(Struct, frozen=True, kw_only=True, rename="camel"):
    """The last word on a pod."""

    verdict: PodPlaced | PodRefused
    time: str


class Verdicts:
    """Says and keeps the last verdict on each pod."""

    def __init__(self, publish: Publish, record: Record, clock: Clock, *, capacity: int = 20_000) -> None:
        self._publish = publish
        self._record = record
        self._clock = clock
        self._capacity = capacity
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._count = 0
        self._unsaid: deque[Callable[[], None]] = deque()

    def refused(self, pod: PodRef, refusal: Refusal, *, node_count: int) -> None:
        """No node takes ``pod`` now."""

        def say() -> None:
            summary = refusal.summary
            verdict = PodRefused(
                pod=pod, summary=summary, node_count=node_count, reasons=dict(refusal.reasons), nearest=tuple(refusal.nearest)
            )
            if self._keep(verdict):
                self._record(pod, WARNING, "FilteringFailed", summary)

        self._after_the_answer(say)

    def invalid(self, pod: PodRef, error: str, *, node_count: int) -> None:
        """The request of ``pod`` cannot be read, wherever it goes; ``error`` has the field's path."""

        def say() -> None:
            verdict = PodRefused(pod=pod, summary=error, node_count=node_count, reasons={INVALID_REQUEST: node_count})
            if self._keep(verdict):
                self._record(pod, WARNING, "FilteringFailed", f"{INVALID_REQUEST}: {error}")

        self._after_the_answer(say)

    def placed(self, pod: PodRef, placement: Placement, *, node_count: int) -> None:
        """``pod`` goes to ``placement``'s node."""

        def say() -> None:
            node, fitting = placement.node, placement.fitting_count
            verdict = PodPlaced(pod=pod, node=node, fitting_node_count=fitting, node_count=node_count, score=float(placement.score))
            if self._keep(verdict):
                text = f"find fit node({node}), {node_count - fitting} nodes not fit, {fitting} nodes fit"
                self._record(pod, NORMAL, "FilteringSucceed", text)

        self._after_the_answer(say)

    def _after_the_answer(self, say: Callable[[], None]) -> None:
        """Before any other request is looked at, in the trace of this one."""
        self._unsaid.append(say)
        asyncio.get_running_loop().call_soon(self._say_next)

    def _say_next(self) -> None:
        if self._unsaid:
            self._unsaid.popleft()()

    def _say_all(self) -> None:
        while self._unsaid:
            self._say_next()

    def of(self, pod: PodRef) -> Verdict | None:
        """The last verdict on ``pod``, by its UID."""
        self._say_all()
        return self._verdicts.get(pod.uid)

    def refusals(self) -> Iterator[PodRefused]:
        """The refusals that are the last word on their pod, the newest first."""
        self._say_all()
        return (each.verdict for each in reversed(self._verdicts.values()) if isinstance(each.verdict, PodRefused))

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._say_all()
        self._verdicts.pop(uid, None)

    def _keep(self, verdict: PodPlaced | PodRefused) -> bool:
        """Keep and publish ``verdict`` if it says something new; return whether it does."""
        uid = verdict.pod.uid
        earlier = self._verdicts.get(uid)
        if earlier is not None and earlier.verdict == verdict:
            return False
        now = self._clock.utc()
        self._verdicts[uid] = Verdict(verdict=verdict, time=now.isoformat(timespec="milliseconds"))
        self._verdicts.move_to_end(uid)
        if len(self._verdicts) > self._capacity:
            self._verdicts.popitem(last=False)
        self._count += 1
        self._publish(verdict, f"{uid}/verdict/{now.timestamp():.3f}/{self._count}")
        return True

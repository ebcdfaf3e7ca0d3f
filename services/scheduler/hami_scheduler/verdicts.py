"""Why a pod was refused or where it goes, said to whoever asks: one Event per pod and change, the verdict on the bus, and what explain shows.

The texts of FailedNodes are stable; figures are only here (a reason that changes at every try makes kube-scheduler try again at once, for ever).
The store is bounded: the verdict that has not changed for longest is dropped first. Filter does not wait for any of it: a verdict is put into words
right after the answer, or when somebody asks; and while pods are placed fast, where they go is said a little later (docs/decisions/0012).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hami_protocol.devices import PodRef
from hami_protocol.events import Event, PodPlaced, PodRefused
from hami_protocol.explanation import LastVerdict
from hami_runtime.bursts import Bursts
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.events import Type
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.placement import Placement, Refusal

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
INVALID_REQUEST = "invalid device request"
"""In FailedAndUnresolvableNodes where the pod's request cannot be read; the Event has the field's path."""


Publish = Callable[[Event, str], object]
"""Where events for the bus go: ``Outbox.put``, with the event's id."""


Record = Callable[[PodRef | str, Type, str, str], object]
"""Where Kubernetes Events go: ``EventRecorder.record``, with what it is about (a pod, or the node of that name), type, reason and message."""


BURST_PER_SECOND: Final = 10
"""More placed pods than that are a burst."""
REPEAT_SECONDS: Final = 600.0
"""An unchanged verdict is published again after so long, at the pod's next attempt: the stream may have lost it, and we do not read it."""
SAID_AT_ONCE: Final = 16
"""Between so many that have waited others have their turn."""


@dataclass(slots=True)
class _Unsaid:
    """A verdict that has not been put into words."""

    uid: str
    since: float
    """On the monotonic clock."""
    time: datetime
    """Of the decision."""
    words: Callable[[datetime], None]
    context: contextvars.Context
    """Of the request, whose trace it belongs to."""

    def say(self) -> None:
        """Put it into words."""
        self.context.run(self.words, self.time)


class Verdicts:
    """Says and keeps the last verdict on each pod."""

    def __init__(self, publish: Publish, record: Record, clock: Clock, *, capacity: int = 20_000, telemetry: Telemetry = OFF) -> None:
        self._publish = publish
        self._record = record
        self._clock = clock
        self._isolation = Isolation("verdicts", clock, telemetry)
        self._capacity = capacity
        self._verdicts: OrderedDict[str, LastVerdict] = OrderedDict()
        self._published_at: dict[str, float] = {}
        """By pod UID, on the monotonic clock."""
        self._count = 0
        self._unsaid: deque[_Unsaid] = deque()
        self._bursts = Bursts(BURST_PER_SECOND)
        self._timer: asyncio.Handle | None = None

    def refused(self, pod: PodRef, refusal: Refusal, *, node_count: int) -> None:
        """No node takes ``pod`` now."""

        def say(time: datetime) -> None:
            summary = refusal.summary
            verdict = PodRefused(
                pod=pod, summary=summary, node_count=node_count, reasons=dict(refusal.reasons), nearest=tuple(refusal.nearest)
            )
            if self._keep(verdict, time):
                self._record(pod, WARNING, "FilteringFailed", summary)

        self._after_the_answer(pod, say)

    def invalid(self, pod: PodRef, error: str, *, node_count: int) -> None:
        """The request of ``pod`` cannot be read, wherever it goes; ``error`` has the field's path."""

        def say(time: datetime) -> None:
            verdict = PodRefused(pod=pod, summary=error, node_count=node_count, reasons={INVALID_REQUEST: node_count})
            if self._keep(verdict, time):
                self._record(pod, WARNING, "FilteringFailed", f"{INVALID_REQUEST}: {error}")

        self._after_the_answer(pod, say)

    def placed(self, pod: PodRef, placement: Placement, *, node_count: int) -> None:
        """``pod`` goes to ``placement``'s node."""

        def say(time: datetime) -> None:
            node, fitting = placement.node, placement.fitting_count
            verdict = PodPlaced(pod=pod, node=node, fitting_node_count=fitting, node_count=node_count, score=float(placement.score))
            if self._keep(verdict, time):
                text = f"find fit node({node}), {node_count - fitting} nodes not fit, {fitting} nodes fit"
                self._record(pod, NORMAL, "FilteringSucceed", text)

        self._bursts.happened(self._clock.monotonic())
        self._after_the_answer(pod, say, may_wait=True)

    def _after_the_answer(self, pod: PodRef, say: Callable[[datetime], None], *, may_wait: bool = False) -> None:
        """Before any other request is looked at, with all that was not said before; or where it ``may_wait``, after a burst."""
        self._unsaid.append(_Unsaid(pod.uid, self._clock.monotonic(), self._clock.utc(), say, contextvars.copy_context()))
        if not may_wait:
            asyncio.get_running_loop().call_soon(self.say_all)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._say_in_time)

    def _say_in_time(self) -> None:
        """Say what has waited long enough, and come again for the rest."""
        self._timer = None
        now = self._clock.monotonic()
        for _ in range(SAID_AT_ONCE):
            if not self._unsaid or self._bursts.seconds_to_wait(self._unsaid[0].since, now) > 0:
                break
            self._say(self._unsaid.popleft())
        if self._unsaid:
            seconds = max(0.0, self._bursts.seconds_to_wait(self._unsaid[0].since, now))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._say_in_time)

    def say_all(self) -> None:
        """Say what has not been said, whatever it waits for."""
        while self._unsaid:
            self._say(self._unsaid.popleft())

    def _say(self, unsaid: _Unsaid) -> None:
        with self._isolation.item(f"pod {unsaid.uid}"):
            unsaid.say()

    def _say_of(self, uid: str) -> None:
        """Say what is unsaid of one pod."""
        if any(unsaid.uid == uid for unsaid in self._unsaid):
            ours = [unsaid for unsaid in self._unsaid if unsaid.uid == uid]
            self._unsaid = deque(unsaid for unsaid in self._unsaid if unsaid.uid != uid)
            for unsaid in ours:
                self._say(unsaid)

    def of(self, pod: PodRef) -> LastVerdict | None:
        """The last verdict on ``pod``, by its UID."""
        self._say_of(pod.uid)
        return self._verdicts.get(pod.uid)

    def refusals(self) -> Iterator[PodRefused]:
        """The refusals that are the last word on their pod, the newest first."""
        self.say_all()
        return (each.verdict for each in reversed(self._verdicts.values()) if isinstance(each.verdict, PodRefused))

    def publish_again(self) -> None:
        """Publish the last verdict on each pod once more: the bus may have lost it."""
        for uid, kept in self._verdicts.items():
            self._publish_once_more(uid, kept)

    def _publish_once_more(self, uid: str, kept: LastVerdict) -> None:
        self._published_at[uid] = self._clock.monotonic()
        self._count += 1
        self._publish(kept.verdict, f"{uid}/verdict/{kept.time}/{self._count}")

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._say_of(uid)
        self._verdicts.pop(uid, None)
        self._published_at.pop(uid, None)

    def _keep(self, verdict: PodPlaced | PodRefused, time: datetime) -> bool:
        """Keep and publish ``verdict``, of ``time``, if it says something new; return whether it does."""
        uid = verdict.pod.uid
        earlier, now = self._verdicts.get(uid), self._clock.monotonic()
        if earlier is not None and earlier.verdict == verdict:
            if now - self._published_at.get(uid, now) >= REPEAT_SECONDS:
                self._publish_once_more(uid, earlier)
            return False
        self._published_at[uid] = now
        self._verdicts[uid] = LastVerdict(verdict=verdict, time=time.isoformat(timespec="milliseconds"))
        self._verdicts.move_to_end(uid)
        if len(self._verdicts) > self._capacity:
            self._published_at.pop(self._verdicts.popitem(last=False)[0], None)
        self._count += 1
        self._publish(verdict, f"{uid}/verdict/{time.timestamp():.3f}/{self._count}")
        return True

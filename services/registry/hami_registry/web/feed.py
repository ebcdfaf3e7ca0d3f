"""Keeps what the page shows up to date: follows the log, verdicts and usage, asks the scheduler who holds what, and tells listeners what changed.

``history``, ``waiting`` and ``facts`` decide; this module carries. A listener gets whole values, never differences, so that it may join at any
moment: whoever listens first and asks for the overview then has missed nothing. A listener that does not keep up is let go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import groupby
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from hami_devices.vendor import Vendor
from hami_protocol import envelope, events, keys, subjects
from hami_protocol.errors import EventError
from hami_protocol.events import NodeUsage
from hami_protocol.holdings import Holdings, HoldingsQuestion, PodHolding, WaitingPod
from hami_protocol.kubernetes import Node
from hami_protocol.provenance import Provenance
from hami_protocol.subjects import StreamSpec
from hami_registry.rules import EntryView
from hami_registry.web import facts
from hami_registry.web.facts import CardHistory, Group, LogLine, NodeAnnotations, NodeDetail, NodeSummary, Overview, Resources
from hami_registry.web.history import History, Span
from hami_registry.web.past_devices import GONE, Look, PastDevices
from hami_registry.web.waiting import Waiting
from hami_runtime.bus.port import Bus, BusError, Delivery, StartAt
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
TELL_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 1.0
"""How often devices are looked at, while anybody listens."""
LOOK_ALONE_SECONDS: Final = 10.0
"""While nobody listens: who looks at the past sees it as exactly as that."""
ASK_SECONDS: Final = 10.0
ASK_ALONE_SECONDS: Final = 60.0
"""While nobody listens."""
ASK_TIMEOUT_SECONDS: Final = 5.0
SIMULATE_TIMEOUT_SECONDS: Final = 60.0
MOST_PAGES: Final = 10_000
MOST_LISTENERS: Final = 100
MOST_UNREAD: Final = 200
LOG_LINES: Final = 100


class SchedulerSilent(Exception):  # noqa: N818 - reads as the condition it names
    """The scheduler could not be asked, or did not answer what it was asked."""


class Change(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is other than it was."""

    now: float
    nodes: tuple[NodeSummary, ...] = ()
    gone: tuple[str, ...] = ()
    """Nodes that are no more."""
    log: tuple[LogLine, ...] = ()
    waiting: tuple[WaitingPod, ...] | None = None
    """None where it is as before."""
    waiting_count: int = 0
    caveats: tuple[str, ...] = ()


Listener = asyncio.Queue["bytes | None"]
"""JSON of ``Change``; None where there is no more."""


class Feed:
    """What the page shows. Every replica has one of its own.

    Args:
        bus: where things are said.
        clock: ours.
        vendors: whose devices there may be.
        devices: all entries, by node.
        find_node: a node as the cluster has it.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        vendors: tuple[Vendor, ...],
        *,
        devices: Callable[[], Sequence[EntryView]],
        find_node: Callable[[str], Node | None],
        telemetry: Telemetry = OFF,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._isolation = Isolation("page", clock, telemetry)
        self._vendors = vendors
        self._devices = devices
        self._find_node = find_node
        self._history = History()
        self._waiting = Waiting()
        self._usage: dict[str, NodeUsage] = {}
        self._provenance = Provenance()
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._looks: dict[str, Look] = {}
        self._past = PastDevices()
        self._summaries: dict[str, NodeSummary] = {}
        self._stale: set[str] = set()
        """Nodes on which other things are held than their summary says: it is made when somebody wants it."""
        self._looked_at = float("-inf")
        self._listeners: set[Listener] = set()
        self._told: dict[str, NodeSummary] = {}
        self._unsaid: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._waiting_changed = False
        self._silence = "the scheduler has not been asked yet"
        self._told_caveats: tuple[str, ...] = ()
        self._watched = asyncio.Event()
        """Set when somebody comes to see."""

    # What is asked

    def overview(self, at: float | None = None) -> Overview:
        """All nodes now, or at a time in Unix seconds."""
        self._look()
        now = self._now()
        nodes = self._summaries.values() if at is None else self._summed_at(at)
        return Overview(
            time=now if at is None else at,
            now=now,
            begins=self._begins(now),
            devices_since=self._past.since(now),
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            waiting=self._waiting.listed(),
            waiting_count=self._waiting.count,
            log=tuple(self._log),
            resources=tuple(_resources(vendor) for vendor in self._vendors),
            caveats=self._caveats(),
        )

    def node(self, name: str, at: float | None = None) -> NodeDetail | None:
        """One node now, or at a time in Unix seconds; None where there is, or was, no such node."""
        self._look()
        if at is None:
            spans, look = list(self._history.now_on(name)), self._looks.get(name)
        else:
            spans, look = [span for span in self._history.at(at) if span.node == name], self._past.of(name, at)
        if look is None and not spans:
            return None
        look = look or GONE
        return facts.detail(name, look.groups, spans, look.annotations, self._usage.get(name) if at is None else None)

    def card(self, node: str, uuid: str) -> CardHistory | None:
        """One card's last day; None where nobody has heard of it."""
        self._look()
        now = self._now()
        spans = list(self._history.of_card(node, uuid))
        groups = (self._looks.get(node) or GONE).groups
        if not spans and not any(device.uuid == uuid for group in groups for device in group.devices):
            return None
        return facts.card_history(node, uuid, groups, spans, begins=self._begins(now), now=now)

    def span(self) -> tuple[float, float]:
        """How far back one can look, and now, in Unix seconds."""
        now = self._now()
        return self._begins(now), now

    async def simulate(self, question: bytes) -> bytes:
        """What the scheduler answers to ``question``.

        Raises:
            SchedulerSilent: nothing.
        """
        try:
            return await self._bus.request(subjects.ASK_SIMULATE, question, timeout_seconds=SIMULATE_TIMEOUT_SECONDS)
        except BusError as exc:
            raise SchedulerSilent(str(exc)) from exc

    @property
    def full(self) -> bool:
        """Whether there are as many listeners as there may be."""
        return len(self._listeners) >= MOST_LISTENERS

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """What changes from now on."""
        if not self._listeners:
            self._look()
            self._told = dict(self._summaries)
            self._unsaid.clear()
        listener: Listener = asyncio.Queue()
        self._listeners.add(listener)
        self._watched.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    # What happens

    async def run(self, stop: asyncio.Event) -> None:
        """Keep up to date until ``stop``."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(subjects.ALLOCATIONS, subjects.ALL_ALLOCATIONS, StartAt.ALL, stop))
            group.create_task(self._follow(subjects.VERDICTS, subjects.ALL_VERDICTS, StartAt.NEW, stop))
            group.create_task(self._follow(subjects.USAGE, subjects.ALL_USAGE, StartAt.LAST_PER_SUBJECT, stop))
            group.create_task(self._ask(stop))
            await self._tell(stop)
        for listener in self._listeners:
            listener.put_nowait(None)

    async def _follow(self, stream: StreamSpec, subject: str, start: StartAt, stop: asyncio.Event) -> None:
        async with self._bus.consume(stream, subjects=(subject,), start=start) as deliveries:
            async for delivery in until(stop, deliveries):
                with self._isolation.item(f"message {delivery.message.subject}"):
                    self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        try:
            event = envelope.open_message(delivery.message)
        except EventError as exc:
            log.warning("message is not shown", subject=delivery.message.subject, reason=str(exc))
            return
        said = delivery.message.headers.get("ce-time", "")
        if isinstance(event, NodeUsage):
            self._usage[event.node] = event
        elif isinstance(event, events.VerdictEvent):
            self._waiting_changed |= self._waiting.verdict(event, time=said, now=self._clock.monotonic())
        elif isinstance(event, events.AllocationEvent):
            if not self._provenance.counts(event):
                log.warning("outcome is not shown: another node's agent published it", subject=delivery.message.subject, pod=str(event.pod))
                return
            time = _unix(said, self._now())
            self._stale |= self._history.observe(event, time)
            self._waiting_changed |= self._waiting.granted(event)
            line = facts.log_line(event, sequence=delivery.sequence, time=time)
            self._log.append(line)
            self._unsaid.append(line)

    async def _ask(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            asked_at, mark = self._now(), self._clock.monotonic()
            try:
                holdings, last = await self._ask_all()
                self._reconcile(holdings, last, asked_at=asked_at, mark=mark)
                self._silence = ""
            except SchedulerSilent as exc:
                self._silence = f"the scheduler did not say who holds what: {exc}"
            except Exception as exc:  # noqa: BLE001 - the page shows it, and the scheduler is asked again
                self._isolation.failed("the scheduler's holdings", exc)
                self._silence = "the scheduler's answer cannot be read"
            await self._pause(stop)

    def _reconcile(self, holdings: list[PodHolding], last: Holdings, *, asked_at: float, mark: float) -> None:
        now = self._now()
        self._stale |= self._history.reconcile(holdings, asked_at=asked_at, now=now)
        self._history.forget(now)
        self._waiting_changed |= self._waiting.reconcile(last.waiting, last.waiting_count, asked_at=mark)

    async def _ask_all(self) -> tuple[list[PodHolding], Holdings]:
        found: list[PodHolding] = []
        after = ""
        for _ in range(MOST_PAGES):
            question = msgspec.json.encode(HoldingsQuestion(after=after))
            try:
                answer = await self._bus.request(subjects.ASK_HOLDINGS, question, timeout_seconds=ASK_TIMEOUT_SECONDS)
                page = msgspec.json.decode(answer, type=Holdings)
            except BusError as exc:
                raise SchedulerSilent(str(exc)) from exc
            except msgspec.DecodeError as exc:
                raise SchedulerSilent(_reason(answer) or str(exc)) from exc
            found += page.holdings
            if not page.next:
                return found, page
            after = page.next
        raise SchedulerSilent(f"there is no end to its answer after {MOST_PAGES} pages")

    async def _pause(self, stop: asyncio.Event) -> None:
        """Until the scheduler is to be asked again: soon while anybody listens, and at once for who comes to see."""
        self._watched.clear()
        if self._silence or self._listeners:
            await sleep_until(stop, LOOK_SECONDS if self._silence else ASK_SECONDS)
            return
        for _ in range(round(ASK_ALONE_SECONDS / LOOK_SECONDS)):
            if self._watched.is_set() or await sleep_until(stop, LOOK_SECONDS):
                return

    async def _tell(self, stop: asyncio.Event) -> None:
        while not await sleep_until(stop, TELL_SECONDS):
            with self._isolation.item("changes"):
                if self._listeners:
                    self._say(self._change())
                elif self._clock.monotonic() - self._looked_at >= LOOK_ALONE_SECONDS:
                    self._look()

    def _change(self) -> Change | None:
        """What listeners have not been told yet; None where there is nothing."""
        self._look()
        told, self._told = self._told, dict(self._summaries)
        nodes = tuple(node for name, node in self._told.items() if (before := told.get(name)) is not node and before != node)
        gone = tuple(name for name in told if name not in self._told)
        lines, self._unsaid = tuple(self._unsaid), deque(maxlen=LOG_LINES)
        waits, self._waiting_changed = self._waiting_changed, False
        caveats = self._caveats()
        if not (nodes or gone or lines or waits or caveats != self._told_caveats):
            return None
        self._told_caveats = caveats
        return Change(
            now=self._now(),
            nodes=nodes,
            gone=gone,
            log=lines,
            waiting=self._waiting.listed() if waits else None,
            waiting_count=self._waiting.count,
            caveats=caveats,
        )

    def _say(self, change: Change | None) -> None:
        if change is None:
            return
        data = msgspec.json.encode(change)
        for listener in tuple(self._listeners):
            if listener.qsize() >= MOST_UNREAD:
                self._listeners.discard(listener)
                listener.put_nowait(None)
            else:
                listener.put_nowait(data)

    # What is known

    def _look(self) -> None:
        """Bring what is shown up to date: which devices there are, if it is a while ago that we looked, and what is held."""
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look_at_devices()
        for name in self._stale & self._looks.keys():
            self._summaries[name] = self._summed(name, self._history.now_on(name))
        self._stale.clear()

    def _look_at_devices(self) -> None:
        groups: dict[str, tuple[Group, ...]] = dict.fromkeys(self._history.nodes(), ())
        for name, views in groupby(self._devices(), key=lambda view: view.node):
            groups[name] = tuple(Group(view.device_type, view.alive, view.devices) for view in views)
        looks = {name: Look(group, self._annotations(name)) for name, group in groups.items()}
        before, self._looks = self._looks, looks
        summaries, utc = self._summaries, self._now()
        self._summaries = {}
        for name, look in looks.items():
            same = before.get(name) == look
            self._summaries[name] = summaries[name] if same else self._summed(name, self._history.now_on(name))
            if not same:
                self._past.see(name, look, utc)
        for name in before.keys() - looks.keys():
            self._past.see(name, GONE, utc)
        self._past.forget(utc)
        for name in self._usage.keys() - looks.keys():
            del self._usage[name]

    def _summed(self, name: str, spans: Iterable[Span]) -> NodeSummary:
        look = self._looks[name]
        return facts.summary(name, look.groups, spans, look.annotations)

    def _summed_at(self, time: float) -> list[NodeSummary]:
        """All nodes as they were."""
        held: dict[str, list[Span]] = {}
        for span in self._history.at(time):
            held.setdefault(span.node, []).append(span)
        looks = dict.fromkeys(held, GONE) | self._past.at(time)
        return [facts.summary(name, look.groups, held.get(name, ()), look.annotations) for name, look in looks.items()]

    def _annotations(self, name: str) -> NodeAnnotations:
        node = self._find_node(name)
        annotations: Mapping[str, str] = {} if node is None else node.metadata.annotations
        return NodeAnnotations(cordon=annotations.get(keys.DEVICE_CORDON, ""))

    def _begins(self, now: float) -> float:
        return self._history.begins(now, self._past.since(now))

    def _caveats(self) -> tuple[str, ...]:
        if not self._bus.connected:
            return ("there is no connection to the bus: what is shown is as it was when it was lost",)
        return (f"{self._silence}; pods that are older than the log may be missing",) if self._silence else ()

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _resources(vendor: Vendor) -> Resources:
    return Resources(
        device_type=vendor.device_type,
        count=vendor.count_resource,
        memory=vendor.memory_resource,
        memory_unit_mib=vendor.memory_unit_mib,
        cores=vendor.cores_resource,
    )


def _unix(text: str, otherwise: float) -> float:
    """An event's time; ``otherwise`` where it has none that can be read, or one that has not come yet."""
    try:
        return min(datetime.fromisoformat(text).timestamp(), otherwise)
    except (ValueError, OverflowError, OSError):
        return otherwise


def _reason(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=dict[str, str]).get("error", "")
    except msgspec.DecodeError:
        return ""

"""Which nodes are alive, and what has to be written where because of it. Pure: reports, nodes and times in, commands out.

Per (node, device type) there is one entry. Its life, judged by this process's monotonic clock alone:

    (nothing) --report--> alive --nothing changed for 60 s--> unavailable --report--> alive ... --Node deleted--> (nothing)

A *report* is a new message of the node's agent, or, where a vendor's own plugin writes the annotations itself, a change that the plugin
made to them; such a node is also held up while kubelet still has its devices allocatable, since not every plugin answers handshakes.

Invariants:
- While the registry is cut off from the bus or the API server nobody expires; once it is back, everyone alive has a fresh 60 s.
- A verdict is said once per change, and again until the bus has it. Inventory outlives liveness: an unavailable node keeps its devices.
- Record annotations are patched only where they differ. All node patches together stay within the budget; up to ``FULL_PACE_NODES``
  entries the protocol's own handshake intervals are kept, above they stretch in proportion. While pods are placed fast, handshakes give way.
- Only a leader's ``due`` is carried out. Followers take the leader's verdicts from the bus.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from hami_devices.registrations import DeviceRecord
from hami_devices.vendor import Vendor
from hami_protocol import handshake, registration
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import RecordError
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_registry import records
from hami_registry.commands import Command, Key, Outcome, PatchNode, Publish, PurgeNode, RaiseAlarm, Word
from hami_registry.timetable import Budget, Timetable
from hami_runtime.bursts import LONGEST_WAIT_SECONDS, Bursts

UNAVAILABLE_SECONDS: Final = 60.0
REPORTED_SECONDS: Final = 30.0
REQUESTING_SECONDS: Final = 15.0
PATCHES_PER_SECOND: Final = 50
FULL_PACE_NODES: Final = 500
"""One ``Reported`` in 30 s and one ``Requesting`` in 15 s for each of so many are just the budget."""
_ROOM_TO_CATCH_UP: Final = 1.1
"""Where intervals are stretched, they are so much longer that what has waited is made up for."""
ECHO_SECONDS: Final = 2.0
"""How long a node may still be seen as it was before our patch."""
_RETRY_SECONDS: Final = 1.0
_RETRY_MAX_SECONDS: Final = 30.0
_RECORD_RETRY_MAX_SECONDS: Final = 300.0
"""Of a node's records, which the API server may refuse for good."""
MOST_DEVICES: Final = 1024
"""Of one type, that a node may register."""
MOST_RECORD_BYTES: Final = 128 * 1024
"""Of the annotations of one type; a node's annotations may be 256 KiB, all together."""
_REMEMBERED_REFUSALS: Final = 10_000
_BUS: Final = "bus"
_RECORD: Final = "record"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSeen:
    """A node as the API server has it: only what concerns us."""

    name: str
    version: str
    """Its resource version, which names a change."""
    annotations: Mapping[str, str]
    allocatable: frozenset[str]
    """Device types of which kubelet has any allocatable."""
    own: Mapping[str, DeviceRecord] = field(default_factory=dict)
    """By device type, what the node says of its devices in its vendor's own way, where the protocol's annotation says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryView:
    """One entry, for the inventory."""

    node: str
    device_type: str
    alive: bool
    since: datetime
    third_party: bool
    generation: int
    devices: tuple[RegisteredDevice, ...]


@dataclass(slots=True)
class _Entry:
    report: DevicesReported
    mark: str
    """Names the last change: with it an event has the same id whenever it is said again."""
    changed_at: float
    since: float
    alive: bool = True
    reported_at: float = float("-inf")
    """When its last ``Reported`` was written."""
    on_bus: DevicesReported | None = None
    """Third party only: what the bus has."""
    held: bool = False
    wanted: dict[str, str | None] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """In a row, by what was tried: paths that fail apart back off apart."""


class _Told(NamedTuple):
    """The last verdict that the bus has."""

    alive: bool | None = None
    sequence: int = 0


@dataclass(slots=True)
class _Node:
    annotations: dict[str, str]
    allocatable: frozenset[str]
    own: dict[str, str]


class Rules:
    """The registry's state. Everything comes in through its methods; what is to be done comes out of ``due``."""

    def __init__(self, vendors: tuple[Vendor, ...], *, legacy_handshake: bool = False, placing: Bursts | None = None) -> None:
        """Start with nothing known.

        Args:
            vendors: whose devices there may be; a report of another type is refused.
            legacy_handshake: also write the bare ``hami.io/node-handshake``.
            placing: how fast pods are granted, as far as whoever gives it knows; None where nobody does.
        """
        self._placing = placing
        self._device_types = tuple(vendor.device_type for vendor in vendors)
        self._names = {vendor.device_type: records.keys_of(vendor.device_type, vendor) for vendor in vendors}
        self._legacy_handshake = legacy_handshake
        self._entries: dict[Key, _Entry] = {}
        self._told: dict[Key, _Told] = {}
        self._nodes: dict[str, _Node] = {}
        self._nodes_synced = False
        self._lost: set[str] = set()
        self._leading = False
        self._alarms: list[RaiseAlarm] = []
        self._unreadable: set[Key] = set()
        self._refused: OrderedDict[Key, None] = OrderedDict()
        self._node_failures: dict[str, tuple[int, float]] = {}
        """By node, how many writes of its records have failed in succession, and before when none is tried again, whatever it reports."""
        self._budget = Budget(PATCHES_PER_SECOND)
        self._expiries: Timetable[Key] = Timetable()
        self._verdicts: Timetable[Key] = Timetable()
        self._publications: Timetable[Key] = Timetable()
        self._records: Timetable[Key] = Timetable()
        self._handshakes: Timetable[tuple[Key, Word]] = Timetable()
        self._purges: Timetable[str] = Timetable()
        self._purging: dict[str, tuple[str, ...]] = {}

    # What happened.

    def reported(self, event: DevicesReported, mark: str, now: float) -> None:
        """The bus has a report; ``mark`` names its message, of which seeing it twice changes nothing."""
        key = Key(event.node, event.device_type)
        try:
            registration.check_ids(device.uuid for device in event.devices)
        except RecordError as exc:
            self._unreadable_record(key, f"what its agent reports of its {event.device_type} devices", exc)
            return
        self._unreadable.discard(key)
        entry = self._entries.get(key)
        if event.third_party:
            self._own_words(key, event, now)
            return
        if entry is not None and mark == entry.mark:
            return
        if (reason := self._refusal(event)) is not None:
            self._refuse(key, reason)
            return
        wanted = records.annotations_of(event, self._keys(event.device_type)) if entry is None or entry.report != event else entry.wanted
        if (size := sum(len(name) + len(value or "") for name, value in wanted.items())) > MOST_RECORD_BYTES:
            self._refuse(key, f"a record of {size} bytes; accepted: up to {MOST_RECORD_BYTES}")
            return
        self._refused.pop(key, None)
        if entry is None:
            entry = self._entries[key] = _Entry(report=event, mark="", changed_at=now, since=now)
        entry.report, entry.mark, entry.wanted = event, mark, wanted
        entry.held = False
        self._changed(key, entry, now)
        self._handshakes.hasten(
            (key, Word.REPORTED), max(now, entry.reported_at + REPORTED_SECONDS * self._stretch() - REPORTED_SECONDS / 2)
        )
        if (key, Word.REQUESTING) not in self._handshakes:
            self._handshakes.set((key, Word.REQUESTING), now + REQUESTING_SECONDS * self._stretch() / 2)
        if self._differs(key, entry):
            self._record_due(key, now)

    def _refusal(self, event: DevicesReported) -> str | None:
        if event.device_type not in self._names:
            return f"device type {event.device_type[:64]!r}; accepted: {', '.join(self._device_types)}"
        if len(event.devices) > MOST_DEVICES:
            return f"{len(event.devices)} devices of type {event.device_type}; accepted: up to {MOST_DEVICES}"
        return None

    def _refuse(self, key: Key, reason: str) -> None:
        """Nothing of a report counts, so that its node is silent; the operators are told once for each node and type."""
        if key not in self._refused:
            self._refused[key] = None
            if len(self._refused) > _REMEMBERED_REFUSALS:
                self._refused.popitem(last=False)
            self._alarms.append(RaiseAlarm(node=key.node, reason="RegistrationRefused", message=f"registers {reason}"))

    def _own_words(self, key: Key, event: DevicesReported, now: float) -> None:
        """A third party's devices, as this registry or the one before it published them: no news, but says what the bus has."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(report=event, mark="bus", changed_at=now, since=now)
            self._expiries.set(key, now + UNAVAILABLE_SECONDS)
        if entry.report.third_party:
            entry.on_bus = event

    def verdict_seen(self, event: LivenessChanged, sequence: int, now: float) -> None:
        """The bus has a verdict. A follower takes it over; a leader sees its own, or repeats it where another's contradicts."""
        key = Key(event.node, event.device_type)
        if sequence <= self._said(key).sequence:
            return
        self._told[key] = _Told(event.alive, sequence)
        entry = self._entries.get(key)
        if entry is not None and entry.alive != event.alive:
            if self._leading:
                self._verdicts.hasten(key, now)
            else:
                entry.alive, entry.since = event.alive, now

    def bus_restarted(self, now: float) -> None:
        """The bus has lost what it had, and counts from the beginning: it is told everything again."""
        self._told.clear()
        for key, entry in self._entries.items():
            self._verdicts.hasten(key, now)
            if entry.report.third_party:
                entry.on_bus = None
                self._publications.hasten(key, now)

    def node_seen(self, node: NodeSeen, now: float) -> None:
        """A node is there, or has changed."""
        self._purging.pop(node.name, None)
        self._purges.cancel(node.name)
        before = self._nodes.get(node.name)
        own = {device_type: said.text for device_type, said in node.own.items()}
        self._nodes[node.name] = _Node(annotations=records.concerning(node.annotations), allocatable=node.allocatable, own=own)
        for device_type in self._device_types:
            key = Key(node.name, device_type)
            entry = self._entries.get(key)
            says = device_type in own or self._keys(device_type).register in node.annotations
            if says or (entry is not None and entry.report.third_party):
                self._plugin_seen(key, before, node, now)
            if (entry := self._entries.get(key)) and self._differs(key, entry):
                self._record_due(key, now if before is None else now + ECHO_SECONDS)

    def _plugin_seen(self, key: Key, seen: _Node | None, node: NodeSeen, now: float) -> None:
        """What a node says where its vendor's own plugin may have written it."""
        names = self._keys(key.device_type)
        before = seen.annotations if seen is not None else {}
        own = node.own.get(key.device_type)
        text = node.annotations.get(names.register, own.text if own is not None else None)
        old = before.get(names.register, seen.own.get(key.device_type) if seen is not None else None)
        entry = self._entries.get(key)
        if entry is not None and not entry.report.third_party and (entry.alive or text in {None, old, entry.wanted.get(names.register)}):
            return  # our agent's node; what differs is put right
        registered = text is not None and (text != old or entry is None)
        if text is not None and registered:
            try:
                self._adopt(key, text, node, now)
            except RecordError as exc:
                source = f"annotation {names.register}" if own is None else f"what the node says of its {key.device_type} devices"
                self._unreadable_record(key, source, exc)
                return
        if (entry := self._entries.get(key)) is not None and entry.report.third_party:
            answer = records.seen_handshake(node.annotations, names)
            answered = answer != records.seen_handshake(before, names) and records.is_answer(answer)
            held = text is not None and key.device_type in node.allocatable
            self._plugin_signs(key, entry, mark=f"node-{node.version}", signs=registered or answered, held=held, now=now)

    def _adopt(self, key: Key, text: str, node: NodeSeen, now: float) -> None:
        """Take the inventory from a node's annotation: a third party's, or our agent's where the bus has lost its report."""
        entry = self._entries.get(key)
        own = node.own.get(key.device_type)
        if own is not None:
            report = DevicesReported(node=node.name, device_type=key.device_type, generation=0, devices=own.read(), third_party=True)
        else:
            report = records.read_annotations(node.name, key.device_type, text, node.annotations, third_party=entry is not None)
        self._unreadable.discard(key)
        if entry is None:
            entry = self._entries[key] = _Entry(report=report, mark=f"node-{node.version}", changed_at=now, since=now)
            self._expiries.set(key, now + UNAVAILABLE_SECONDS)
        entry.report = report
        generation = self._keys(key.device_type).generation
        entry.wanted = {generation: None} if report.third_party and generation in node.annotations else {}

    def _plugin_signs(self, key: Key, entry: _Entry, *, mark: str, signs: bool, held: bool, now: float) -> None:
        """Judge a third party's node by its signs of life and by what kubelet has allocatable."""
        if signs or (held and not entry.held):
            entry.mark = mark
            self._changed(key, entry, now)
        if entry.held and not held:
            self._expiries.set(key, max(now, entry.changed_at + UNAVAILABLE_SECONDS))
        entry.held = held
        if entry.on_bus != entry.report:
            self._publications.hasten(key, now)
        if (key, Word.REQUESTING) not in self._handshakes:
            self._handshakes.set((key, Word.REQUESTING), now + REQUESTING_SECONDS * self._stretch())

    def _unreadable_record(self, key: Key, source: str, exc: RecordError) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            message = f"{source} cannot be read: {exc}"
            self._alarms.append(RaiseAlarm(node=key.node, reason="UnreadableRegistration", message=message))

    def node_gone(self, name: str, now: float) -> None:
        """The Node object was deleted."""
        self._nodes.pop(name, None)
        self._node_failures.pop(name, None)
        self._purge(name, now)

    def nodes_synced(self) -> None:
        """From here on a node that has not been seen does not exist."""
        self._nodes_synced = True

    def source_lost(self, source: str) -> None:
        """Cut off from ``source``: silence says nothing about the nodes."""
        self._lost.add(source)

    def source_back(self, source: str, now: float) -> None:
        """In touch with ``source`` again."""
        if source in self._lost:
            self._lost.discard(source)
            if not self._lost:
                self._fresh_start(now)

    def take_over(self, now: float) -> None:
        """This replica leads from now on."""
        self._leading = True
        self._fresh_start(now)
        for key, entry in self._entries.items():
            self._expiries.set(key, now + UNAVAILABLE_SECONDS)
            if self._said(key).alive != entry.alive:
                self._verdicts.hasten(key, now)
            if self._differs(key, entry):
                self._record_due(key, now)

    def step_down(self) -> None:
        """Another replica leads."""
        self._leading = False

    def _fresh_start(self, now: float) -> None:
        for key, entry in self._entries.items():
            if entry.alive:
                entry.changed_at = max(entry.changed_at, now)
                self._expiries.set(key, entry.changed_at + UNAVAILABLE_SECONDS)

    def _changed(self, key: Key, entry: _Entry, now: float) -> None:
        """The one place where an entry comes (back) to life."""
        entry.changed_at = now
        if not entry.alive:
            entry.alive, entry.since = True, now
        if self._said(key).alive is not True:
            self._verdicts.hasten(key, now)
        self._expiries.set(key, now + UNAVAILABLE_SECONDS)

    # What is to be done.

    def next_due(self, now: float) -> float | None:
        """When ``due`` has something to do next; None while nothing is known."""
        patches = [at for at in (self._records.next_at(), self._handshake_at(now)) if at is not None]
        times = [max(min(patches), self._budget.free_at(now))] if patches else []
        others = (self._verdicts, self._publications, self._purges, *(() if self._lost else (self._expiries,)))
        times += [at for timetable in others if (at := timetable.next_at()) is not None]
        return now if self._alarms else min(times, default=None)

    def due(self, now: float, utc: datetime) -> list[Command]:
        """All that is to be done by ``now``; each command's outcome is then told to ``settle``.

        Args:
            now: monotonic seconds.
            utc: the wall clock, only to be written down.
        """
        commands: list[Command] = [*self._alarms]
        self._alarms.clear()
        if not self._lost:
            while (key := self._expiries.pop(now)) is not None:
                self._expire(key, now)
        while (node := self._purges.pop(now)) is not None:
            commands.append(PurgeNode(node=node, device_types=self._purging[node]))
        while (key := self._publications.pop(now)) is not None:
            if (entry := self._entries.get(key)) and entry.report.third_party and entry.on_bus != entry.report:
                event_id = f"devices/{key.node}/{key.device_type}/{entry.mark}"
                commands.append(Publish(key=key, event=entry.report, event_id=event_id))
        while (key := self._verdicts.pop(now)) is not None:
            if (entry := self._entries.get(key)) and self._said(key).alive != entry.alive:
                commands.append(self._verdict(key, entry))
        commands += self._patches(now, utc)
        return commands

    def _expire(self, key: Key, now: float) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        if now < entry.changed_at + UNAVAILABLE_SECONDS:
            self._expiries.set(key, entry.changed_at + UNAVAILABLE_SECONDS)
        elif self._nodes_synced and key.node not in self._nodes:
            self._purge(key.node, now)
        elif entry.alive and not entry.held:
            entry.alive, entry.since = False, now
            self._verdicts.hasten(key, now)

    def _purge(self, node: str, now: float) -> None:
        """Forget everything about a node and have the bus forget it too."""
        gone = sorted({key for key in (*self._entries, *self._told) if key.node == node})
        for key in gone:
            self._entries.pop(key, None)
            self._told.pop(key, None)
            self._unreadable.discard(key)
            for timetable in (self._expiries, self._verdicts, self._publications, self._records):
                timetable.cancel(key)
            for word in Word:
                self._handshakes.cancel((key, word))
        if gone:
            self._purging[node] = tuple(key.device_type for key in gone)
            self._purges.set(node, now)

    def _verdict(self, key: Key, entry: _Entry) -> Publish:
        reason = "registered" if entry.alive else f"nothing registered for {UNAVAILABLE_SECONDS:.0f} s"
        event = LivenessChanged(node=key.node, device_type=key.device_type, alive=entry.alive, reason=reason)
        word = "alive" if entry.alive else "unavailable"
        return Publish(
            key=key, event=event, event_id=f"liveness/{key.node}/{key.device_type}/{entry.mark}/{self._said(key).sequence}/{word}"
        )

    def _patches(self, now: float, utc: datetime) -> list[Command]:
        """Records first, then the handshakes that have waited longest, as far as the budget goes."""
        commands: list[Command] = []
        while self._budget.free_at(now) <= now:
            if (key := self._records.pop(now)) is not None:
                entry = self._entries.get(key)
                if entry is not None and key.node in self._nodes and self._differs(key, entry):
                    self._budget.spend(now)
                    seen = self._nodes[key.node].annotations
                    missing = {name: value for name, value in entry.wanted.items() if seen.get(name) != value}
                    commands.append(PatchNode(key=key, annotations=missing))
            elif (at := self._handshake_at(now)) is not None and at <= now and (due := self._handshakes.pop(now)) is not None:
                command = self._handshake(*due, now, utc)
                if command is not None:
                    self._budget.spend(now)
                    commands.append(command)
            else:
                break
        return commands

    def _handshake_at(self, now: float) -> float | None:
        """When the next handshake is to be written, as far as is known; one that is due gives way to a burst of grants."""
        at = self._handshakes.next_at()
        if at is None or at > now or self._placing is None:
            return at
        late_seconds = LONGEST_WAIT_SECONDS * self._stretch()  # as everything about handshakes, in proportion
        return now + max(0.0, self._placing.seconds_to_wait(at + late_seconds - LONGEST_WAIT_SECONDS, now))

    def _handshake(self, key: Key, word: Word, now: float, utc: datetime) -> PatchNode | None:
        """The handshake annotation that is due. A node that is unavailable keeps its last one: it says since when nothing came."""
        entry = self._entries.get(key)
        if entry is None or not entry.alive:
            return None
        if word is Word.REQUESTING:
            self._handshakes.set((key, word), now + REQUESTING_SECONDS * self._stretch())
        if key.node not in self._nodes or not self._keys(key.device_type).handshake:
            return None
        if word is Word.REPORTED:
            entry.reported_at = now
            text = handshake.encode(handshake.Reported(time=utc, monotonic_seconds=max(now, 0.0)))
        else:
            text = handshake.encode(handshake.Requesting(time=utc))
        names = self._keys(key.device_type)
        written = (names.handshake, names.bare_handshake) if self._legacy_handshake else (names.handshake,)
        return PatchNode(key=key, annotations=dict.fromkeys(filter(None, written), text), word=word)

    def settle(self, command: Command, outcome: Outcome, now: float, *, sequence: int = 0) -> None:
        """Carrying out ``command`` ended so; ``sequence`` is the stream's, for what was published."""
        match command:
            case PatchNode(key=key):
                self._patched(command, outcome, now)
            case Publish(key=key, event=DevicesReported() as event) if entry := self._entries.get(key):
                if outcome is Outcome.DONE:
                    entry.on_bus = event
                else:
                    self._publications.hasten(key, now + self._backoff(entry, _BUS))
            case Publish(key=key, event=LivenessChanged() as event) if entry := self._entries.get(key):
                if outcome is Outcome.DONE:
                    self._told[key] = _Told(event.alive, max(sequence, self._said(key).sequence))
                    entry.failures.pop(_BUS, None)
                if self._said(key).alive != entry.alive:
                    self._verdicts.hasten(key, now if outcome is Outcome.DONE else now + self._backoff(entry, _BUS))
            case PurgeNode(node=node) if node in self._purging:
                if outcome is Outcome.DONE:
                    del self._purging[node]
                else:
                    self._purges.set(node, now + _RETRY_SECONDS)
            case _:
                pass

    def _patched(self, command: PatchNode, outcome: Outcome, now: float) -> None:
        key = command.key
        entry, node = self._entries.get(key), self._nodes.get(key.node)
        if entry is None or node is None:
            return
        tried = command.word or _RECORD
        if outcome is Outcome.DONE:
            entry.failures.pop(tried, None)
            if command.word is None:
                self._node_failures.pop(key.node, None)
            for name, value in command.annotations.items():
                if value is None:
                    node.annotations.pop(name, None)
                else:
                    node.annotations[name] = value
        elif outcome is Outcome.RETRY:
            at = now + self._backoff(entry, tried)
            if command.word is None:
                failures = self._node_failures.get(key.node, (0, 0.0))[0]
                self._node_failures[key.node] = failures + 1, now + _pause(failures, _RECORD_RETRY_MAX_SECONDS)
                self._record_due(key, at)
            else:
                self._handshakes.hasten((key, command.word), at)

    def _record_due(self, key: Key, at: float) -> None:
        self._records.hasten(key, max(at, self._node_failures.get(key.node, (0, 0.0))[1]))

    def _backoff(self, entry: _Entry, tried: str) -> float:
        before = entry.failures.get(tried, 0)
        entry.failures[tried] = before + 1
        return _pause(before, _RETRY_MAX_SECONDS)

    def _differs(self, key: Key, entry: _Entry) -> bool:
        node = self._nodes.get(key.node)
        if node is None or (not entry.alive and not entry.report.third_party):
            return False  # what an unavailable node's agent last said must not fight with whoever writes there now
        return any(node.annotations.get(name) != value for name, value in entry.wanted.items())

    def _keys(self, device_type: str) -> records.NodeKeys:
        return self._names.get(device_type) or self._names.setdefault(device_type, records.keys_of(device_type, None))

    def _said(self, key: Key) -> _Told:
        return self._told.get(key, _Told())

    def _stretch(self) -> float:
        count = len(self._entries)
        return 1.0 if count <= FULL_PACE_NODES else _ROOM_TO_CATCH_UP * count / FULL_PACE_NODES

    # What is known.

    def inventory(self, now: float, utc: datetime) -> tuple[EntryView, ...]:
        """All entries, by node and device type."""
        return tuple(
            EntryView(
                node=key.node,
                device_type=key.device_type,
                alive=entry.alive,
                since=utc - timedelta(seconds=max(0.0, now - entry.since)),
                third_party=entry.report.third_party,
                generation=entry.report.generation,
                devices=entry.report.devices,
            )
            for key, entry in sorted(self._entries.items())
        )


def _pause(failures: int, longest_seconds: float) -> float:
    """How long to wait after so many earlier failures in succession."""
    return min(_RETRY_SECONDS * 2.0 ** min(failures, 10), longest_seconds)

"""Which pod holds what, and how firmly: one entry per pod UID, so that a namesake never frees or inherits anything.

    filter          bind          Binding made       init containers over
      │               │                │                     │
    RESERVED ─────▶ ASSUMED ─────▶  BOUND ───────────────▶ SHRUNK
      │ 30 s without     │ failed      │ ended, or deleted      │
      └──────▶ gone ◀────┴─────────────┴────────────────────────┘

    NOMINATED ─▶ RESERVED, when filter finds the room free; gone when its time is over

Entries found in the cluster (at start, or placed by another HAMi scheduler) come in as BOUND or SHRUNK. A reservation lapses unless it is
renewed; all else stays until it is released. A nomination keeps room for a pod whose victims have not left it yet: until they have, more is
charged on those devices than they have, so that nobody else is given what becomes free. Releasing twice is releasing once. What a shrunk pod
gave back never comes back.
The ledger counts nothing: what the entries add up to on each device is kept in ``state``, the only caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_devices.model import Charge
from hami_devices.quota_scopes import ORDINARY, PodTraits
from hami_protocol.devices import PodRef, VendorAssignment

RESERVATION_SECONDS: Final = 30.0


class Phase(StrEnum):
    """How firmly an entry holds what it holds."""

    NOMINATED = "nominated"
    RESERVED = "reserved"
    ASSUMED = "assumed"
    BOUND = "bound"
    SHRUNK = "shrunk"


LAPSING: Final = frozenset({Phase.NOMINATED, Phase.RESERVED})


class LedgerError(RuntimeError):
    """The caller enters a pod that is entered already."""


class InvariantError(AssertionError):
    """The state contradicts itself: a defect, never an input's fault. Raised by the ``validate`` methods."""


def hold(condition: bool, what: str) -> None:
    """Raise unless ``condition``: like an assert that no interpreter flag takes away."""
    if not condition:
        raise InvariantError(what)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What one pod holds on one node."""

    pod: PodRef
    node: str
    phase: Phase
    assignments: tuple[VendorAssignment, ...]
    charges: tuple[Charge, ...]
    running_charges: tuple[Charge, ...]
    traits: PodTraits = ORDINARY
    """Which quotas count it."""
    lapses_at: float | None = None
    """Monotonic seconds; set while nominated or reserved."""

    @property
    def held(self) -> tuple[Charge, ...]:
        """What it is charged now."""
        return self.running_charges if self.phase is Phase.SHRUNK else self.charges


class Ledger:
    """The entries by pod UID, and by node and namespace."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_namespace: dict[str, dict[str, None]] = {}
        self._lapsing: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, uid: str) -> Entry | None:
        """The entry of the pod with this UID."""
        return self._entries.get(uid)

    def on_node(self, node: str) -> Iterator[Entry]:
        """The entries on ``node``."""
        return (self._entries[uid] for uid in self._by_node.get(node, ()))

    def in_namespace(self, namespace: str) -> Iterator[Entry]:
        """The entries of pods of ``namespace``."""
        return (self._entries[uid] for uid in self._by_namespace.get(namespace, ()))

    def put(self, entry: Entry) -> None:
        """Enter a pod that has no entry."""
        uid = entry.pod.uid
        if uid in self._entries:
            raise LedgerError(f"pod {entry.pod} ({uid}) is already entered")
        self._entries[uid] = entry
        self._by_node.setdefault(entry.node, {})[uid] = None
        self._by_namespace.setdefault(entry.pod.namespace, {})[uid] = None
        if entry.phase in LAPSING:
            self._lapsing[uid] = None

    def pop(self, uid: str) -> Entry | None:
        """Take the pod's entry out; None where it has none."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._lapsing.pop(uid, None)
            for index, key in ((self._by_node, entry.node), (self._by_namespace, entry.pod.namespace)):
                del index[key][uid]
                if not index[key]:
                    del index[key]
        return entry

    def renew(self, uid: str, now: float) -> Entry | None:
        """Let a reservation last another while; other phases do not lapse."""
        entry = self._entries.get(uid)
        if entry is not None and entry.phase is Phase.RESERVED:
            entry = self._change(entry, lapses_at=now + RESERVATION_SECONDS)
        return entry

    def advance(self, uid: str, phase: Phase) -> Entry | None:
        """Move the pod's entry on to ``phase``; one that is there or further stays. None where it has none."""
        entry = self._entries.get(uid)
        if entry is None or _ORDER[entry.phase] >= _ORDER[phase]:
            return entry
        self._lapsing.pop(uid, None)
        return self._change(entry, phase=phase, lapses_at=None)

    def _change(self, entry: Entry, **changes: object) -> Entry:
        changed = dataclasses.replace(entry, **changes)  # type: ignore[arg-type]  # fields of Entry, by the two callers above
        self._entries[entry.pod.uid] = changed
        return changed

    def expired(self, now: float) -> list[str]:
        """The UIDs whose reservation or nomination has lapsed; they stay until they are released."""
        return [uid for uid in self._lapsing if (at := self._entries[uid].lapses_at) is not None and at <= now]

    def validate(self) -> None:
        """Check that the indexes say what the entries say.

        Raises:
            InvariantError: they do not.
        """
        by_node: dict[str, set[str]] = {}
        by_namespace: dict[str, set[str]] = {}
        for uid, entry in self._entries.items():
            hold(uid == entry.pod.uid, f"{entry.pod} is entered under {uid}")
            hold((entry.phase in LAPSING) == (entry.lapses_at is not None), f"{entry.pod} is {entry.phase}, lapses {entry.lapses_at}")
            by_node.setdefault(entry.node, set()).add(uid)
            by_namespace.setdefault(entry.pod.namespace, set()).add(uid)
        hold(by_node == {node: set(uids) for node, uids in self._by_node.items()}, "entries by node")
        hold(by_namespace == {name: set(uids) for name, uids in self._by_namespace.items()}, "entries by namespace")
        lapsing = {uid for uid, entry in self._entries.items() if entry.phase in LAPSING}
        hold(set(self._lapsing) == lapsing, "entries that lapse")


_ORDER: Final = {phase: place for place, phase in enumerate(Phase)}

"""What the rules about nodes ask for, as values: carried out elsewhere, and told back by their outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hami_protocol.events import DevicesReported, LivenessChanged


class Key(NamedTuple):
    """Which entry."""

    node: str
    device_type: str


class Word(StrEnum):
    """Which handshake is due."""

    REPORTED = "Reported"
    REQUESTING = "Requesting"


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchNode:
    """Merge these annotations into the node; None removes one."""

    key: Key
    annotations: dict[str, str | None]
    word: Word | None = None
    """Which handshake this is; None for the record of devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publish:
    """Say this on the bus."""

    key: Key
    event: DevicesReported | LivenessChanged
    event_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeNode:
    """The node is gone: remove what the bus keeps of it."""

    node: str
    device_types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RaiseAlarm:
    """Tell the operators, by an event on the node."""

    node: str
    reason: str
    message: str


Command = PatchNode | Publish | PurgeNode | RaiseAlarm


class Outcome(StrEnum):
    """How carrying out a command went."""

    DONE = "done"
    RETRY = "retry"
    GONE = "gone"
    """There is no such node."""

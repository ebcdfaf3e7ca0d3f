"""The handshake annotation between a node's side (``Reported``) and the cluster's (``Requesting``), in every spelling that is about.

Times in it are for people: liveness is judged by the receiver's own monotonic clock, never by comparing these.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from hami_protocol._text import shown
from hami_protocol.errors import RecordError

_RECORD: Final = "handshake"
_SHAPE: Final = re.compile(r"(?P<word>Reported|Requesting|Deleted)(?:[_ ](?P<time>.{0,120}))?", re.ASCII)
_TIME: Final = re.compile(r"(\d{4})[-.](\d{2})[-.](\d{2})[ T](\d{2}):(\d{2}):(\d{2})", re.ASCII)


class Reported(Struct, frozen=True, kw_only=True):
    """The node's side has registered."""

    time: datetime | None = None
    monotonic_seconds: float | None = None
    """The writer's own monotonic reading, which the reference's form carries; only ever shown."""


class Requesting(Struct, frozen=True, kw_only=True):
    """The cluster's side asks the node to register again."""

    time: datetime | None = None


class Deleted(Struct, frozen=True, kw_only=True):
    """Older schedulers wrote this for a node they had given up. It does not outlast the next registration (HAMi#1839)."""

    time: datetime | None = None


Handshake = Reported | Requesting | Deleted


def encode(handshake: Handshake) -> str:
    """The text of ``handshake``, its time in UTC."""
    time = handshake.time.astimezone(UTC) if handshake.time else None
    match handshake:
        case Reported(monotonic_seconds=seconds):
            if time is None:
                return "Reported"
            tail = "" if seconds is None else f" m=+{seconds:.9f}"
            return f"Reported {time:%Y-%m-%d %H:%M:%S}.{time.microsecond:06d}000 +0000 UTC{tail}"
        case Requesting():
            return f"Requesting_{time:%Y-%m-%d %H:%M:%S}" if time else "Requesting"
        case Deleted():
            return f"Deleted_{time:%Y-%m-%d %H:%M:%S}" if time else "Deleted"


def decode(text: str) -> Handshake:
    """What ``text`` says. A time that cannot be read is None: it decides nothing.

    Raises:
        RecordError: none of the protocol's words.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise RecordError(_RECORD, 0, f"{shown(text)}; accepted: Reported or Requesting, with a time")
    time = _time(match["time"] or "")
    match match["word"]:
        case "Reported":
            return Reported(time=time, monotonic_seconds=_monotonic(match["time"] or ""))
        case "Requesting":
            return Requesting(time=time)
        case _:
            return Deleted(time=time)


def _time(text: str) -> datetime | None:
    match = _TIME.match(text)
    if match is None:
        return None
    fraction = re.match(r"\.(\d{1,9})", text[match.end() :], re.ASCII)
    micros = int(fraction[1].ljust(9, "0")[:6]) if fraction else 0
    try:
        return datetime(*(int(part) for part in match.groups()), micros, tzinfo=UTC)  # type: ignore[misc, arg-type]  # six ints
    except ValueError:
        return None


def _monotonic(text: str) -> float | None:
    match = re.search(r" m=\+(\d{1,12}(?:\.\d{1,9})?)$", text, re.ASCII)
    return float(match[1]) if match else None

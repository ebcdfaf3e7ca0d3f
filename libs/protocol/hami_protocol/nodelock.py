"""The node lock's value: who serialises bind to Allocate on a node whose agent works in ``envvar`` mode.

``<RFC 3339 time>,<namespace>,<pod>``; a legacy value is the bare time, which anybody may release. The key is ``keys.NODE_LOCK``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from hami_protocol._text import shown
from hami_protocol.errors import RecordError

_RECORD: Final = "node lock"
_PARTS: Final = 3


class NodeLock(Struct, frozen=True, kw_only=True):
    """Who holds a node, since when."""

    time: datetime
    namespace: str = ""
    """Empty in the legacy form, which names no holder."""
    pod: str = ""


def encode(lock: NodeLock) -> str:
    """The text of ``lock``, its time in UTC and whole seconds."""
    time = f"{lock.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{time},{lock.namespace},{lock.pod}" if lock.pod else time


def decode(text: str) -> NodeLock:
    """The lock that ``text`` is.

    Raises:
        RecordError: not one or three parts, or a time that is none.
    """
    parts = text.split(",")
    if len(parts) not in {1, _PARTS}:
        raise RecordError(_RECORD, 0, f"{len(parts)} parts in {shown(text)}; accepted: time,namespace,pod or a bare time")
    try:
        time = datetime.fromisoformat(parts[0])
    except ValueError as exc:
        raise RecordError(_RECORD, 0, f"time is {shown(parts[0])}; accepted: RFC 3339") from exc
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return NodeLock(time=time) if len(parts) == 1 else NodeLock(time=time, namespace=parts[1], pod=parts[2])

"""An event as a message: JSON body, CloudEvents 1.0 attributes, trace context and de-duplication id in the headers.

CloudEvents' NATS binding, binary mode: attributes are headers with the prefix ``ce-``. Pure: ids and times are given.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from hami_protocol import events, subjects
from hami_protocol.errors import EventError

MESSAGE_ID = "Nats-Msg-Id"
TRACE_PARENT = "traceparent"
TYPE_PREFIX = "io.hami.v1."
MAX_EVENT_BYTES = 900_000
"""Below NATS' own limit of 1 MiB, headers included."""


class Message(Struct, frozen=True, kw_only=True):
    """What travels on the bus."""

    subject: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[events.Event] = msgspec.json.Decoder(events.Event)


def seal(event: events.Event, *, event_id: str, source: str, time: str, traceparent: str = "", by_agent: bool = False) -> Message:
    """Return the message that carries ``event``.

    Args:
        event: what happened.
        event_id: unique for what happened, and the same when it is said again, so that the bus drops the double.
        source: who says it, as ``/hami/scheduler/<identity>``.
        time: RFC 3339, UTC.
        traceparent: W3C trace context, empty for none.
        by_agent: see ``subjects.subject_of``.
    """
    data = _ENCODER.encode(event)
    if len(data) > MAX_EVENT_BYTES:
        raise EventError(f"an event of {len(data)} bytes is over the limit of {MAX_EVENT_BYTES}")
    headers = {
        "ce-specversion": "1.0",
        "ce-type": TYPE_PREFIX + type(event).__struct_config__.tag,  # type: ignore[operator]  # every event's tag is text
        "ce-source": source,
        "ce-id": event_id,
        "ce-time": time,
        "content-type": "application/json",
        MESSAGE_ID: event_id,
    }
    if traceparent:
        headers[TRACE_PARENT] = traceparent
    return Message(subject=subjects.subject_of(event, by_agent=by_agent), data=data, headers=headers)


def open_message(message: Message) -> events.Event:
    """Return the event that ``message`` carries.

    Raises:
        EventError: it carries none that we can read, or one that does not belong on its subject.
    """
    try:
        event = _DECODER.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EventError(f"on {message.subject}: {exc}") from exc
    try:
        expected = subjects.subject_of(event)
    except ValueError as exc:
        raise EventError(f"on {message.subject}: {exc}") from exc
    if expected != message.subject and subjects.subject_of(event, by_agent=True) != message.subject:
        raise EventError(f"on {message.subject}: carries an event that belongs on {expected}")
    return event

"""An event as a message: JSON body, CloudEvents 1.0 attributes, trace context and de-duplication id in the headers.

CloudEvents' NATS binding, binary mode: attributes are headers with the prefix ``ce-``. Pure: ids and times are given.

Two ids, for two purposes. ``ce-id`` names what happened and is the same whenever that is published again: readers use it, together with
the subject, to count an event once. ``Nats-Msg-Id`` is what a stream de-duplicates by, over all its subjects: it names one message of one
publisher and cannot be predicted, so no publisher can take an id before another one uses it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from hami_protocol import events, subjects
from hami_protocol.errors import EventError

EVENT_ID = "ce-id"
MESSAGE_ID = "Nats-Msg-Id"
TRACE_PARENT = "traceparent"
TYPE_PREFIX = "io.hami.v1."
MAX_EVENT_BYTES = subjects.MAX_MESSAGE_BYTES - 4096
"""Without the headers."""


class Message(Struct, frozen=True, kw_only=True):
    """What travels on the bus."""

    subject: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER: msgspec.json.Decoder[events.Event] = msgspec.json.Decoder(events.Event)


def seal(event: events.Event, *, event_id: str, source: str, time: str, message_id: str = "", traceparent: str = "") -> Message:
    """Return the message that carries ``event``.

    Args:
        event: what happened.
        event_id: unique for what happened, and the same when it is published again.
        source: its publisher, as ``/hami/scheduler/<identity>``.
        time: RFC 3339, UTC.
        message_id: what the stream de-duplicates by; empty where a second copy does no harm, as in a stream that keeps the last message alone.
        traceparent: W3C trace context, empty for none.
    """
    data = _ENCODER.encode(event)
    if len(data) > MAX_EVENT_BYTES:
        raise EventError(f"an event of {len(data)} bytes is over the limit of {MAX_EVENT_BYTES}")
    headers = {
        "ce-specversion": "1.0",
        "ce-type": TYPE_PREFIX + type(event).__struct_config__.tag,  # type: ignore[operator]  # every event's tag is text
        "ce-source": source,
        EVENT_ID: event_id,
        "ce-time": time,
        "content-type": "application/json",
    }
    if message_id:
        headers[MESSAGE_ID] = message_id
    if traceparent:
        headers[TRACE_PARENT] = traceparent
    return Message(subject=subjects.subject_of(event, source), data=data, headers=headers)


def open_message(message: Message) -> events.Event:
    """Return the event that ``message`` carries.

    Raises:
        EventError: it carries none that we can read, or one that does not belong on its subject.
    """
    event = decode(message)
    try:
        expected = subjects.subject_of(event)
    except ValueError as exc:
        raise EventError(f"on {message.subject}: {exc}") from exc
    if message.subject not in (expected, subjects.subject_of(event, subjects.AGENT_SOURCE)):
        raise EventError(f"on {message.subject}: carries an event that belongs on {expected}")
    return event


def decode(message: Message) -> events.Event:
    """The event in ``message``, whatever subject it is on.

    Raises:
        EventError: there is none that we can read.
    """
    try:
        return _DECODER.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EventError(f"on {message.subject}: {exc}") from exc


def event_id(message: Message) -> str:
    """The id of what happened, empty where the message has none."""
    return message.headers.get(EVENT_ID, "")

"""A message of the bus in one line of JSON, as CloudEvents 1.0 words it in its JSON format: for whoever reads it over HTTP. Pure.

Attributes are what the headers of the message say, ``subject`` is that of the bus, ``data`` the body as it is there, byte for byte. A body that is
no JSON in one line is in ``data_base64``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec
from msgspec import Struct

from hami_protocol.envelope import TRACE_PARENT, Message
from hami_protocol.errors import EventError

CONTENT_TYPE: Final = "application/cloudevents+json"
BATCH_CONTENT_TYPE: Final = "application/cloudevents-batch+json"
_ATTRIBUTE: Final = "ce-"
_NAMED: Final = ("specversion", "id", "source", "type", "time")


class _Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    specversion: str = ""
    id: str = ""
    source: str = ""
    type: str = ""
    time: str = ""
    subject: str = ""
    datacontenttype: str = ""
    traceparent: str = ""
    data: msgspec.Raw = msgspec.Raw()
    data_base64: str = ""


_DECODER: Final = msgspec.json.Decoder(_Event)
_BATCH: Final = msgspec.json.Decoder(tuple[_Event, ...])


def encode(message: Message) -> bytes:
    """``message`` in one line."""
    attributes: dict[str, Any] = {name: message.headers.get(_ATTRIBUTE + name, "") for name in _NAMED}
    attributes |= {
        "subject": message.subject,
        "datacontenttype": message.headers.get("content-type", ""),
        "traceparent": message.headers.get(TRACE_PARENT, ""),
    }
    if _is_a_line(message.data):
        return msgspec.json.encode(_Event(**attributes, data=msgspec.Raw(message.data)))
    return msgspec.json.encode(_Event(**attributes, data_base64=base64.b64encode(message.data).decode()))


def decode(line: bytes) -> Message:
    """The message that ``encode`` made ``line`` of.

    Raises:
        EventError: it made it of none.
    """
    try:
        return _message(_DECODER.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EventError(f"no CloudEvent: {exc}") from exc


def decode_batch(content: bytes) -> tuple[Message, ...]:
    """The messages of a JSON array.

    Raises:
        EventError: it is none, or one of them is no message.
    """
    try:
        return tuple(_message(event) for event in _BATCH.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EventError(f"no list of CloudEvents: {exc}") from exc


def encode_batch(messages: tuple[Message, ...] | list[Message]) -> bytes:
    """``messages`` as a JSON array."""
    return b"[" + b",".join(map(encode, messages)) + b"]"


def _message(event: _Event) -> Message:
    headers = {_ATTRIBUTE + name: value for name in _NAMED if (value := getattr(event, name))}
    headers |= {name: value for name, value in (("content-type", event.datacontenttype), (TRACE_PARENT, event.traceparent)) if value}
    try:
        data = base64.b64decode(event.data_base64, validate=True) if event.data_base64 else bytes(event.data)
    except (binascii.Error, ValueError) as exc:
        raise EventError(f"data_base64 of {event.subject}: {exc}") from exc
    return Message(subject=event.subject, data=data, headers=headers)


def _is_a_line(data: bytes) -> bool:
    """Whether ``data`` is JSON without a break in it, which would end a line of server-sent events."""
    if not data or b"\n" in data or b"\r" in data:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True

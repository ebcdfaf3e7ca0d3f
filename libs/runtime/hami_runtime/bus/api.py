"""JetStream's management API: requests and answers as JSON over ``$JS.API.>``. Decides how a stream's or consumer's settings are reconciled.

Settings that exist and are not ours to say (limits, placement, metadata) stay as somebody set them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from nats.aio.msg import Msg

from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.port import BusError, BusUnavailable, MessageRefused, StartAt
from hami_runtime.bus.session import Session

PREFIX = "$JS.API."
NANOSECONDS = 1_000_000_000
TIMEOUT_SECONDS = 5.0
_NOT_FOUND = 404
_SERVER_FAULT = 500
_OTHERS_SPOKE = (10071, 10164)
"""Wrong last sequence: as the stream has it, or since another message on the subject is just being kept."""
_NOT_NOW = (10158, 10167)
"""The same message is just being kept; too many requests."""
Config = dict[str, Any]


class ApiFault(Struct, frozen=True):
    """An error as JetStream tells it."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class PublishAnswer(Struct, frozen=True):
    """What a publisher is told."""

    seq: int = 0
    stream: str = ""
    duplicate: bool = False
    error: ApiFault | None = None


class StreamState(Struct, frozen=True):
    """What a stream holds."""

    messages: int = 0
    last_seq: int = 0


class Answer(Struct, frozen=True):
    """The parts of the API's answers that we read."""

    config: Config = field(default_factory=dict)
    created: str = ""
    name: str = ""
    state: StreamState = StreamState()
    message: dict[str, Any] | None = None
    error: ApiFault | None = None


class WrongLast(BusError):  # noqa: N818 - reads as the condition it names
    """Another message is the last one on the subject than the one that was expected there.

    Attributes:
        stream: which keeps the subject.
    """

    def __init__(self, text: str, stream: str) -> None:
        super().__init__(text)
        self.stream = stream


class NotThere(BusError):  # noqa: N818 - reads as the condition it names
    """No such stream, consumer or message."""


_ANSWER = msgspec.json.Decoder(Answer)
_PUBLISH_ANSWER = msgspec.json.Decoder(PublishAnswer)


async def call(session: Session, what: str, body: Mapping[str, Any] | None = None) -> Answer:
    """Ask JetStream's API.

    Raises:
        NotThere: what is asked for does not exist.
        BusUnavailable: no answer, or JetStream is not ready.
        BusError: it refuses.
    """
    try:
        message = await session.ask(PREFIX + what, msgspec.json.encode(body) if body else b"", timeout_seconds=TIMEOUT_SECONDS)
    except TimeoutError as exc:
        raise BusUnavailable(f"{what}: no answer within {TIMEOUT_SECONDS:g} s") from exc
    answer = _ANSWER.decode(message.data)
    if answer.error:
        raise _refusal(what, answer.error)
    return answer


def published(subject: str, message: Msg) -> int:
    """The sequence that a publisher's answer names.

    Raises:
        BusUnavailable: it was not kept this time.
        WrongLast: it was not kept, since another than the expected message is the last one on its subject.
        MessageRefused: it never will be.
    """
    answer = _PUBLISH_ANSWER.decode(message.data)
    if answer.error:
        refusal = _refusal(subject, answer.error)
        if answer.error.err_code in _OTHERS_SPOKE:
            raise WrongLast(str(refusal), answer.stream)
        raise refusal if isinstance(refusal, BusUnavailable) else MessageRefused(str(refusal))
    return answer.seq


async def ensure_stream(session: Session, spec: StreamSpec, *, storage: str, replicas: int) -> None:
    """Make the stream if it is missing; change those of its settings that differ.

    Raises:
        BusError: as ``call``.
    """
    wanted: Config = {
        "name": spec.name,
        "description": spec.description,
        "subjects": list(spec.subjects),
        "max_msgs_per_subject": spec.max_messages_per_subject,
        "max_age": spec.max_age_seconds * NANOSECONDS,
        "duplicate_window": spec.duplicate_window_seconds * NANOSECONDS,
        "num_replicas": replicas,
    }
    try:
        found = (await call(session, f"STREAM.INFO.{spec.name}")).config
    except NotThere:
        await call(session, f"STREAM.CREATE.{spec.name}", {**wanted, "storage": storage, "discard": "old", "retention": "limits"})
        return
    if any(found.get(key) != value for key, value in wanted.items()):
        await call(session, f"STREAM.UPDATE.{spec.name}", {**found, **wanted})


async def ensure_durable(session: Session, stream: str, name: str, wanted: Config, start: StartAt | int) -> None:
    """Make the durable consumer if it is missing; change those of its settings that differ. It goes on where it was.

    Raises:
        NotThere: there is no such stream.
        BusError: as ``call``.
    """
    try:
        found = (await call(session, f"CONSUMER.INFO.{stream}.{name}")).config
    except NotThere:
        config = {"durable_name": name, "name": name, "ack_policy": "explicit", **starting(start), **wanted}
        await call(session, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        return
    if any(found.get(key) != value for key, value in wanted.items()):
        for other in {"filter_subject", "filter_subjects"} - wanted.keys():
            found.pop(other, None)
        await call(session, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {**found, **wanted}})


async def make_reader(session: Session, stream: str, name: str, subjects: Sequence[str], start: StartAt | int) -> None:
    """Make a consumer that lives as long as somebody reads it, and acknowledges nothing.

    Raises:
        NotThere: there is no such stream.
        BusError: as ``call``.
    """
    config = {
        "name": name,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 120 * NANOSECONDS,
        "filter_subjects": list(subjects),
        **starting(start),
    }
    await call(session, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def starting(start: StartAt | int) -> Config:
    """Where a new consumer begins, in JetStream's words."""
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
    return {"deliver_policy": start.value}


def kept_sequence(answer: Answer) -> int:
    """The sequence of the message that ``STREAM.MSG.GET`` returned."""
    return int((answer.message or {}).get("seq", 0))


def kept_message(answer: Answer) -> Message:
    """The message that ``STREAM.MSG.GET`` returned."""
    kept = answer.message or {}
    lines = base64.b64decode(kept.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = dict(line.split(":", 1) for line in lines if ":" in line)
    return Message(
        subject=kept.get("subject", ""),
        data=base64.b64decode(kept.get("data", "")),
        headers={key.strip(): value.strip() for key, value in headers.items()},
    )


def _refusal(what: str, fault: ApiFault) -> BusError:
    text = f"{what}: {fault.description} ({fault.code}, {fault.err_code})"
    if fault.code == _NOT_FOUND:
        return NotThere(text)
    return BusUnavailable(text) if fault.code >= _SERVER_FAULT or fault.err_code in _NOT_NOW else BusError(text)

"""JetStream's management API: requests and answers as JSON over ``$JS.API.>``. Decides how a stream's or consumer's settings are reconciled.

Settings that exist and are not ours to say (placement, metadata) stay as somebody set them, and so do bounds; where there is no bound ours is set.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field
from nats.aio.msg import Msg

from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.port import BusError, BusUnavailable, LiveMessage, MessageRefused, StartAt
from hami_runtime.bus.session import Session

PREFIX = "$JS.API."
NANOSECONDS = 1_000_000_000
TIMEOUT_SECONDS = 5.0
_NOT_FOUND = 404
_SERVER_FAULT = 500
_OTHERS_SPOKE = (10071, 10164)
"""Wrong last sequence: as the stream has it, or since another message on the subject is just being kept."""
STORED_HEADERS = frozenset({"Nats-Stream", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-Subject"})
"""What a server adds to a message that it has kept."""
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
    first_seq: int = 0
    last_seq: int = 0


class Delivered(Struct, frozen=True):
    """How far a consumer is."""

    stream_seq: int = 0


class Answer(Struct, frozen=True):
    """The parts of the API's answers that we read."""

    config: Config = field(default_factory=dict)
    created: str = ""
    name: str = ""
    state: StreamState = StreamState()
    delivered: Delivered = Delivered()
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


def published(subject: str, message: Msg) -> PublishAnswer:
    """Where the message is kept, by the publisher's answer.

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
    return answer


async def ensure_stream(session: Session, spec: StreamSpec, *, storage: str, replicas: int) -> None:
    """Make the stream if it is missing; change those of its settings that differ.

    Raises:
        BusError: as ``call``.
    """
    wanted = _wanted(spec, replicas)
    bounds = {"max_bytes": spec.max_bytes, "max_msg_size": spec.max_message_bytes, "max_consumers": spec.max_consumers}
    try:
        found = (await call(session, f"STREAM.INFO.{spec.name}")).config
    except NotThere:
        await call(session, f"STREAM.CREATE.{spec.name}", {**wanted, **bounds, **_kind(spec), "storage": storage})
        return
    wanted |= {key: value for key, value in bounds.items() if found.get(key, -1) <= 0}
    if any(found.get(key) != value for key, value in wanted.items()):
        await call(session, f"STREAM.UPDATE.{spec.name}", {**found, **wanted})


def _wanted(spec: StreamSpec, replicas: int) -> Config:
    wanted: Config = {
        "name": spec.name,
        "description": spec.description,
        "subjects": list(spec.subjects),
        "max_msgs_per_subject": spec.max_messages_per_subject,
        "max_age": spec.max_age_seconds * NANOSECONDS,
        "duplicate_window": spec.duplicate_window_seconds * NANOSECONDS,
        "num_replicas": replicas,
        "allow_direct": True,
    }
    if spec.live:
        wanted["republish"] = {"src": spec.live.source, "dest": _numbered(spec.live.target)}
    if spec.queue:
        wanted["subject_transform"] = {"src": spec.queue.source, "dest": _numbered(spec.queue.target)}
    return wanted


def _kind(spec: StreamSpec) -> Config:
    """What cannot be changed later."""
    if spec.queue:
        return {"retention": "workqueue", "discard": "new", "discard_new_per_subject": True}
    return {"retention": "limits", "discard": "old"}


def _numbered(target: str) -> str:
    """Each ``*`` of ``target`` by its number, as a server wants it."""
    numbers = itertools.count(1)
    return ".".join(f"{{{{wildcard({next(numbers)})}}}}" if part == "*" else part for part in target.split("."))


async def ensure_durable(session: Session, stream: str, name: str, wanted: Config, start: StartAt | int, *, last_sequence: int) -> bool:
    """Make the durable consumer if it is missing; change those of its settings that differ. It goes on where it was.

    One that is behind the stream's end, ``last_sequence``, is made anew and begins at ``start``: the stream has lost messages that were
    delivered, and the consumer would skip as many new ones. Returns whether that was so.

    Raises:
        NotThere: there is no such stream.
        BusError: as ``call``.
    """
    lost = False
    try:
        info = await call(session, f"CONSUMER.INFO.{stream}.{name}")
        if info.delivered.stream_seq > last_sequence:
            lost = True
            await call(session, f"CONSUMER.DELETE.{stream}.{name}")
            raise NotThere(name)
        found = info.config
    except NotThere:
        config = {"durable_name": name, "name": name, "ack_policy": "explicit", **starting(start), **wanted}
        await call(session, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        return lost
    if any(found.get(key) != value for key, value in wanted.items()):
        for other in {"filter_subject", "filter_subjects"} - wanted.keys():
            found.pop(other, None)
        await call(session, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": {**found, **wanted}})
    return False


async def kept_at(session: Session, stream: str, sequence: int) -> tuple[int, str]:
    """The first message of a stream from ``sequence`` on: its sequence, and when it was kept.

    Raises:
        NotThere: there is none.
        BusError: as ``call``.
    """
    answer = await call(session, f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": ">"})
    return kept_sequence(answer), str((answer.message or {}).get("time", ""))


async def first_after(session: Session, stream: str, time: datetime, state: StreamState) -> int:
    """The sequence of the first message that was kept after ``time``; the one that comes next where there is none.

    Raises:
        BusError: as ``call``.
    """
    low, high = state.first_seq, state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        try:
            found, kept = await kept_at(session, stream, middle)
        except NotThere:
            high = middle
            continue
        if datetime.fromisoformat(kept) > time:
            high = middle
        else:
            low = found + 1
    return low


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


def live_message(subject: str, received: Msg) -> LiveMessage:
    """What arrived on a subject on which a stream publishes once more, under the ``subject`` that it has in the stream."""
    headers = dict(received.headers or {})
    own = {key: value for key, value in headers.items() if key not in STORED_HEADERS}
    return LiveMessage(Message(subject=subject, data=received.data, headers=own), kept="Nats-Sequence" in headers)


def direct_message(answer: Msg) -> Message | None:
    """The message that ``DIRECT.GET`` returned, None where there is none.

    Raises:
        BusUnavailable: the answer is neither.
    """
    headers = dict(answer.headers or {})
    subject = headers.pop("Nats-Subject", "")
    if subject:
        return Message(
            subject=subject, data=answer.data, headers={key: value for key, value in headers.items() if key not in STORED_HEADERS}
        )
    if headers.get("Status") == str(_NOT_FOUND):
        return None
    raise BusUnavailable(f"the answer to a look-up cannot be read: {headers.get('Status', '')} {headers.get('Description', '')}")


def _refusal(what: str, fault: ApiFault) -> BusError:
    text = f"{what}: {fault.description} ({fault.code}, {fault.err_code})"
    if fault.code == _NOT_FOUND:
        return NotThere(text)
    return BusUnavailable(text) if fault.code >= _SERVER_FAULT or fault.err_code in _NOT_NOW else BusError(text)

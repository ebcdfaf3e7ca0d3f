"""Reading a stream over JetStream's pull protocol: one request for a batch at a time, the next when there is room again.

A reader outlives connections. With a durable name JetStream remembers what was acknowledged; without one this module remembers the last
sequence and goes on behind it. A stream that was made anew (its server lost its data) is read from its beginning. One that has come back without its
last messages (its server has an older disk) is read on from what was kept since, and a durable consumer beyond its end is made anew: what was
delivered is not in the stream any more, which the source's owner is told (``on_loss``).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import api
from hami_runtime.bus.port import BusError, BusUnavailable, MessageRefused, StartAt
from hami_runtime.bus.session import Session

log = structlog.get_logger()
_HEARTBEAT_SECONDS = 5.0
"""A consumer whose server died says nothing any more, and is looked for after two of them."""
_PULL_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_HEARTBEAT = "100"
_PULL_OVER = ("404", "408")
"""Nothing there, or time over: pull again. Any other status means that the consumer has to be looked after."""
_ACKNOWLEDGED_BATCH = 64
_UNACKNOWLEDGED_BATCH = 512
_SAME_MOMENT = timedelta(milliseconds=1)
"""Times are compared at the client's precision, not at the server's."""
_STALE_SHARE = 0.8
"""Of the time to acknowledge: who has waited so long in our hands is about to be delivered again, and is left to that."""


class Connection(Protocol):
    """What a reader needs of the bus it belongs to."""

    async def session(self) -> Session:
        """The open session, once there is one."""
        ...

    async def tell(self, subject: str, data: bytes) -> None:
        """Send, if there is a connection."""
        ...

    def lost(self, stream: str) -> None:
        """Count that a stream has lost messages."""
        ...


class Source(Struct, frozen=True, kw_only=True):
    """What to read."""

    stream: StreamSpec
    subjects: tuple[str, ...]
    durable: str | None
    start: StartAt | int
    ack_wait_seconds: float
    on_loss: Callable[[], None] | None = None
    """Called where the stream has lost messages that were delivered; what is delivered from then on is in the stream."""


class PulledDelivery:
    """A message in a reader's hands."""

    __slots__ = ("_acknowledges", "_connection", "_reply", "attempt", "kept_at", "message", "pending", "received_at", "sequence")

    def __init__(self, connection: Connection, msg: Msg, *, acknowledges: bool) -> None:
        metadata = msg.metadata
        self.message = Message(subject=msg.subject, data=msg.data, headers=dict(msg.headers or {}))
        self.sequence: int = metadata.sequence.stream
        self.attempt: int = metadata.num_delivered
        self.pending: int = metadata.num_pending
        self.kept_at = metadata.timestamp
        self.received_at = time.monotonic()
        self._connection = connection
        self._reply = msg.reply
        self._acknowledges = acknowledges

    async def ack(self) -> None:
        """Done with it."""
        await self._tell(b"+ACK")

    async def nak(self, *, delay_seconds: float = 0.0) -> None:
        """It must come again."""
        delay = msgspec.json.encode({"delay": int(delay_seconds * api.NANOSECONDS)})
        await self._tell(b"-NAK " + delay if delay_seconds > 0 else b"-NAK")

    async def term(self, reason: str) -> None:
        """It must never come again."""
        await self._tell(b"+TERM " + reason.replace("\r", " ").replace("\n", " ").encode())

    async def _tell(self, what: bytes) -> None:
        if self._acknowledges:
            await self._connection.tell(self._reply, what)


class Reader:
    """An async iterator of deliveries; ``run`` keeps it supplied. Giving up a read, by cancellation, loses nothing."""

    def __init__(self, connection: Connection, source: Source, *, name: str) -> None:
        self._connection = connection
        self._source = source
        self._name = source.durable or f"{name.replace('.', '_')}-{secrets.token_hex(6)}"  # as a node's name in a subject
        self._batch = _ACKNOWLEDGED_BATCH if source.durable else _UNACKNOWLEDGED_BATCH
        self._ready: deque[PulledDelivery] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._heard = asyncio.Event()
        self._wanted = 0
        self._lost = False
        self._attached = asyncio.Event()
        self._next_sequence: int | None = None
        self._last_kept_at: datetime | None = None
        """When the last message that was delivered was kept: its sequence may be another message's by now."""
        self._stream_made = ""
        self._reported = ""
        """Why nothing is read, as last logged."""

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> PulledDelivery:
        while True:
            while not self._ready:
                self._arrived.clear()
                await self._arrived.wait()
            delivery = self._ready.popleft()
            if len(self._ready) <= self._batch // 2:
                self._room.set()
            if not self._source.durable or time.monotonic() - delivery.received_at < _STALE_SHARE * self._source.ack_wait_seconds:
                return delivery

    async def wait_attached(self) -> None:
        """Return once JetStream knows where this reader begins."""
        await self._attached.wait()

    async def run(self) -> None:
        """Read, over all connections to come, until cancelled."""
        while True:
            session = await self._connection.session()
            try:
                await session.while_open(self._read(session))
            except api.NotThere as exc:
                self._report(log.info, "the stream is not there yet", exc)
            except BusUnavailable as exc:
                log.debug("reading was interrupted", stream=self._source.stream.name, error=str(exc))
            except (BusError, msgspec.DecodeError) as exc:
                self._report(log.warning, "the stream cannot be read", exc)
            except Exception:  # a reader that ends in silence would keep every later message from its service
                log.exception("reading failed", stream=self._source.stream.name, consumer=self._name)
            if not session.closed.is_set():
                await asyncio.sleep(_RETRY_SECONDS)

    def _report(self, level: Callable[..., object], what: str, exc: Exception) -> None:
        """Log why nothing is read: once, and again only when the reason is another one or something has been read meanwhile."""
        before, self._reported = self._reported, f"{what}: {exc}"
        (level if self._reported != before else log.debug)(what, stream=self._source.stream.name, consumer=self._name, error=str(exc))

    async def finish(self) -> None:
        """Remove a consumer that nobody will read again, if there is a connection."""
        if self._source.durable is None:
            await self._connection.tell(f"{api.PREFIX}CONSUMER.DELETE.{self._source.stream.name}.{self._name}", b"")

    async def _read(self, session: Session) -> None:
        """Supply deliveries until the consumer is lost."""
        await self._attach(session)
        self._lost = False
        self._reported = ""
        self._attached.set()
        inbox = session.new_inbox()
        stop_hearing = await session.subscribe(inbox, self._hear)
        try:
            await self._pull(session, inbox)
        finally:
            if not session.closed.is_set():
                with suppress(BusError):
                    await stop_hearing()

    async def _attach(self, session: Session) -> None:
        stream = self._source.stream.name
        found = await api.call(session, f"STREAM.INFO.{stream}")
        if self._source.durable:
            wanted = {"filter_subjects": list(self._source.subjects), "ack_wait": int(self._source.ack_wait_seconds * api.NANOSECONDS)}
            if len(self._source.subjects) == 1:
                wanted = {"filter_subject": self._source.subjects[0], "ack_wait": wanted["ack_wait"]}
            made_before, self._stream_made = self._stream_made, found.created
            lost = await api.ensure_durable(session, stream, self._name, wanted, self._source.start, last_sequence=found.state.last_seq)
            if lost or made_before not in ("", found.created):
                self._note_loss(found)
            return
        with suppress(api.NotThere):  # one from an earlier connection may still be there, and is behind what we have read
            await api.call(session, f"CONSUMER.DELETE.{stream}.{self._name}")
        await api.make_reader(session, stream, self._name, self._source.subjects, await self._from_where(session, found))

    async def _from_where(self, session: Session, found: api.Answer) -> StartAt | int:
        made_before, self._stream_made = self._stream_made, found.created
        start = self._source.start
        if made_before not in ("", found.created):
            self._next_sequence = self._last_kept_at = None
            self._note_loss(found)
            return start if start == StartAt.LAST_PER_SUBJECT else StartAt.ALL
        if await self._has_lost_its_tail(session, found):
            self._note_loss(found)
            kept_at, self._last_kept_at = self._last_kept_at, None
            stream = self._source.stream.name
            self._next_sequence = await api.first_after(session, stream, kept_at, found.state) if kept_at else found.state.last_seq + 1
            return start if start == StartAt.LAST_PER_SUBJECT else self._next_sequence
        if made_before == "" and start == StartAt.NEW:
            self._next_sequence = found.state.last_seq + 1
        return start if self._next_sequence is None else self._next_sequence

    async def _has_lost_its_tail(self, session: Session, found: api.Answer) -> bool:
        """Whether the last message that was delivered is not in the stream, and something else has its place, or will have."""
        position = (self._next_sequence or 1) - 1
        if position > found.state.last_seq:
            return True
        if self._last_kept_at is None:
            return False
        try:
            sequence, kept = await api.kept_at(session, self._source.stream.name, position)
        except (api.NotThere, MessageRefused):
            return False
        return sequence == position and abs(datetime.fromisoformat(kept) - self._last_kept_at) > _SAME_MOMENT

    def _note_loss(self, found: api.Answer) -> None:
        stream = self._source.stream.name
        log.error(
            "the stream has lost messages that were read", stream=stream, last_sequence=found.state.last_seq, read=self._next_sequence
        )
        self._connection.lost(stream)
        if self._source.on_loss is not None:
            self._source.on_loss()

    async def _pull(self, session: Session, inbox: str) -> None:
        request = msgspec.json.encode(
            {
                "batch": self._batch,
                "expires": int(_PULL_SECONDS * api.NANOSECONDS),
                "idle_heartbeat": int(_HEARTBEAT_SECONDS * api.NANOSECONDS),
            }
        )
        subject = f"{api.PREFIX}CONSUMER.MSG.NEXT.{self._source.stream.name}.{self._name}"
        while True:
            await self._room.wait()
            self._wanted = self._batch
            await session.send(subject, request, reply=inbox)
            while self._wanted > 0:
                self._heard.clear()
                try:
                    async with asyncio.timeout(2 * _HEARTBEAT_SECONDS + 1):
                        await self._heard.wait()
                except TimeoutError:
                    log.info("a consumer has gone silent", stream=self._source.stream.name, consumer=self._name)
                    return
            if self._lost:
                return

    async def _hear(self, msg: Msg) -> None:
        self._heard.set()
        status = (msg.headers or {}).get("Status") if not msg.data else None
        if status is not None:
            self._hear_status(status, msg)
            return
        try:
            delivery = PulledDelivery(self._connection, msg, acknowledges=self._source.durable is not None)
        except NotJSMessageError:
            return
        self._wanted -= 1
        self._next_sequence, self._last_kept_at = delivery.sequence + 1, delivery.kept_at
        self._ready.append(delivery)
        self._arrived.set()
        if len(self._ready) > self._batch // 2:
            self._room.clear()

    def _hear_status(self, status: str, msg: Msg) -> None:
        if status == _HEARTBEAT:
            return
        if status not in _PULL_OVER:
            log.info("a consumer is lost", consumer=self._name, status=status, reason=(msg.headers or {}).get("Description", ""))
            self._lost = True
        self._wanted = 0

"""The bus on NATS JetStream. Keeps one connection open, for ever: a new one is made, after a pause that grows, whenever it has ended.

The streams that this process wants are made again on every new connection, and answers to questions subscribed again; readers see to
themselves. Nothing is queued here: what cannot be kept now raises ``BusUnavailable``, and the outbox has its own memory.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import structlog
from msgspec import DecodeError
from msgspec.structs import replace
from nats.aio.msg import Msg

from hami_protocol import subjects as on_bus
from hami_protocol.envelope import MESSAGE_ID, Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import api
from hami_runtime.bus.credentials import Credentials, tls_context
from hami_runtime.bus.filters import matches
from hami_runtime.bus.port import BusError, BusUnavailable, Delivery, LiveMessage, MessageRefused, NoReply, Overtaken, StartAt
from hami_runtime.bus.pulling import Reader, Source
from hami_runtime.bus.session import NobodyListens, Session
from hami_runtime.lifecycle import sleep_until
from hami_runtime.settings import ProcessSettings
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_PREPARE_SECONDS = 1.0
_CANCELLED_AGAIN_SECONDS = 0.2
_EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"

_LIVE_WAITING = 4096
"""Messages in hand that a live reader has not taken; further ones are missed."""

_OUTCOMES: dict[type[BusError], str] = {MessageRefused: "refused", Overtaken: "overtaken"}

Handler = Callable[[bytes], Awaitable[bytes]]
Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None


class JetStreamBus:
    """A connection to NATS that comes back by itself; made by ``connect``."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str,
        credentials: Credentials,
        tls: Tls,
        storage: str,
        replicas: int,
        inbox: str,
        looks_up_directly: bool,
        telemetry: Telemetry,
    ) -> None:
        self._servers = list(servers)
        self._name = name
        self._credentials = credentials
        self._tls = tls
        self._storage = storage
        self._replicas = replicas
        self._inbox = inbox
        self._looks_up_directly = looks_up_directly
        self._session: Session | None = None
        self._session_since = 0.0
        self._opened = asyncio.Event()
        self._specs: dict[str, StreamSpec] = {}
        self._handlers: dict[str, Handler] = {}
        self._subscribed: dict[str, Callable[[], Awaitable[None]]] = {}
        """How to end the subscription of each handler."""
        self._attempts = telemetry.counter("hami_bus_connection_attempts", "attempts to connect to NATS, by outcome")
        self._publishes = telemetry.counter("hami_bus_publishes", "messages published, by outcome")
        self._collisions = telemetry.counter(
            "hami_bus_message_id_collisions", "messages whose de-duplication id another message had, by stream; they were published again"
        )
        self._losses = telemetry.counter(
            "hami_bus_stream_losses", "times that a stream came back without messages that a reader had read, by stream"
        )
        telemetry.gauge("hami_bus_connected", "1 while there is a connection to NATS", lambda: int(self.connected))

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._session is not None and not self._session.closed.is_set()

    @property
    def connected_since(self) -> float | None:
        """When the present connection was made."""
        return self._session_since if self.connected else None

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        await self.session()

    async def ensure_streams(self, specs: Iterable[StreamSpec]) -> None:
        """Make or reconcile streams now, and again at every new connection."""
        self._specs |= {spec.name: spec for spec in specs}
        if self._session is not None and self.connected:
            await self._ensure(self._session)

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        """Keep a message; see the port."""
        if expected_last is not None:
            message = replace(message, headers={**message.headers, _EXPECTED_LAST: str(expected_last)})
        try:
            try:
                sequence = await self._publish(self._open_session(), message, timeout_seconds)
            except api.WrongLast as exc:
                sequence = await self._kept_before(message, expected_last, exc)
        except BusUnavailable:
            self._publishes.add(1, {"outcome": "unavailable"})
            await self._publish_live(message)
            raise
        except BusError as exc:
            self._publishes.add(1, {"outcome": _OUTCOMES.get(type(exc), "unavailable")})
            raise
        self._publishes.add(1, {"outcome": "kept"})
        return sequence

    @asynccontextmanager
    async def consume(
        self,
        stream: StreamSpec,
        *,
        subjects: Sequence[str],
        durable: str | None = None,
        start: StartAt | int = StartAt.ALL,
        ack_wait_seconds: float = 30.0,
        on_loss: Callable[[], None] | None = None,
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        """Deliver from a stream; see the port."""
        source = Source(
            stream=stream, subjects=tuple(subjects), durable=durable, start=start, ack_wait_seconds=ack_wait_seconds, on_loss=on_loss
        )
        reader = Reader(self, source, name=self._name)
        reading = asyncio.create_task(reader.run(), name=f"read {stream.name}")
        try:
            if start == StartAt.NEW and self.connected:
                await reader.wait_attached()
            yield reader
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await reader.finish()

    @asynccontextmanager
    async def live(self, stream: StreamSpec, subject: str) -> AsyncIterator[AsyncIterator[LiveMessage | None]]:
        """Deliver what is published from now on; see the port."""
        mapping = stream.live
        if mapping is None:
            raise BusError(f"{stream.name} does not publish what it keeps")
        ready: asyncio.Queue[LiveMessage | None] = asyncio.Queue(_LIVE_WAITING + 1)

        async def take(msg: Msg) -> None:
            if ready.qsize() < _LIVE_WAITING:
                ready.put_nowait(api.live_message(mapping.reversed(msg.subject), msg))
            elif not ready.full():
                ready.put_nowait(None)

        async def follow() -> None:
            while True:
                session = await self.session()
                with suppress(BusUnavailable):
                    await session.subscribe(mapping(subject), take)
                    await session.flush()
                    await ready.put(None)
                    await session.closed.wait()
                await asyncio.sleep(_FIRST_PAUSE_SECONDS)

        async def each() -> AsyncIterator[LiveMessage | None]:
            while True:
                yield await ready.get()

        following = asyncio.create_task(follow(), name=f"live {stream.name}")
        try:
            yield each()
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def forget(self, stream: StreamSpec, durable: str) -> None:
        """Remove a durable consumer, if there is one."""
        with suppress(api.NotThere):
            await api.call(self._open_session(), f"CONSUMER.DELETE.{stream.name}.{durable}")

    async def last(self, stream: StreamSpec, subject: str) -> Message | None:
        """The newest message kept on a subject."""
        if self._looks_up_directly:
            with suppress(NobodyListens, MessageRefused):  # a stream, or permissions, that an earlier version made
                wanted = f"{api.PREFIX}DIRECT.GET.{stream.name}.{subject}"
                try:
                    return api.direct_message(await self._open_session().ask(wanted, b"", timeout_seconds=api.TIMEOUT_SECONDS))
                except TimeoutError as exc:
                    raise BusUnavailable(f"{wanted}: no answer within {api.TIMEOUT_SECONDS:g} s") from exc
        try:
            answer = await api.call(self._open_session(), f"STREAM.MSG.GET.{stream.name}", {"last_by_subj": subject})
        except api.NotThere:
            return None
        return api.kept_message(answer)

    async def has(self, stream: StreamSpec) -> bool:
        """Whether there is such a stream."""
        try:
            await api.call(self._open_session(), f"STREAM.INFO.{stream.name}")
        except api.NotThere:
            return False
        return True

    async def purge(self, stream: StreamSpec, subject: str) -> None:
        """Remove what is kept on matching subjects."""
        with suppress(api.NotThere):
            await api.call(self._open_session(), f"STREAM.PURGE.{stream.name}", {"filter": subject})

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> bytes:
        """Ask whoever answers."""
        try:
            answer = await self._open_session().ask(subject, data, timeout_seconds=timeout_seconds)
        except NobodyListens as exc:
            raise NoReply(f"{subject}: nobody answers") from exc
        except TimeoutError as exc:
            raise NoReply(f"{subject}: no answer within {timeout_seconds:g} s") from exc
        return bytes(answer.data)

    @asynccontextmanager
    async def answer(self, subject: str, handler: Handler) -> AsyncIterator[None]:
        """Answer while the context is open, over all connections. The server knows of it before the context begins, and of its end when it ends."""
        if subject in self._handlers:
            raise BusError(f"{subject}: this process answers it already")
        self._handlers[subject] = handler
        if self._session is not None and self.connected:
            with suppress(BusUnavailable):
                await self._answer(self._session, subject)
                await self._session.flush()
        try:
            yield
        finally:
            del self._handlers[subject]
            if (unsubscribe := self._subscribed.pop(subject, None)) is not None:
                await unsubscribe()  # the server answers at once that nobody responds any more
                if self._session is not None:
                    with suppress(BusUnavailable):
                        await self._session.flush()

    # For readers

    async def session(self) -> Session:
        """The open session, once there is one."""
        while self._session is None or self._session.closed.is_set():
            await self._opened.wait()
            await asyncio.sleep(0)
        return self._session

    def lost(self, stream: str) -> None:
        """Count that a stream has lost messages."""
        self._losses.add(1, {"stream": stream})

    async def tell(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Send, if there is a connection."""
        if self._session is not None:
            with suppress(BusError):
                await self._session.send(subject, data, headers=headers)

    # How

    async def keep_connected(self) -> None:
        """Connect, and connect again, until cancelled."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    session = await Session.open(
                        self._servers, name=self._name, credentials=self._credentials, tls=self._tls_now(), inbox=self._inbox
                    )
                    pause_seconds = _FIRST_PAUSE_SECONDS
                    self._attempts.add(1, {"outcome": "connected"})
                    await self._use(session)
                except BusUnavailable as exc:
                    self._attempts.add(1, {"outcome": "failed"})
                    log.warning("NATS is not reachable", error=str(exc), again_in_seconds=round(pause_seconds, 2))
                except Exception:
                    log.exception("the connection to NATS failed in a way that nobody foresaw")
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients, keeps no secret
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        finally:
            if self._session is not None:
                await self._session.close()

    def _tls_now(self) -> ssl.SSLContext | None:
        if self._tls is None or isinstance(self._tls, ssl.SSLContext):
            return self._tls
        try:
            return self._tls()
        except OSError as exc:
            raise BusUnavailable(f"the files for TLS to NATS cannot be read: {exc}") from exc

    async def _use(self, session: Session) -> None:
        """Offer a new connection to everybody and return when it has ended."""
        self._session, self._session_since = session, time.monotonic()
        prepared = False
        try:
            for subject in tuple(self._handlers):
                await self._answer(session, subject)
            prepared = await self._prepare(session)
        except BusUnavailable as exc:
            log.warning("questions cannot be answered yet", error=str(exc))
        log.info("NATS is connected")
        self._opened.set()
        while not prepared and not await sleep_until(session.closed, _PREPARE_SECONDS):
            prepared = await self._prepare(session)
        await session.closed.wait()
        self._opened.clear()
        log.warning("NATS has gone")

    async def _prepare(self, session: Session) -> bool:
        """Make the streams; False where that has to be tried again, as in a cluster that is not whole yet."""
        try:
            await self._ensure(session)
        except (BusError, DecodeError) as exc:
            log.warning("NATS does not let us prepare", error=str(exc), again_in_seconds=_PREPARE_SECONDS)
            return False
        return True

    async def _ensure(self, session: Session) -> None:
        for spec in self._specs.values():
            await api.ensure_stream(session, spec, storage=self._storage, replicas=self._replicas)

    async def _answer(self, session: Session, subject: str) -> None:
        async def respond(msg: Msg) -> None:
            handler = self._handlers.get(subject)
            if handler is None:
                return
            try:
                data = await handler(msg.data)
            except Exception:
                log.exception("a question could not be answered", subject=subject)
                return
            await self.tell(msg.reply, data)

        self._subscribed[subject] = await session.subscribe(subject, respond)

    def _open_session(self) -> Session:
        if self._session is None or self._session.closed.is_set():
            raise BusUnavailable("not connected to NATS")
        return self._session

    async def _publish(self, session: Session, message: Message, timeout_seconds: float) -> int:
        for again in (True, False):
            try:
                answer = await session.ask(message.subject, message.data, headers=message.headers, timeout_seconds=timeout_seconds)
                kept = api.published(message.subject, answer)
            except NobodyListens as exc:
                if not any(matches(pattern, message.subject) for spec in self._known() for pattern in spec.subjects):
                    raise MessageRefused(f"{message.subject}: no stream keeps it") from exc
                if again:  # somebody removed the stream, or a cluster has no leader for it now
                    await self._ensure(session)
            except TimeoutError as exc:
                raise BusUnavailable(f"{message.subject}: not acknowledged within {timeout_seconds:g} s") from exc
            except DecodeError as exc:
                raise BusUnavailable(f"{message.subject}: the acknowledgement cannot be read: {exc}") from exc
            else:
                if not kept.duplicate or await self._is_kept(session, message, kept):
                    return kept.seq
                message = self._with_another_id(message, kept)
        raise BusUnavailable(f"{message.subject}: no stream keeps it now")

    async def _publish_live(self, message: Message) -> None:
        """Send what no stream takes now to who follows live: a full log, or one without a leader, delays no pod. It is published again later."""
        for spec in self._known():
            if spec.live and matches(spec.live.source, message.subject):
                headers = {key: value for key, value in message.headers.items() if key not in (MESSAGE_ID, _EXPECTED_LAST)}
                await self.tell(spec.live(message.subject), message.data, headers=headers)
                return

    async def _is_kept(self, session: Session, message: Message, kept: api.PublishAnswer) -> bool:
        """Whether the stream has ``message`` itself, where it answers that it has its id. Of one that cannot be looked up nothing is known."""
        try:
            answer = await api.call(session, f"STREAM.MSG.GET.{kept.stream}", {"seq": kept.seq})
        except (api.NotThere, MessageRefused):
            return False
        found = api.kept_message(answer)
        if found.subject == message.subject:  # which has one publisher
            return True
        log.error("another message has the id of ours", subject=message.subject, other=found.subject, stream=kept.stream, sequence=kept.seq)
        self._collisions.add(1, {"stream": kept.stream})
        return False

    def _with_another_id(self, message: Message, kept: api.PublishAnswer) -> Message:
        log.info("published anew under another id", subject=message.subject, stream=kept.stream, sequence=kept.seq)
        return replace(message, headers={**message.headers, MESSAGE_ID: secrets.token_hex(16)})

    async def _kept_before(self, message: Message, expected_last: int | None, refusal: api.WrongLast) -> int:
        """The sequence of a message that was refused as it is itself the one that nobody expected.

        Raises:
            BusUnavailable: nothing else is there to be seen, so that another message is just being kept, or who leads the stream is changing.
            Overtaken: it is another one.
        """
        last, sequence = None, 0
        with suppress(api.NotThere):
            answer = await api.call(self._open_session(), f"STREAM.MSG.GET.{refusal.stream}", {"last_by_subj": message.subject})
            last, sequence = api.kept_message(answer), api.kept_sequence(answer)
        message_id = message.headers.get(MESSAGE_ID)
        if last is not None and message_id and last.headers.get(MESSAGE_ID) == message_id:
            return sequence
        if sequence == expected_last:
            raise BusUnavailable(str(refusal)) from refusal
        raise Overtaken(message.subject, last, sequence) from refusal

    def _known(self) -> Iterable[StreamSpec]:
        """Streams that there are, or will be: those that this process makes, and those that others make for it."""
        return (*self._specs.values(), *on_bus.STREAMS)


@asynccontextmanager
async def connect(
    url: str,
    *,
    name: str,
    credentials: Credentials | None = None,
    tls: Tls = None,
    storage: str = "file",
    replicas: int = 1,
    inbox: str = on_bus.INBOX,
    looks_up_directly: bool = False,
    telemetry: Telemetry = OFF,
) -> AsyncIterator[JetStreamBus]:
    """A bus that connects in the background: the context opens whether NATS is there or not, and closes what it opened.

    Args:
        url: one or more servers, separated by commas.
        name: shown by NATS' monitoring, as ``hami-scheduler``.
        credentials: who we are.
        tls: a context for TLS, or what makes one, which is asked at every connection: files may be rotated.
        storage: ``file`` or ``memory``, for streams that have to be made.
        replicas: of streams.
        inbox: below which subject answers are sent to us.
        looks_up_directly: ask for the last message of one subject on a subject of its own, which permissions can name; any server that has a
            copy answers, which may be a moment late.
        telemetry: where connections and publishes are counted.
    """
    bus = JetStreamBus(
        [each.strip() for each in url.split(",") if each.strip()],
        name=name,
        credentials=credentials or Credentials(),
        tls=tls,
        storage=storage,
        replicas=replicas,
        inbox=inbox,
        looks_up_directly=looks_up_directly,
        telemetry=telemetry,
    )
    keeping = asyncio.create_task(bus.keep_connected(), name=f"{name} to NATS")
    try:
        yield bus
    finally:
        while not keeping.done():  # nats-py swallows a cancellation that comes while it closes what it could not open
            keeping.cancel()
            await asyncio.wait((keeping,), timeout=_CANCELLED_AGAIN_SECONDS)


@asynccontextmanager
async def connect_process(
    settings: ProcessSettings,
    *,
    name: str,
    tls: Tls = None,
    inbox: str = on_bus.INBOX,
    looks_up_directly: bool = False,
    telemetry: Telemetry = OFF,
) -> AsyncIterator[JetStreamBus]:
    """``connect`` as a process's settings say; ``tls`` takes the place of the files that they name."""
    async with connect(
        settings.nats_url,
        name=name,
        credentials=Credentials.of(settings),
        tls=tls or tls_context(settings),
        replicas=settings.nats_replicas,
        inbox=inbox,
        looks_up_directly=looks_up_directly,
        telemetry=telemetry,
    ) as bus:
        yield bus

"""The bus in memory: the same promises as JetStream's, deterministic under a virtual loop. One object is server and every connection to it.

Invariants: sequences of a stream rise by one per kept message; a durable consumer never forgets a message that was not acknowledged;
while the bus is ``down`` nothing is kept, delivered or acknowledged, and nothing that was kept before is lost.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from hami_protocol.envelope import MESSAGE_ID, Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.filters import matcher, matches
from hami_runtime.bus.port import BusUnavailable, Delivery, LiveMessage, MessageRefused, NoReply, Overtaken, StartAt

MAX_MESSAGE_BYTES = 1024 * 1024
"""As NATS' own default."""

Handler = Callable[[bytes], Awaitable[bytes]]


class MemoryBus:
    """Streams, consumers and questions in one process. Time is the running loop's."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._handlers: dict[str, list[Handler]] = {}
        self._up = True
        self._up_since = 0.0
        self._changed = _Wakeups()
        self._live: dict[_Live, None] = {}
        self._readers: dict[_Deliveries, None] = {}

    # What tests and simulations do to it

    def down(self) -> None:
        """Go away: publishing and asking raise ``BusUnavailable``, consumers wait, acknowledgements are lost."""
        self._up = False

    def up(self) -> None:
        """Come back, with everything that was kept."""
        self._up = True
        self._up_since = _now()
        self._changed.wake()
        for live in self._live:
            live.put(None)
        for stream in self._streams.values():
            stream.wake()

    def lose_tail(self, stream: StreamSpec, count: int) -> None:
        """Come back from an older disk: the last ``count`` messages of a stream are gone, and their sequences are given again."""
        if found := self._streams.get(stream.name):
            found.lose_tail(count)
            for reader in tuple(self._readers):
                reader.lost(found)
        self._up_since = _now()

    def kept(self, stream: StreamSpec) -> tuple[Message, ...]:
        """What a stream holds now, oldest first."""
        found = self._streams.get(stream.name)
        return tuple(entry.message for entry in found.entries(_now())) if found else ()

    # The port

    @property
    def connected(self) -> bool:
        """Whether it is up."""
        return self._up

    @property
    def connected_since(self) -> float | None:
        """When it came back last; 0 where it has always been there."""
        return self._up_since if self._up else None

    async def wait_connected(self) -> None:
        """Return once it is up."""
        while not self._up:
            await self._changed.wait(None)

    async def ensure_streams(self, specs: Iterable[StreamSpec]) -> None:
        """Make or reconcile streams."""
        for spec in specs:
            if (stream := self._streams.get(spec.name)) is None:
                self._streams[spec.name] = _Stream(spec)
            else:
                stream.spec = spec
        self._changed.wake()

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        """Keep a message; a double, by its id, gets the first one's sequence."""
        self._require_up()
        if len(message.data) > MAX_MESSAGE_BYTES:
            raise MessageRefused(f"{message.subject}: {len(message.data)} bytes are over the limit of {MAX_MESSAGE_BYTES}")
        stream = next((each for each in self._streams.values() if each.holds(message.subject)), None)
        if stream is None:
            raise MessageRefused(f"{message.subject}: no stream keeps it")
        if 0 < stream.spec.max_message_bytes < len(message.data):
            raise MessageRefused(
                f"{message.subject}: {len(message.data)} bytes are over the stream's limit of {stream.spec.max_message_bytes}"
            )
        before = stream.last_sequence
        sequence = stream.keep(message, _now(), expected_last)
        if sequence > before:
            self._publish_live(stream.spec, LiveMessage(message, kept=True))
        return sequence

    def publish_unkept(self, message: Message) -> None:
        """What the other adapter does with a message that no stream keeps now: who follows live has it."""
        for stream in self._streams.values():
            self._publish_live(stream.spec, LiveMessage(message, kept=False))

    def _publish_live(self, spec: StreamSpec, published: LiveMessage) -> None:
        if spec.live and matches(spec.live.source, published.message.subject):
            for live in self._live:
                live.put(published)

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
        deliveries = _Deliveries(self, stream.name, lambda found: found.consumer(durable, subjects, start, ack_wait_seconds), on_loss)
        deliveries.attach()
        self._readers[deliveries] = None
        try:
            yield deliveries
        finally:
            del self._readers[deliveries]
            if durable is None:
                deliveries.detach()

    @asynccontextmanager
    async def live(self, stream: StreamSpec, subject: str) -> AsyncIterator[AsyncIterator[LiveMessage | None]]:
        """Deliver what is published from now on; see the port."""
        live = _Live(subject)
        self._live[live] = None
        try:
            yield live
        finally:
            del self._live[live]

    async def forget(self, stream: StreamSpec, durable: str) -> None:
        """Remove a durable consumer."""
        self._require_up()
        if found := self._streams.get(stream.name):
            found.remove(durable)

    async def last(self, stream: StreamSpec, subject: str) -> Message | None:
        """The newest message kept on a subject."""
        self._require_up()
        found = self._streams.get(stream.name)
        entries = found.entries(_now()) if found else ()
        return next((entry.message for entry in reversed(entries) if matches(subject, entry.message.subject)), None)

    async def has(self, stream: StreamSpec) -> bool:
        """Whether there is such a stream."""
        self._require_up()
        return stream.name in self._streams

    async def purge(self, stream: StreamSpec, subject: str) -> None:
        """Remove what is kept on matching subjects."""
        self._require_up()
        if found := self._streams.get(stream.name):
            found.purge(subject)

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> bytes:
        """Ask the one who answered first to be asked."""
        self._require_up()
        handlers = self._handlers.get(subject)
        if not handlers:
            raise NoReply(f"{subject}: nobody answers")
        try:
            async with asyncio.timeout(timeout_seconds):
                return await handlers[0](data)
        except TimeoutError as exc:
            raise NoReply(f"{subject}: no answer within {timeout_seconds} s") from exc
        except Exception as exc:
            raise NoReply(f"{subject}: the answer failed") from exc

    @asynccontextmanager
    async def answer(self, subject: str, handler: Handler) -> AsyncIterator[None]:
        """Answer while the context is open."""
        handlers = self._handlers.setdefault(subject, [])
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.remove(handler)

    # How

    def _require_up(self) -> None:
        if not self._up:
            raise BusUnavailable("the bus is down")

    def _settle(self, consumer: _Consumer, sequence: int, again_at: float | None) -> None:
        if self._up:
            consumer.settle(sequence, again_at)


class _Entry(Struct, frozen=True):
    sequence: int
    message: Message
    kept_at: float


class _Delivery:
    """A message in a consumer's hands; without a durable name there is nothing to acknowledge."""

    __slots__ = ("_bus", "_consumer", "_entry", "attempt", "pending")

    def __init__(self, bus: MemoryBus, consumer: _Consumer, entry: _Entry, attempt: int, pending: int) -> None:
        self._bus = bus
        self._consumer = consumer
        self._entry = entry
        self.attempt = attempt
        self.pending = pending

    @property
    def message(self) -> Message:
        return self._entry.message

    @property
    def sequence(self) -> int:
        return self._entry.sequence

    async def ack(self) -> None:
        self._bus._settle(self._consumer, self.sequence, None)  # noqa: SLF001 - one module, one mechanism

    async def nak(self, *, delay_seconds: float = 0.0) -> None:
        self._bus._settle(self._consumer, self.sequence, _now() + delay_seconds)  # noqa: SLF001

    async def term(self, reason: str) -> None:
        self._bus._settle(self._consumer, self.sequence, None)  # noqa: SLF001


class _Deliveries:
    """One reader of a consumer. Giving up a read, by cancellation, loses nothing."""

    def __init__(self, bus: MemoryBus, stream: str, find: Callable[[_Stream], _Consumer], on_loss: Callable[[], None] | None) -> None:
        self._bus = bus
        self._on_loss = on_loss
        self._stream_name = stream
        self._find = find
        self._consumer: _Consumer | None = None

    def attach(self) -> _Consumer | None:
        """The consumer, unless the bus is down or has no such stream yet."""
        stream = self._bus._streams.get(self._stream_name)  # noqa: SLF001 - one module, one mechanism
        if self._consumer is None and stream is not None and self._bus.connected:
            self._consumer = self._find(stream)
        return self._consumer

    def detach(self) -> None:
        if self._consumer is not None:
            self._bus._streams[self._stream_name].drop(self._consumer)  # noqa: SLF001

    def lost(self, stream: _Stream) -> None:
        """Be told that ``stream`` has lost what this reader may have read, and begin again where a state is read."""
        if self._consumer is None or self._bus._streams.get(self._stream_name) is not stream:  # noqa: SLF001
            return
        stream.begin_again(self._consumer)
        if self._on_loss is not None:
            self._on_loss()

    def __aiter__(self) -> _Deliveries:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            if (consumer := self.attach()) is None:
                await self._bus._changed.wait(None)  # noqa: SLF001
                continue
            taken = consumer.take(_now()) if self._bus.connected else None
            if taken is not None:
                return _Delivery(self._bus, consumer, *taken, consumer.waiting)
            await consumer.changed.wait(consumer.due() if self._bus.connected else None)


class _Live:
    """One reader of what is published from now on."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._ready: asyncio.Queue[LiveMessage | None] = asyncio.Queue()
        self._ready.put_nowait(None)

    def put(self, published: LiveMessage | None) -> None:
        if published is None or matches(self._subject, published.message.subject):
            self._ready.put_nowait(published)

    def __aiter__(self) -> _Live:
        return self

    async def __anext__(self) -> LiveMessage | None:
        return await self._ready.get()


class _Stream:
    """What one stream keeps, and who reads it."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self._last_sequence = 0
        self._by_sequence: OrderedDict[int, _Entry] = OrderedDict()
        self._by_subject: dict[str, deque[int]] = {}
        self._ids: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._durables: dict[str, _Consumer] = {}
        self._consumers: dict[_Consumer, None] = {}

    @property
    def last_sequence(self) -> int:
        return self._last_sequence

    def holds(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.spec.subjects)

    def keep(self, message: Message, now: float, expected_last: int | None = None) -> int:
        self.expire(now)
        if self.spec.queue:
            message = replace(message, subject=self.spec.queue(message.subject))
            if len(self._by_subject.get(message.subject, ())) >= self.spec.max_messages_per_subject:
                raise BusUnavailable(f"{message.subject}: maximum messages per subject exceeded")
        message_id = message.headers.get(MESSAGE_ID, "")
        if expected_last is not None:  # looked at before the id, as a server does that is alone
            before = self._by_subject.get(message.subject)
            last = self._by_sequence[before[-1]] if before else None
            sequence = last.sequence if last else 0
            if last and message_id and last.message.headers.get(MESSAGE_ID) == message_id:
                return sequence
            if sequence != expected_last:
                raise Overtaken(message.subject, last.message if last else None, sequence)
        if message_id in self._ids and self._is_kept(message, self._ids[message_id][1]):
            return self._ids[message_id][1]
        self._last_sequence += 1
        if message_id:
            self._ids[message_id] = (now, self._last_sequence)
        entry = self._by_sequence[self._last_sequence] = _Entry(self._last_sequence, message, now)
        sequences = self._by_subject.setdefault(message.subject, deque())
        sequences.append(entry.sequence)
        while 0 < self.spec.max_messages_per_subject < len(sequences):
            self._forget(self._by_sequence[sequences[0]])
        for consumer in self._consumers:
            consumer.offer(entry)
        return entry.sequence

    def _is_kept(self, message: Message, sequence: int) -> bool:
        """Whether a double is one, and not another message under the same id; of one that is there no more nothing is known."""
        before = self.get(sequence)
        return before is not None and before.message.subject == message.subject

    def lose_tail(self, count: int) -> None:
        for entry in list(self._by_sequence.values())[-count:] if count else ():
            self._forget(entry)
        self._last_sequence = next(reversed(self._by_sequence), 0)
        self._ids = OrderedDict((each, at) for each, at in self._ids.items() if at[1] <= self._last_sequence)

    def begin_again(self, consumer: _Consumer) -> None:
        """What a consumer is delivered after a loss."""
        if consumer.start == StartAt.LAST_PER_SUBJECT:
            newest = {sequences[-1] for sequences in self._by_subject.values() if sequences}
            for sequence in sorted(newest):
                consumer.offer(self._by_sequence[sequence])

    def entries(self, now: float) -> list[_Entry]:
        """What is kept and has not become too old, oldest first."""
        self.expire(now)
        return list(self._by_sequence.values())

    def get(self, sequence: int) -> _Entry | None:
        return self._by_sequence.get(sequence)

    def purge(self, pattern: str) -> None:
        for subject in [each for each in self._by_subject if matches(pattern, each)]:
            for sequence in tuple(self._by_subject[subject]):
                self._forget(self._by_sequence[sequence])
            del self._by_subject[subject]

    def expire(self, now: float) -> None:
        while self._ids and next(iter(self._ids.values()))[0] + self.spec.duplicate_window_seconds <= now:
            self._ids.popitem(last=False)
        while self.spec.max_age_seconds and self._by_sequence:
            oldest = next(iter(self._by_sequence.values()))
            if oldest.kept_at + self.spec.max_age_seconds > now:
                break
            self._forget(oldest)

    def wake(self) -> None:
        for consumer in self._consumers:
            consumer.changed.wake()

    def remove(self, durable: str) -> None:
        if consumer := self._durables.pop(durable, None):
            del self._consumers[consumer]

    def consumer(self, durable: str | None, subjects: Sequence[str], start: StartAt | int, ack_wait_seconds: float) -> _Consumer:
        """The durable consumer of that name as it stands, or a new one."""
        self.expire(_now())
        if durable in self._durables:
            self._durables[durable].reconcile(subjects, ack_wait_seconds, self._by_sequence.values())
            return self._durables[durable]
        consumer = _Consumer(self, subjects, start, acknowledges=durable is not None, ack_wait_seconds=ack_wait_seconds)
        match start:
            case StartAt.ALL:
                entries = list(self._by_sequence.values())
            case StartAt.NEW:
                entries = []
            case StartAt.LAST_PER_SUBJECT:
                newest = {sequences[-1] for sequences in self._by_subject.values() if sequences}
                entries = [entry for entry in self._by_sequence.values() if entry.sequence in newest]
            case int():
                entries = [entry for entry in self._by_sequence.values() if entry.sequence >= start]
        for entry in entries:
            consumer.offer(entry)
        self._consumers[consumer] = None
        if durable is not None:
            self._durables[durable] = consumer
        return consumer

    def acknowledged(self, sequence: int) -> None:
        if self.spec.queue and (entry := self._by_sequence.get(sequence)):
            self._forget(entry)

    def drop(self, consumer: _Consumer) -> None:
        del self._consumers[consumer]

    def _forget(self, entry: _Entry) -> None:
        del self._by_sequence[entry.sequence]
        self._by_subject[entry.message.subject].remove(entry.sequence)
        for consumer in self._consumers:
            consumer.withdraw(entry.sequence)


class _Consumer:
    """Where a consumer is: what lies ahead of it, what it has out, and what must come again when."""

    def __init__(
        self, stream: _Stream, subjects: Sequence[str], start: StartAt | int, *, acknowledges: bool, ack_wait_seconds: float
    ) -> None:
        self.start = start
        self.changed = _Wakeups()
        self._stream = stream
        self._subjects = tuple(subjects)
        self._wants = matcher(subjects)
        self._acknowledges = acknowledges
        self._ack_wait_seconds = ack_wait_seconds
        self._position = 0
        self._ahead: OrderedDict[int, None] = OrderedDict()
        self._attempts: dict[int, int] = {}
        self._again_at: dict[int, float] = {}
        self._again: list[tuple[float, int]] = []
        """A heap of when and which; an entry that ``_again_at`` does not agree with is void."""

    @property
    def waiting(self) -> int:
        """How many messages have not been delivered yet."""
        return len(self._ahead)

    def reconcile(self, subjects: Sequence[str], ack_wait_seconds: float, entries: Iterable[_Entry]) -> None:
        """Take new settings, and go on with what they choose behind the last message that was delivered."""
        self._ack_wait_seconds = ack_wait_seconds
        if tuple(subjects) == self._subjects:
            return
        self._subjects, self._wants = tuple(subjects), matcher(subjects)
        self._ahead.clear()
        for entry in entries:
            if entry.sequence > self._position:
                self.offer(entry)

    def offer(self, entry: _Entry) -> None:
        if self._wants(entry.message.subject):
            self._ahead[entry.sequence] = None
            self.changed.wake()

    def withdraw(self, sequence: int) -> None:
        self._ahead.pop(sequence, None)
        self._again_at.pop(sequence, None)
        self._attempts.pop(sequence, None)

    def take(self, now: float) -> tuple[_Entry, int] | None:
        """The next message and its attempt; what must come again goes first."""
        self._stream.expire(now)
        while self._again and self._again[0][0] <= now:
            when, sequence = heapq.heappop(self._again)
            entry = self._stream.get(sequence)
            if entry is not None and self._again_at.get(sequence) == when:
                return self._out(entry, now)
        while self._ahead:
            sequence, _ = self._ahead.popitem(last=False)
            self._position = sequence
            if entry := self._stream.get(sequence):
                return self._out(entry, now)
        return None

    def due(self) -> float | None:
        """When something may have to come again, in the loop's time."""
        return self._again[0][0] if self._again else None

    def settle(self, sequence: int, again_at: float | None) -> None:
        """Done with a message that is out, or wanting it again."""
        if sequence not in self._again_at:
            return
        if again_at is None:
            del self._again_at[sequence]
            del self._attempts[sequence]
            self._stream.acknowledged(sequence)
        else:
            self._come_again(sequence, again_at)
            self.changed.wake()

    def _out(self, entry: _Entry, now: float) -> tuple[_Entry, int]:
        if not self._acknowledges:
            return entry, 1
        attempt = self._attempts[entry.sequence] = self._attempts.get(entry.sequence, 0) + 1
        self._come_again(entry.sequence, now + self._ack_wait_seconds)
        return entry, attempt

    def _come_again(self, sequence: int, when: float) -> None:
        self._again_at[sequence] = when
        heapq.heappush(self._again, (when, sequence))


class _Wakeups:
    """Whoever waits is woken by any change, in the order of waiting."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, until: float | None) -> None:
        """Return at the next change, or at ``until`` in the loop's time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await future
        finally:
            del self._waiting[future]


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The bus as services see it: streams that keep messages, consumers that acknowledge them, and request and reply.

Delivery is at least once and in order per stream; ``publish`` returns only when the message is kept. Who consumes says, per message, whether
it is done (``ack``), must come again (``nak``) or can never be read (``term``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol

from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec


class BusError(Exception):
    """The bus could not do what was asked."""


class BusUnavailable(BusError):  # noqa: N818 - reads as the condition it names
    """Not connected, or no answer in time: the message may or may not have been kept. Try again; its id makes that harmless."""


class MessageRefused(BusError):  # noqa: N818 - reads as the condition it names
    """The server will never take this message (no permission, too large, no stream). Trying again is of no use."""


class Overtaken(BusError):  # noqa: N818 - reads as the condition it names
    """Another message is the last one on the subject than the one that was expected there; ours was not kept.

    Attributes:
        last: what is the last one now, None where there is none.
        sequence: its sequence, 0 where there is none.
    """

    def __init__(self, subject: str, last: Message | None, sequence: int) -> None:
        super().__init__(f"{subject}: somebody else has spoken, message {sequence} is the last one now")
        self.last = last
        self.sequence = sequence


class NoReply(BusError):  # noqa: N818 - reads as the condition it names
    """Nobody answered a request in time."""


class StartAt(StrEnum):
    """Where a new consumer begins."""

    ALL = "all"
    NEW = "new"
    LAST_PER_SUBJECT = "last_per_subject"


class LiveMessage(NamedTuple):
    """A message as it is published, which may come more than once."""

    message: Message
    kept: bool
    """Whether the stream has it. One that no stream could keep is published all the same, and again until it is kept."""


class Delivery(Protocol):
    """One message as it was delivered."""

    @property
    def message(self) -> Message:
        """Subject, body and headers."""
        ...

    @property
    def sequence(self) -> int:
        """Place in the stream, from 1; it rises in the order in which messages were kept."""
        ...

    @property
    def attempt(self) -> int:
        """1 at the first delivery."""
        ...

    @property
    def pending(self) -> int:
        """How many messages wait behind this one for the same consumer; 0 means that the consumer has caught up."""
        ...

    async def ack(self) -> None:
        """Done: never deliver it again to this consumer."""
        ...

    async def nak(self, *, delay_seconds: float = 0.0) -> None:
        """Not done: deliver it again."""
        ...

    async def term(self, reason: str) -> None:
        """It can never be done: do not deliver it again."""
        ...


class Bus(Protocol):
    """A connection to the bus. Adapters reconnect for ever by themselves."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        ...

    @property
    def connected_since(self) -> float | None:
        """When the connection that there is now was made, on the monotonic clock; None while there is none."""
        ...

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        ...

    async def ensure_streams(self, specs: Iterable[StreamSpec]) -> None:
        """Make the streams that are missing and reconcile the settings of those that differ; without a connection, as soon as there is one."""
        ...

    async def publish(self, message: Message, *, expected_last: int | None = None, timeout_seconds: float = 5.0) -> int:
        """Keep ``message`` in the stream that its subject belongs to and return its sequence there.

        A message that was kept before, as its id tells, is not kept again; another message under the same id does not count as ours.
        It counts as kept also where it is itself the last one on its subject
        that nobody expected; where another one has followed it may count as overtaken.

        Args:
            message: what to keep.
            expected_last: keep it only behind this sequence as the last one on its subject, 0 for none; None keeps it behind anything.
            timeout_seconds: for the acknowledgement.

        Raises:
            BusUnavailable: no connection, or no acknowledgement in time.
            MessageRefused: the server refuses it for good.
            Overtaken: it was not kept, since another message than ``expected_last`` is the last one.
        """
        ...

    def consume(
        self,
        stream: StreamSpec,
        *,
        subjects: Sequence[str],
        durable: str | None = None,
        start: StartAt | int = StartAt.ALL,
        ack_wait_seconds: float = 30.0,
        on_loss: Callable[[], None] | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Deliveries of ``subjects``, for ever, over reconnects.

        Args:
            stream: where they are kept.
            subjects: filters, with NATS wildcards.
            durable: a name under which acknowledgements survive this process; None reads without acknowledging (``ack`` does nothing).
            start: where a consumer that is new begins; an int is a stream sequence. A durable consumer that exists goes on where it was.
            ack_wait_seconds: an unacknowledged message comes again after so long.
            on_loss: called where the stream has come back without messages that were delivered, as after a restore of its disk. Then what
                has been kept since is delivered, where ``start`` is ``LAST_PER_SUBJECT`` the last of each subject anew; a durable consumer that
                was beyond the stream's end begins at ``start``.
        """
        ...

    def live(self, stream: StreamSpec, subject: str) -> AbstractAsyncContextManager[AsyncIterator[LiveMessage | None]]:
        """What goes to ``stream`` from now on, of those of its subjects that it publishes once more (``StreamSpec.live``); no consumer.

        Not every message arrives: None comes first, and wherever some may have been missed; the reader then looks up what it needs (``last``).

        Args:
            stream: which keeps them.
            subject: a filter, with NATS wildcards, of as many tokens as the subjects have.
        """
        ...

    async def forget(self, stream: StreamSpec, durable: str) -> None:
        """Remove what is known of a durable consumer: whoever names it next begins anew.

        Raises:
            BusError: it could not be done now.
        """
        ...

    async def last(self, stream: StreamSpec, subject: str) -> Message | None:
        """The newest message kept on ``subject``, which may have wildcards, or None."""
        ...

    async def has(self, stream: StreamSpec) -> bool:
        """Whether somebody has made the stream.

        Raises:
            BusUnavailable: it cannot be asked now.
        """
        ...

    async def purge(self, stream: StreamSpec, subject: str) -> None:
        """Remove every message on ``subject``, which may have wildcards."""
        ...

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> bytes:
        """Ask whoever answers ``subject``.

        Raises:
            NoReply: nobody answered in time.
            BusUnavailable: no connection.
        """
        ...

    def answer(self, subject: str, handler: Callable[[bytes], Awaitable[bytes]]) -> AbstractAsyncContextManager[None]:
        """Answer requests on ``subject`` with ``handler`` while the context is open."""
        ...

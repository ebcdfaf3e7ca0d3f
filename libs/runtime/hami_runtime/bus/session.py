"""One connection to a NATS server, from its handshake to its end: send, subscribe, ask. It never reconnects; whoever wants another opens one.

nats-py carries the protocol. Its own reconnecting is switched off: it gives up for good on some errors, and what was asked over a lost
connection would wait for its time-out. Here everything that waits learns of the end at once.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import nats.aio.client
import nats.errors
import structlog
from nats.aio.msg import Msg

from hami_runtime.bus.credentials import Credentials, CredentialsError
from hami_runtime.bus.port import BusUnavailable, MessageRefused

log = structlog.get_logger()
CONNECT_SECONDS = 5
_PING_SECONDS = 10
_PUBLISH_FORBIDDEN = re.compile(r'permissions violation for publish to "([^"]+)"')
NO_RESPONDERS = "503"


class NobodyListens(BusUnavailable):
    """There is no subscriber, and no stream, for a subject that somebody was asked on."""


class Session:
    """An open connection.

    Attributes:
        closed: set when it has ended, for whatever reason.
    """

    def __init__(self, client: nats.aio.client.Client, closed: asyncio.Event) -> None:
        self.closed = closed
        self._client = client
        self._inbox = ""
        self._asked = 0
        self._answers: dict[str, tuple[str, asyncio.Future[Msg]]] = {}

    @classmethod
    async def open(cls, servers: list[str], *, name: str, credentials: Credentials, tls: ssl.SSLContext | None, inbox: str) -> Session:
        """Connect to one of ``servers``, and have answers sent to subjects below ``inbox``.

        Raises:
            BusUnavailable: none of them accepts us now.
        """
        try:
            options = credentials.connect_options()
        except CredentialsError as exc:
            raise BusUnavailable(str(exc)) from exc
        closed = asyncio.Event()
        client = nats.aio.client.Client()
        session = cls(client, closed)

        async def ended() -> None:
            closed.set()
            session._fail_all()

        async def failed(exc: Exception) -> None:
            session._note(exc)

        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.connect(
                    servers,
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=CONNECT_SECONDS,
                    ping_interval=_PING_SECONDS,
                    error_cb=failed,
                    disconnected_cb=ended,
                    closed_cb=ended,
                    tls=tls,
                    inbox_prefix=inbox,
                    **options,
                )
                await client.flush(timeout=CONNECT_SECONDS)  # nats-py takes a server that hangs up for one that lets us in
                session._inbox = session.new_inbox()
                await client.subscribe(f"{session._inbox}.*", cb=session._hear)
        except (OSError, TimeoutError, nats.errors.Error) as exc:
            await _discard(client)
            raise BusUnavailable(
                f"cannot connect to {', '.join(_without_secrets(each) for each in servers)}: {exc or type(exc).__name__}"
            ) from exc
        except BaseException:
            await _discard(client)
            raise
        return session

    @property
    def max_payload_bytes(self) -> int:
        """The largest body that the server takes."""
        return int(self._client.max_payload)

    async def send(self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Hand a message to the connection; it may still be lost with it.

        Raises:
            BusUnavailable: the connection has ended.
            MessageRefused: it is too large, or its subject or headers are none.
        """
        try:
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, ValueError) as exc:
            raise MessageRefused(f"{subject}: {exc}") from exc
        except (OSError, nats.errors.Error) as exc:
            raise BusUnavailable(f"{subject}: {exc}") from exc

    async def ask(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_seconds: float) -> Msg:
        """Send a message and return the first answer.

        Raises:
            NobodyListens: nobody could have answered.
            TimeoutError: nobody did.
            BusUnavailable: the connection ended.
            MessageRefused: we may not publish there.
        """
        if self.closed.is_set():
            raise BusUnavailable("not connected")
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[reply] = (subject, answer)
        try:
            await self.send(subject, data, reply=reply, headers=headers)
            async with asyncio.timeout(timeout_seconds):
                message = await answer
        finally:
            del self._answers[reply]
        if message.headers and message.headers.get("Status") == NO_RESPONDERS:
            raise NobodyListens(f"{subject}: nobody listens")
        return message

    def new_inbox(self) -> str:
        """A subject that is ours alone."""
        return str(self._client.new_inbox())

    async def subscribe(self, subject: str, handler: Callable[[Msg], Awaitable[None]], *, group: str = "") -> Callable[[], Awaitable[None]]:
        """Call ``handler`` for each message, one after the other; returns how to stop. Of a ``group`` one alone gets a message.

        Raises:
            BusUnavailable: the connection has ended.
        """
        try:
            subscription = await self._client.subscribe(subject, queue=group, cb=handler)
        except (OSError, nats.errors.Error) as exc:
            raise BusUnavailable(f"{subject}: {exc}") from exc

        async def unsubscribe() -> None:
            with suppress(OSError, nats.errors.Error):
                await subscription.unsubscribe()

        return unsubscribe

    async def flush(self) -> None:
        """Return once the server has taken what was sent to it, subscriptions included.

        Raises:
            BusUnavailable: it does not answer.
        """
        try:
            await self._client.flush(timeout=CONNECT_SECONDS)
        except (OSError, TimeoutError, nats.errors.Error) as exc:
            raise BusUnavailable(f"no answer: {exc or type(exc).__name__}") from exc

    async def while_open(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it is done or the connection has ended, whichever comes first."""
        task, ended = asyncio.ensure_future(work), asyncio.ensure_future(self.closed.wait())
        try:
            await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (task, ended):
                each.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)
        if not task.cancelled() and (exc := task.exception()):
            raise exc

    async def close(self) -> None:
        """Send what is waiting to be sent and end the connection."""
        with suppress(OSError, TimeoutError, nats.errors.Error):
            await self._client.flush(timeout=2)
        await _discard(self._client)
        self.closed.set()
        self._fail_all()

    async def _hear(self, message: Msg) -> None:
        waiting = self._answers.get(message.subject)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(message)

    def _fail_all(self) -> None:
        for subject, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BusUnavailable(f"{subject}: the connection ended before the answer came"))

    def _note(self, exc: Exception) -> None:
        """An error that the server told us of. nats-py gives its text in lower case."""
        forbidden = _PUBLISH_FORBIDDEN.search(str(exc))
        if not forbidden:
            log.info("NATS reports an error", error=str(exc) or type(exc).__name__)
            return
        log.warning("NATS does not let us publish", subject=forbidden[1])
        for subject, answer in self._answers.values():
            if subject.lower() == forbidden[1] and not answer.done():
                answer.set_exception(MessageRefused(f"{subject}: we may not publish there"))


async def _discard(client: nats.aio.client.Client) -> None:
    with suppress(OSError, TimeoutError, nats.errors.Error):
        await client.close()


def _without_secrets(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"

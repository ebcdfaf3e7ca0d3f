"""What one HTTP listener takes in at most: connections, bytes of bodies, seconds for a handshake, a header and a body. One home for all services.

Whoever fills a limit loses first: at the limit of connections the oldest one without a whole request is closed, and at the limit of bodies the
largest unfinished one is refused. A caller with a small request is served however many others send theirs slowly.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
_LOOK_SECONDS: Final = 0.5
_BACKLOG: Final = 128
_TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"


class Bounds(Struct, frozen=True, kw_only=True):
    """The limits of one listener."""

    connections: int = 512
    body_bytes: int = 64 * 2**20
    """Of all requests whose bodies are in memory, together."""
    handshake_seconds: float = 10.0
    header_seconds: float = 10.0
    """From the first byte of a request to the end of its header."""
    body_seconds: float = 30.0
    idle_seconds: float = 75.0
    """Between two requests, and before the first."""


class _Body(Struct, eq=False):
    """A body that is being read, or is in its handler's hands."""

    request: web.Request
    size: int = 0
    complete: bool = False


_BODY: Final = web.RequestKey("hami_body", _Body)


class BodyRefused(Exception):  # noqa: N818 - reads as the condition it names
    """A body that is not read to its end.

    Attributes:
        status: of the answer.
        reason: for the caller.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Bodies:
    """The bodies in memory of one listener."""

    def __init__(self, bounds: Bounds = Bounds(), telemetry: Telemetry = OFF) -> None:  # noqa: B008 - frozen
        self._bounds = bounds
        self._held: set[_Body] = set()
        self.bytes = 0
        self._refused = telemetry.counter("hami_http_refusals", "requests and connections that a limit has refused, by limit")

    async def read(self, request: web.Request, *, most_bytes: int) -> bytes:
        """The body of ``request``, which counts until ``release``.

        Raises:
            BodyRefused: it is too long (413), too slow (408), or one too many (503).
        """
        if (request.content_length or 0) > most_bytes:
            raise self._refusal("body", 413, f"the body is over the limit of {most_bytes} bytes")
        body = _Body(request)
        self._held.add(body)
        request[_BODY] = body
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._bounds.body_seconds):
                while part := await request.content.readany():
                    if body.size + len(part) > most_bytes:
                        raise self._refusal("body", 413, f"the body is over the limit of {most_bytes} bytes")
                    self._grow(body, len(part))
                    parts.append(part)
            body.complete = True
            return b"".join(parts)
        except TimeoutError as exc:
            raise self._refusal("body time", 408, f"the body was not here within {self._bounds.body_seconds:g} s") from exc
        finally:
            parts.clear()  # the connection keeps a refusal as long as it lasts, and with it this frame

    def release(self, request: web.Request) -> None:
        """The request has been answered."""
        body = request.get(_BODY)
        if body is not None and body in self._held:
            self._held.remove(body)
            self.bytes -= body.size

    def _grow(self, body: _Body, size: int) -> None:
        """Count ``size`` bytes more; where they are too many, refuse the largest unfinished body.

        Raises:
            BodyRefused: that is this one.
        """
        body.size += size
        self.bytes += size
        while self.bytes > self._bounds.body_bytes:
            largest = max((each for each in self._held if not each.complete and each.size), key=lambda each: each.size, default=body)
            refusal = self._refusal(
                "bodies", 503, f"{self._bounds.body_bytes} bytes of other requests are in memory; try again in a moment"
            )
            if largest is body or largest.size == body.size:
                raise refusal
            self.bytes -= largest.size
            largest.size = 0
            largest.request.content.set_exception(refusal)

    def _refusal(self, limit: str, status: int, reason: str) -> BodyRefused:
        self._refused.add(1, {"limit": limit})
        return BodyRefused(status, reason)


BODIES: Final = web.AppKey("hami_bodies", Bodies)


async def read_body(request: web.Request, *, most_bytes: int) -> bytes:
    """The body of ``request``, within the bounds of its listener.

    Raises:
        BodyRefused: it is too long (413), too slow (408), or one too many (503).
    """
    return await request.app[BODIES].read(request, most_bytes=most_bytes)


class _Connection(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and knows what the connection is doing."""

    def __init__(self, inner: asyncio.Protocol, known: dict[asyncio.Protocol, _Connection]) -> None:
        """``known`` has the connection for as long as it is open."""
        self.inner = inner
        self._known = known
        self.busy = 0
        """Requests that are being answered."""
        self.since = asyncio.get_running_loop().time()
        """When it was accepted, or last became idle."""
        self.header_since: float | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._known[self.inner] = self
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._known.pop(self.inner, None)
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.busy and self.header_since is None:
            self.header_since = asyncio.get_running_loop().time()
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def close(self, answer: bytes = b"") -> None:
        """End it now, with ``answer`` where one is given."""
        if self._transport is None:
            return
        if answer:
            self._transport.write(answer)
            self._transport.close()
        else:
            self._transport.abort()


class Listener:
    """Accepts connections for one application, within ``bounds``.

    Attributes:
        port: the bound port.
        bodies: what its requests have in memory.
    """

    def __init__(self, app: web.Application, bounds: Bounds, *, tls: ssl.SSLContext | None, telemetry: Telemetry = OFF) -> None:
        self.port = 0
        self.bodies = app[BODIES] = Bodies(bounds, telemetry)
        self._bounds = bounds
        self._tls = tls
        self._connections: dict[asyncio.Protocol, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._refused = telemetry.counter("hami_http_refusals", "requests and connections that a limit has refused, by limit")
        app.middlewares.insert(0, self._follow)

    @property
    def connections(self) -> int:
        """How many there are, those in their handshake included."""
        return self._opening + len(self._connections)

    async def run(self, server: Callable[[], asyncio.Protocol], listening: socket.socket) -> None:
        """Accept from ``listening`` until cancelled."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look())
                while True:
                    try:
                        accepted, _ = await loop.sock_accept(listening)
                    except OSError as exc:  # no descriptor left, or a client that has gone already
                        log.warning("connection not accepted", port=self.port, error=str(exc))
                        await asyncio.sleep(_LOOK_SECONDS)
                        continue
                    if self.connections >= self._bounds.connections and not self._make_place():
                        self._refused.add(1, {"limit": "connections"})
                        self._turn_away(accepted)
                        continue
                    self._opening += 1
                    task = loop.create_task(self._open(server, accepted))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            for task in tuple(self._tasks):
                task.cancel()

    async def _open(self, server: Callable[[], asyncio.Protocol], accepted: socket.socket) -> None:
        connection = _Connection(server(), self._connections)
        options = {"ssl": self._tls, "ssl_handshake_timeout": self._bounds.handshake_seconds} if self._tls is not None else {}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **options)  # type: ignore[arg-type]
        except OSError:  # ssl.SSLError and TimeoutError are OSErrors
            accepted.close()
        finally:
            self._opening -= 1

    def _make_place(self) -> bool:
        """Close the oldest connection that has no whole request; whether there was one."""
        waiting = [each for each in self._connections.values() if not each.busy]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: each.since if each.header_since is None else min(each.since, each.header_since))
        self._refused.add(1, {"limit": "connections"})
        self._connections.pop(oldest.inner, None)
        oldest.close()
        return True

    def _turn_away(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            if self._tls is None:
                accepted.setblocking(False)
                accepted.send(_FULL)
            accepted.close()

    async def _look(self) -> None:
        """Close connections whose header takes too long, and idle ones."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            for each in tuple(self._connections.values()):
                if each.busy:
                    continue
                if each.header_since is not None and now - each.header_since > self._bounds.header_seconds:
                    self._refused.add(1, {"limit": "header time"})
                    each.close(_TIMED_OUT)
                elif each.header_since is None and now - each.since > self._bounds.idle_seconds:
                    each.close()

    @web.middleware
    async def _follow(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self._connections.get(cast("asyncio.Protocol", request.protocol))
        if connection is not None:
            connection.busy += 1
            connection.header_since = None
        try:
            return await handler(request)
        except BodyRefused as exc:
            response = web.Response(status=exc.status, text=exc.reason + "\n", headers={"Retry-After": "1"} if exc.status == 503 else {})
            response.force_close()
            return response
        finally:
            self.bodies.release(request)
            if connection is not None:
                connection.busy -= 1
                connection.since = asyncio.get_running_loop().time()


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address cannot be bound.
    """
    if not host:
        return socket.create_server(("", port), backlog=_BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6())

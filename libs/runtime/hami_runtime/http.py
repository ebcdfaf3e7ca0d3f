"""Serving HTTP: health, readiness and metrics for every service, and any aiohttp application on a port or a unix socket.

Alive means that the process answers. Ready means that it can do its job now; what it lacks is in the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web, web_response

from hami_runtime import telemetry as measuring
from hami_runtime.http_bounds import Bounds, Listener, bound_socket
from hami_runtime.settings import ProcessSettings
from hami_runtime.telemetry import OFF, Telemetry

Readiness = Callable[[], str | None]
"""What is lacking, in a person's words; None when the service can do its job now."""

SHUTDOWN_SECONDS = 5.0
LINGERING_SECONDS = 2.0
"""How long the rest of a body that was refused is still read, so that the client sees the answer."""
vars(web_response)["SERVER_SOFTWARE"] = "hami"
"""The header ``Server`` of every answer, malformed requests' included; aiohttp's own has its version and Python's."""


def error_response(status: HTTPStatus, error: str) -> web.Response:
    """``{"error": …}`` with its status: how every service's ``/v1`` refuses a request."""
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    return web.Response(body=msgspec.json.encode({"error": error}), status=status, content_type="application/json", headers=headers)


def health_routes(ready: Readiness, telemetry: Telemetry = OFF) -> list[web.RouteDef]:
    """``/healthz``, ``/readyz`` (503 with the reason where not ready) and ``/metrics``."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        lacking = ready()
        return web.Response(text="ok\n") if lacking is None else web.Response(status=503, text=f"not ready: {lacking}\n")

    async def metrics(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": measuring.CONTENT_TYPE})
        await response.prepare(request)
        for piece in telemetry.prometheus_pieces():
            if piece:
                await response.write(piece)
            await asyncio.sleep(0)  # a page may be long, and what this process is there for does not wait for it
        await response.write_eof()
        return response

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]


@asynccontextmanager
async def serve_app(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    ssl: ssl.SSLContext | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    telemetry: Telemetry = OFF,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
) -> AsyncIterator[int]:
    """Serve ``app`` within ``bounds`` and give the bound port; at the end, requests at hand have ``shutdown_seconds`` to finish."""
    listener = Listener(app, bounds, tls=ssl, telemetry=telemetry)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_seconds, lingering_time=LINGERING_SECONDS)
    await runner.setup()
    with bound_socket(host, port) as listening:
        listener.port = listening.getsockname()[1]
        accepting = asyncio.create_task(listener.run(runner.server, listening))  # type: ignore[arg-type]
        try:
            yield listener.port
        finally:
            accepting.cancel()
            await asyncio.wait((accepting,))
            await runner.cleanup()


def bounds_of(settings: ProcessSettings) -> Bounds:
    """The bounds of a listener, as a process's settings say."""
    return Bounds(connections=settings.max_connections, body_bytes=settings.max_bodies_mib * 2**20)


class HealthServer:
    """Health, readiness and metrics on a port of their own, as an async context manager.

    Attributes:
        port: the bound port, once the context is open.
    """

    def __init__(self, ready: Readiness, *, telemetry: Telemetry = OFF, host: str = "127.0.0.1", port: int = 0) -> None:
        self.port = port
        self._host = host
        self._app = web.Application()
        self._telemetry = telemetry
        self._app.add_routes(health_routes(ready, telemetry))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(serve_app(self._app, self._host, self.port, telemetry=self._telemetry))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._stack.aclose()

"""Serving HTTP: health, readiness and metrics for every service, and any aiohttp application on a port or a unix socket.

Alive means that the process answers. Ready means that it can do its job now; what it lacks is in the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

from aiohttp import web, web_response

from hami_runtime import telemetry as measuring
from hami_runtime.telemetry import OFF, Telemetry

Readiness = Callable[[], str | None]
"""What is lacking, in a person's words; None when the service can do its job now."""

SHUTDOWN_SECONDS = 5.0
vars(web_response)["SERVER_SOFTWARE"] = "hami"
"""The header ``Server`` of every answer, malformed requests' included; aiohttp's own has its version and Python's."""


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
    unix: str | None = None,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
) -> AsyncIterator[int]:
    """Serve ``app`` and give the bound port (0 for a unix socket); at the end, requests at hand have ``shutdown_seconds`` to finish."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_seconds)
    await runner.setup()
    try:
        if unix is not None:
            await web.UnixSite(runner, unix, ssl_context=ssl).start()
            yield 0
        else:
            await web.TCPSite(runner, host, port, ssl_context=ssl, reuse_address=True).start()
            yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class HealthServer:
    """Health, readiness and metrics on a port of their own, as an async context manager.

    Attributes:
        port: the bound port, once the context is open.
    """

    def __init__(self, ready: Readiness, *, telemetry: Telemetry = OFF, host: str = "127.0.0.1", port: int = 0) -> None:
        self.port = port
        self._host = host
        self._app = web.Application()
        self._app.add_routes(health_routes(ready, telemetry))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(serve_app(self._app, self._host, self.port))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self._stack.aclose()

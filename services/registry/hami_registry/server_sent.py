"""Server-sent events to one reader: they go on for as long as he reads, and may read. Decides nothing about what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

QUIET_SECONDS: Final = 15.0
"""A stream says so often that it still lives."""
REVIEW_SECONDS: Final = 60.0
"""A reader's rights are looked at again so often."""
HEADERS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event(data: bytes, *, name: str = "", place: int = 0) -> bytes:
    """One event: ``data`` in one line, what it is called, and the place after which a reader who comes back goes on."""
    head = f"id: {place}\n" * bool(place) + f"event: {name}\n" * bool(name)
    return head.encode() + b"data: " + data + b"\n\n"


async def tell(
    request: web.Request, events: AsyncIterator[bytes], *, first: bytes, may_read: Callable[[], Awaitable[bool]]
) -> web.StreamResponse:
    """Answer ``request`` with ``first`` and with ``events`` until there are no more, or the reader has gone or may not read any more."""
    response = web.StreamResponse(headers=HEADERS)
    with suppress(ConnectionResetError):
        await response.prepare(request)
        await _write(response, first)
        await _pass_on(response, events, may_read)
    return response


async def _pass_on(response: web.StreamResponse, events: AsyncIterator[bytes], may_read: Callable[[], Awaitable[bool]]) -> None:
    clock = asyncio.get_running_loop()
    review_at = clock.time() + REVIEW_SECONDS
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_next(events))
            await asyncio.wait((coming,), timeout=QUIET_SECONDS)  # which does not cancel it: a generator that is cancelled is at its end
            if coming.done():
                data, coming = coming.result(), None
                if data is None:
                    return
                await _write(response, data)
            else:
                await _write(response, b": quiet\n\n")
            if clock.time() >= review_at:
                if not await may_read():
                    return
                review_at = clock.time() + REVIEW_SECONDS
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait((coming,))


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write, to a reader that reads.

    Raises:
        ConnectionResetError: it does not, or has gone.
    """
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            await response.write(data)
    except TimeoutError as exc:
        raise ConnectionResetError("the reader does not read") from exc

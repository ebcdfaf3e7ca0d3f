"""The extender over HTTP: what is no usable answer is an error in kube-scheduler's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from hami_rig.scheduler.extender import ExtenderError, HttpTransport
from hami_runtime.http import serve_app


@pytest_asyncio.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    async def echo(request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        return web.Response(body=await request.read())

    async def fail(request: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/api/filter", echo), web.post("/api/bind", fail), web.post("/api/preempt", hang)])
    async with serve_app(app, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        yield HttpTransport(session, f"http://127.0.0.1:{port}/api/")


async def test_a_request_is_posted_below_the_prefix(transport: HttpTransport) -> None:
    assert await transport.post("filter", b"{}", timeout_seconds=5) == b"{}"


async def test_any_status_but_200_is_an_error(transport: HttpTransport) -> None:
    with pytest.raises(ExtenderError, match=r"failed bind with extender at URL http://.*/api/bind, code 500"):
        await transport.post("bind", b"{}", timeout_seconds=5)


async def test_an_answer_that_takes_too_long_is_an_error(transport: HttpTransport) -> None:
    with pytest.raises(ExtenderError, match="context deadline exceeded"):
        await transport.post("preempt", b"{}", timeout_seconds=0.1)


async def test_an_extender_that_is_not_there_is_an_error() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ExtenderError, match=r'Post "http://127.0.0.1:1/filter"'):
            await HttpTransport(session, "http://127.0.0.1:1").post("filter", b"{}", timeout_seconds=5)

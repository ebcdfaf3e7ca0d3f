"""At each limit of an HTTP listener: whoever fills it loses first, and a caller with a small request is served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from hami_runtime import self_signed
from hami_runtime.http import serve_app
from hami_runtime.http_bounds import BODIES, BodyRefused, Bounds, read_body
from hami_runtime.telemetry import Telemetry

MOST = 1000
CLIENTS: list[asyncio.StreamWriter] = []


async def echo(request: web.Request) -> web.Response:
    try:
        return web.Response(text=str(len(await read_body(request, most_bytes=MOST))))
    except BodyRefused as exc:
        return web.Response(status=exc.status, text=exc.reason)


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None, **bounds: float) -> AsyncIterator[tuple[web.Application, int, Telemetry]]:
    app, telemetry = web.Application(), Telemetry("test")
    app.add_routes([web.post("/", echo)])
    async with serve_app(app, ssl=tls, bounds=Bounds(**bounds), telemetry=telemetry, shutdown_seconds=0.1) as port:  # type: ignore[arg-type]
        yield app, port, telemetry
    telemetry.close()


async def begin(port: int, sent: bytes) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    CLIENTS.append(writer)
    writer.write(sent)
    await writer.drain()
    return reader


@pytest.fixture(autouse=True)
async def clients_end() -> AsyncIterator[None]:
    yield
    while CLIENTS:
        writer = CLIENTS.pop()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def small(port: int) -> int:
    async with aiohttp.ClientSession() as session, session.post(f"http://127.0.0.1:{port}/", data=b"x") as answer:
        return answer.status


def head(length: int) -> bytes:
    return f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


async def eventually(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])


async def test_a_body_that_says_or_proves_to_be_too_long_is_refused() -> None:
    async with served() as (_, port, _), aiohttp.ClientSession() as session:
        reader = await begin(port, head(MOST + 1))
        assert await status_of(reader) == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        async with session.post(f"http://127.0.0.1:{port}/", data=chunks()) as answer:
            assert answer.status == 413
            assert await answer.text() == "the body is over the limit of 1000 bytes"


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with served(body_seconds=0.2) as (_, port, _):
        reader = await begin(port, head(100) + b"x")
        assert await status_of(reader) == 408


async def test_unfinished_bodies_give_way_the_largest_first_and_small_requests_are_served() -> None:
    """40 callers hold back the last byte of as much as one may send."""
    async with served(body_bytes=10 * MOST) as (app, port, telemetry):
        readers = [await begin(port, head(MOST) + b"x" * (MOST - 1 - number)) for number in range(40)]
        await eventually(lambda: 'limit="bodies"' in telemetry.prometheus_text().decode())
        for _ in range(5):
            assert await small(port) == 200
            assert app[BODIES].bytes <= 10 * MOST
        assert len(readers) == 40
        await eventually(lambda: app[BODIES].bytes == 0)


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: x\r\n", b"G"])
async def test_a_connection_without_a_whole_header_is_closed_in_time(sent: bytes) -> None:
    async with served(header_seconds=0.2, idle_seconds=0.2) as (_, port, _):
        reader = await begin(port, sent)
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer == b"" if not sent else answer.startswith(b"HTTP/1.1 408 ")


async def test_a_trickled_header_has_no_more_time_than_a_silent_one() -> None:
    async with served(header_seconds=0.3) as (_, port, _):
        reader = await begin(port, b"GET / HTTP/1.1\r\n")

        async def trickle() -> None:
            while True:
                CLIENTS[-1].write(b"A: b\r\n")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(10):
            assert await status_of(reader) == 408
        trickling.cancel()


async def test_at_the_limit_of_connections_the_oldest_without_a_request_goes() -> None:
    async with served(connections=8) as (_, port, telemetry):
        readers = [await begin(port, b"POST / HTTP/1.1\r\n") for _ in range(50)]
        for _ in range(5):
            assert await small(port) == 200
        assert len(readers) == 50
        assert 'hami_http_refusals_total{limit="connections"}' in telemetry.prometheus_text().decode()


async def test_where_all_are_being_answered_one_more_is_turned_away_and_the_others_are_finished() -> None:
    gate = asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        await gate.wait()
        return web.Response(text="done")

    app = web.Application()
    app.add_routes([web.get("/", slow)])
    async with serve_app(app, bounds=Bounds(connections=8), shutdown_seconds=0.1) as port:
        held = [await begin(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(8)]
        await asyncio.sleep(0.2)
        reader = await begin(port, b"")
        assert await status_of(reader) == 503
        gate.set()
        for each in held:
            assert await status_of(each) == 200


async def test_over_tls_too_and_a_handshake_that_does_not_come_is_given_up(certificate: ssl.SSLContext) -> None:
    async with served(certificate, handshake_seconds=0.3, header_seconds=0.3, connections=8) as (_, port, _):
        silent = [await begin(port, b"") for _ in range(4)]
        async with asyncio.timeout(10):
            assert await silent[0].read() == b""
        async with aiohttp.ClientSession() as session:
            async with session.post(f"https://127.0.0.1:{port}/", data=b"xyz", ssl=False) as answer:
                assert (answer.status, await answer.text()) == (200, "3")
            for _ in range(3):
                async with session.post(f"https://127.0.0.1:{port}/", data=b"x" * 500, ssl=False) as answer:
                    assert answer.status == 200


@pytest.fixture
def certificate() -> ssl.SSLContext:
    return self_signed.context("test")

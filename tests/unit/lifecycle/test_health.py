import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from hami_runtime.http import HealthServer, serve_app
from hami_runtime.telemetry import Telemetry


async def fetched(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_alive_is_not_ready() -> None:
    lacking: list[str] = ["no registration seen yet"]
    telemetry = Telemetry("test")
    telemetry.counter("hami_tests", "tests").add(1)
    async with HealthServer(lambda: lacking[0] if lacking else None, telemetry=telemetry) as health:
        url = f"http://127.0.0.1:{health.port}"
        assert await fetched(f"{url}/healthz") == (200, "ok\n")
        assert await fetched(f"{url}/readyz") == (503, "not ready: no registration seen yet\n")
        lacking.clear()
        assert await fetched(f"{url}/readyz") == (200, "ok\n")
        status, text = await fetched(f"{url}/metrics")
        assert (status, "hami_tests_total 1.0" in text) == (200, True)


@pytest.mark.parametrize("request_line", [b"GET /healthz HTTP/1.1", b"GET /nowhere HTTP/1.1", b"NONSENSE"])
async def test_no_answer_names_the_versions_of_what_runs(request_line: bytes) -> None:
    async with HealthServer(lambda: None) as health:
        reader, writer = await asyncio.open_connection("127.0.0.1", health.port)
        writer.write(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert b"Server: hami\r\n" in answer
    assert b"aiohttp" not in answer
    assert b"Python" not in answer


async def test_requests_at_hand_are_finished() -> None:
    begun = asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        begun.set()
        await asyncio.sleep(0.2)
        return web.json_response({"done": True})

    app = web.Application()
    app.router.add_get("/", slow)
    async with asyncio.TaskGroup() as group, serve_app(app) as port:
        answer = group.create_task(fetched(f"http://127.0.0.1:{port}/"))
        await begun.wait()
    status, text = answer.result()
    assert (status, json.loads(text)) == (200, {"done": True})

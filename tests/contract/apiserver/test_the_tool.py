"""What the embedded server adds for tests and benchmarks; a real one has none of it."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from hami_rig.apiserver import ApiServer, ApiServerSettings
from hami_rig.apiserver.faults import Fault

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(ApiServerSettings(watch_history=10)) as server:
        yield server


@pytest.fixture
async def session(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, headers={"User-Agent": "test/1 (x)"}) as session:
        yield session


async def test_requests_are_counted_by_kind(session: aiohttp.ClientSession) -> None:
    for _ in range(2):
        await session.get(PODS)
    await session.post(f"{PODS}/p/binding", json={"target": {"name": "n"}})
    async with session.get("/rig/requests") as response:
        rows = (await response.json())["requests"]
    head = {"resource": "pods", "user_agent": "test/1"}
    assert {**head, "verb": "list", "subresource": "", "count": 2} in rows
    assert {**head, "verb": "create", "subresource": "binding", "count": 1} in rows
    await session.delete("/rig/requests")
    async with session.get("/rig/requests") as response:
        assert (await response.json())["requests"] == []


@pytest.mark.parametrize(("after_commit", "kept"), [(False, 404), (True, 200)])
async def test_an_ordered_failure_comes_before_or_after_the_write(
    server: ApiServer, session: aiohttp.ClientSession, after_commit: bool, kept: int
) -> None:
    server.faults.order(Fault(verb="create", resource="configmaps", status=500, after_commit=after_commit))
    assert (await session.post(MAPS, json={"metadata": {"name": "m"}})).status == 500
    assert (await session.get(f"{MAPS}/m")).status == kept
    assert (await session.post(MAPS, json={"metadata": {"name": "n"}})).status == 201


async def test_an_answer_can_be_lost(server: ApiServer, session: aiohttp.ClientSession) -> None:
    server.faults.order(Fault(resource="configmaps", status=0, after_commit=True))
    with pytest.raises(aiohttp.ClientError):
        await session.post(MAPS, json={"metadata": {"name": "m"}})
    assert (await session.get(f"{MAPS}/m")).status == 200


async def test_an_outage_that_is_none_is_refused(session: aiohttp.ClientSession) -> None:
    async with session.post("/rig/down", json={"seconds": "long"}) as response:
        assert response.status == 400
        assert "$.seconds" in (await response.json())["message"]


async def test_an_outage_ends_watches_and_keeps_objects(server: ApiServer, session: aiohttp.ClientSession) -> None:
    await session.post(MAPS, json={"metadata": {"name": "m"}})
    async with session.get(MAPS, params={"watch": "true"}) as watch:
        assert json.loads(await watch.content.readline())["type"] == "ADDED"
        assert (await session.post("/rig/down", json={"seconds": 0.2})).status == 200
        with contextlib.suppress(aiohttp.ClientError):
            assert await watch.content.readline() == b""
    with pytest.raises(aiohttp.ClientConnectionError):
        await asyncio.gather(*(session.get(MAPS) for _ in range(5)))
    async with asyncio.timeout(10):
        while True:
            try:
                assert (await session.get(f"{MAPS}/m")).status == 200
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


async def test_a_watch_too_far_back_is_told_to_list_again(session: aiohttp.ClientSession) -> None:
    for index in range(12):
        await session.post(MAPS, json={"metadata": {"name": f"m{index}"}})
    async with session.get(MAPS, params={"watch": "true", "resourceVersion": "1"}) as watch:
        event = json.loads(await watch.content.readline())
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.content.readline() == b""


async def test_idle_watches_are_told_how_far_they_are() -> None:
    async with ApiServer(ApiServerSettings(bookmark_seconds=0.01)) as server, aiohttp.ClientSession(server.url) as session:
        since = str(server.store.revision)
        async with session.get(MAPS, params={"watch": "true", "resourceVersion": since, "allowWatchBookmarks": "true"}) as watch:
            event = json.loads(await watch.content.readline())
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", since)


async def test_a_token_names_its_user_and_a_wrong_one_is_nobodys() -> None:
    async with ApiServer(ApiServerSettings(token="secret")) as server, aiohttp.ClientSession(server.url) as session:
        assert (await session.get(PODS)).status == 401
        assert (await session.get(PODS, headers={"Authorization": "Bearer wrong"})).status == 401
        review = {"spec": {"token": "system:serviceaccount:hami:agent@node-1"}}
        headers = {"Authorization": "Bearer secret"}
        async with session.post("/apis/authentication.k8s.io/v1/tokenreviews", json=review, headers=headers) as response:
            status = (await response.json())["status"]
        assert status["user"] == {
            "username": "system:serviceaccount:hami:agent",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:hami", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/node-name": ["node-1"]},
        }


async def test_as_a_process_it_says_where_it_is_and_stops_when_told(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hami_rig.apiserver", "--kubeconfig", kubeconfig, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            url = json.loads(await process.stdout.readline())["url"]
            assert json.loads(kubeconfig.read_text())["clusters"][0]["cluster"] == {"server": url}
            assert kubeconfig.stat().st_mode & 0o777 == 0o600
            async with aiohttp.ClientSession(url) as session, session.get(PODS, params={"watch": "true"}) as watch:
                assert watch.status == 200
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

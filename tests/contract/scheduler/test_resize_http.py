"""``POST /v1/resize`` over real HTTP: who may, what is refused, and that a page of another site cannot."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import aiohttp
import pytest
from aiohttp import web

from hami_runtime.clock import SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import let_all_in
from hami_scheduler import resize_api
from hami_scheduler.forwarding import forwarding
from tests.contract.scheduler.test_http import replica
from tests.contract.scheduler.world import World


@pytest.fixture
def world() -> World:
    return World(SystemClock())


async def posted(api: str, body: object, *, token: str = "", kind: str = "application/json") -> tuple[int, str]:
    headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = body if isinstance(body, bytes) else aiohttp.JsonPayload(body)
    async with aiohttp.ClientSession() as session, session.post(f"{api}/v1/resize", data=data, headers=headers) as answer:
        return answer.status, str((await answer.json())["error"])


WISH = {"namespace": "default", "pod": "p1", "memoryMib": 1000}


async def test_a_wish_that_makes_no_sense_is_told_so(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one:
        assert (await posted(one.api, WISH))[0] == 404
        assert (await posted(one.api, WISH, kind="text/plain"))[0] == 415
        assert (await posted(one.api, b"["))[0] == 400
        for wrong in ({"memoryMib": 0}, {"memoryMib": 2**40}, {"cores": 101}, {"cores": -1}, {"memoryMib": "4Gi"}):
            status, error = await posted(one.api, WISH | wrong)
            assert (status, next(iter(wrong)) in error) == (400, True)
        await world.pod("p1", gpu=1, gpumem=2000)
        assert await posted(one.api, WISH) == (409, "pod default/p1 is not running")


async def test_only_who_may_patch_the_pod_may_resize_it(world: World) -> None:
    taken: list[ResourceAccess | None] = []

    async def refuse(_request: web.Request, access: ResourceAccess | None) -> tuple[HTTPStatus, str] | None:
        taken.append(access)
        if access is None:
            return None  # a token that is known
        return HTTPStatus.FORBIDDEN, "eve may not patch pod default/p1"

    await world.node("n1")
    async with replica(world, "s1", guarded=True) as one:
        assert (await posted(one.api, WISH))[0] == 401
        app = web.Application()
        app.add_routes([resize_api.route(one.scheduler, refuse)])
        async with serve_app(app) as port:
            assert await posted(f"http://127.0.0.1:{port}", WISH) == (403, "eve may not patch pod default/p1")
    assert taken == [None, ResourceAccess(verb="patch", resource="pods", namespace="default", name="p1")]


async def test_nothing_is_read_of_a_body_before_it_is_known_who_asks(world: World) -> None:
    """A caller without a token is refused although its body never comes."""
    await world.node("n1")
    async with replica(world, "s1", guarded=True) as one:
        port = int(one.api.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/resize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        await writer.wait_closed()


async def test_a_follower_hands_a_wish_on_to_the_leader_who_reviews_who_asks(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one, replica(world, "s2") as two:
        assert (two.scheduler.leads(), one.scheduler.leads()) == (False, True)
        await world.pod("p1", gpu=1, gpumem=2000)
        assert await posted(two.api, WISH) == (409, "pod default/p1 is not running")
        assert (await posted(two.api, WISH | {"pod": "p2"}))[0] == 404
        assert (await posted(two.api, WISH | {"cores": 101}))[0] == 400
    async with replica(world, "s1", guarded=True), replica(world, "s2") as lenient:
        assert (await posted(lenient.api, WISH))[0] == 401, "what a follower lets in, the leader reviews all the same"
        assert (await posted(lenient.api, WISH, token="alice"))[0] == 409


async def test_a_leader_that_is_not_reached_is_named(world: World) -> None:
    await world.node("n1")
    async with replica(world, "s1") as one, replica(world, "s2") as two, forwarding() as nowhere:
        app = web.Application()
        app.add_routes([resize_api.route(two.scheduler, let_all_in, nowhere)])
        assert one.scheduler.leads()
        async with serve_app(app) as port:
            nowhere.pass_on = unreachable  # type: ignore[method-assign]
            status, error = await posted(f"http://127.0.0.1:{port}", WISH)
            assert (status, error) == (503, "this replica does not lead: the leader s1 cannot be reached")


async def unreachable(*_: object) -> tuple[int, bytes]:
    raise ConnectionError("the leader s1 cannot be reached")

"""What is on the bus, read over HTTP: the same messages as there, for whom Kubernetes lets see the like; and the command line's two ways to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_cli import ask
from hami_cli.exits import CommandError
from hami_cli.sources import BusSource, RegistrySource, Source
from hami_protocol import cloud_events, envelope, subjects
from hami_protocol.envelope import Message
from hami_protocol.events import Event, PodRefused
from hami_registry import bus_reads, server_sent
from hami_runtime.bus.filters import matches
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.clock import SystemClock
from hami_runtime.http import serve_app
from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ACCESS_REVIEWS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.readers import USER, Readers
from tests.contract.scheduler.world import World
from tests.web.scene import CARDS, Scene, scene

PHASES = ["pod_assigned", "pod_allocating", "allocation_succeeded"]


@asynccontextmanager
async def both(**options: Any) -> AsyncIterator[tuple[Scene, list[Source]]]:
    """A scene with one node, and the two places to read its bus from."""
    async with AsyncExitStack() as stack:
        shown = await stack.enter_async_context(scene(**options))
        line = await stack.enter_async_context(ask.connect(ask.Service(shown.url, "", "", "")))
        await shown.add_node("n1", *CARDS[1])
        async with asyncio.timeout(10):
            while not shown.scheduler.picture.state.nodes():  # noqa: ASYNC110 - an informer gives no event for one node
                await asyncio.sleep(0.01)
        yield shown, [BusSource(shown.world.bus, "memory"), RegistrySource(line, shown.url)]


def tag(event: Event) -> str:
    return str(type(event).__struct_config__.tag)


async def logged(source: Source, *whose: str, **options: Any) -> list[tuple[int, str, str]]:
    """Place, pod and what happened, of each message of the log."""
    found = []
    async with aclosing(source.log(*whose, **options)) as log:
        async for each in log:
            event = envelope.open_message(each.message)
            found.append((each.sequence, event.pod.name, tag(event)))  # type: ignore[union-attr]  # the log is of pods
    return found


async def test_the_registry_says_what_the_bus_says() -> None:
    async with both() as (shown, (bus, registry)):
        await shown.run_pod("p1", gpu=1, gpumem=3000)
        await shown.run_pod("p2", gpu=1, gpumem=3000)
        await shown.run_pod("big", gpu=1, gpumem=99999)
        await settled(bus, 6)
        for source in (bus, registry):
            assert [(pod, what) for _, pod, what in await logged(source)] == [(pod, what) for pod in ("p1", "p2") for what in PHASES]
            assert await logged(source, "default", "p2") == [(place, "p2", what) for place, what in zip((4, 5, 6), PHASES, strict=True)]
            assert len(await logged(source, "default")) == 6
            assert await logged(source, "elsewhere") == []
            assert await logged(source, since=datetime.now(UTC) + timedelta(hours=1)) == []
            assert len(await logged(source, since=datetime.now(UTC) - timedelta(hours=1))) == 6
            assert [node.name for node in (await source.inventory()).nodes] == ["n1"]
            assert await source.streams() == {stream.name: True for stream in subjects.STREAMS}
        assert await registry.devices() == await bus.devices() != []
        assert await registry.verdicts("default", "big") == events_of(await bus.verdicts("default", "big"))
        (refused,) = map(envelope.open_message, await registry.verdicts("default", "big"))
        assert isinstance(refused, PodRefused)
        assert {m.subject for m in await registry.verdicts("default")} == {m.subject for m in await bus.verdicts()} != set()
        assert await registry.usage() == await bus.usage() == await registry.verdicts("default", "never-was") == []


def events_of(messages: Sequence[Message]) -> list[Message]:
    """``messages`` without what is the stream's alone."""
    return [replace(each, headers={key: value for key, value in each.headers.items() if key != envelope.MESSAGE_ID}) for each in messages]


async def settled(source: Source, count: int) -> None:
    """Return once the log has so many messages: the scheduler publishes when it has answered."""
    async with asyncio.timeout(10):
        while len(await logged(source)) < count:  # noqa: ASYNC110 - it tells nobody when it has
            await asyncio.sleep(0.01)


async def test_a_body_nobody_can_read_comes_as_it_is() -> None:
    async with both() as (shown, (bus, registry)):
        await shown.world.bus.publish(envelope.Message(subject=subjects.usage("n1"), data=b"\xff\n{"))
        assert [message.data for message in await registry.usage()] == [message.data for message in await bus.usage()] == [b"\xff\n{"]


async def test_who_follows_hears_what_comes_and_goes_on_where_he_was_cut_off() -> None:
    async with both() as (shown, (_, registry)), AsyncExitStack() as stack:
        await shown.run_pod("p1", gpu=1, gpumem=3000)
        heard: list[str] = []
        cut = Cutting(shown.url)
        port = await stack.enter_async_context(serve_app(cut.application(), shutdown_seconds=0))
        stack.callback(cut.off)
        line = await stack.enter_async_context(ask.connect(ask.Service(f"http://127.0.0.1:{port}", "", "", "")))
        async with asyncio.timeout(30), aclosing(RegistrySource(line, "proxy").log(follow=True)) as log:
            async for each in log:
                event = envelope.open_message(each.message)
                heard.append(f"{event.pod.name} {tag(event)}")  # type: ignore[union-attr]
                if len(heard) == 3:
                    await shown.run_pod("p2", gpu=1, gpumem=3000)
                    cut.off()
                if len(heard) == 6:
                    break
        assert heard == [f"{pod} {what}" for pod in ("p1", "p2") for what in PHASES]
        assert cut.asked[0] == ""
        assert cut.asked[1], "who comes back says where he was"
        assert await logged(registry)


class Cutting:
    """A proxy that ends what goes through it when it is told to."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._open: set[asyncio.Task[Any]] = set()
        self.asked: list[str] = []

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._pass_on)
        return app

    def off(self) -> None:
        for task in self._open:
            task.cancel()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse()
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self._url}{request.rel_url}", headers=request.headers) as answer:
                await response.prepare(request)
                async for data in answer.content.iter_any():
                    await response.write(data)
        finally:
            self._open.discard(task)
        return response


async def test_a_log_that_ends_before_its_end_is_said_to_be_cut_off() -> None:
    async def torn(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(server_sent.event(cloud_events.encode(envelope.Message(subject="a.b", data=b"{}")), place=7))
        return response

    app = web.Application()
    app.router.add_get("/v1/events", torn)
    async with serve_app(app) as port, ask.connect(ask.Service(f"http://127.0.0.1:{port}", "", "", "")) as line:
        log = RegistrySource(line, "x").log()
        assert (await anext(log)).sequence == 7, "what came before is told"
        with pytest.raises(CommandError, match="ended too early"):
            await anext(log)


class Clerk(MemoryCluster):
    """An API server at which each may do what his name says, as ``list pods`` or ``get pods default/p1``, parts of it joined by ``+``."""

    async def create(self, kind: Any, body: Any, *, namespace: str | None = None) -> Any:
        answer = await super().create(kind, body, namespace=namespace)
        if kind == ACCESS_REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            scope = "/".join(asked[key] for key in ("namespace", "name") if key in asked)
            right = " ".join(filter(None, (asked["verb"], asked["resource"], scope)))
            answer = {**answer, "status": {"allowed": right in body["spec"]["user"].split("+")}}
        return answer


@pytest.mark.parametrize(
    ("path", "rights"),
    [
        ("events", "list pods"),
        ("events?namespace=default", "list pods default"),
        ("events?namespace=default&pod=p1", "get pods default/p1"),
        ("verdicts", "list pods"),
        ("verdicts?namespace=default&pod=p1", "get pods default/p1"),
        ("usage", "list nodes+list pods"),
        ("devices", "list nodes"),
        ("streams", "list nodes"),
        ("inventory", "list nodes"),
    ],
)
async def test_nobody_is_shown_what_kubernetes_would_not_show_him(path: str, rights: str) -> None:
    readers = Readers(AccessReviewer(Clerk(World(SystemClock()).store), SystemClock()))
    async with scene(authorize=readers) as shown, aiohttp.ClientSession() as session:

        async def status(user: str) -> int:
            headers = {"Authorization": f"Bearer {user}"} if user else {}
            async with session.get(f"{shown.url}v1/{path}", headers=headers) as answer:
                return answer.status

        assert await status("") == 401
        assert await status("list secrets") == 403
        assert await status(rights) == 200
        for other in ("list nodes", "list pods", "list pods default", "get pods default/p1", "get pods default/p2"):
            if other != rights:
                assert await status(other) == 403


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pod=p1", "namespace: missing beside pod 'p1'"),
        ("namespace=a.*", "namespace: 'a.*' cannot be part of a subject"),
        ("namespace=a&pod=%3E", "pod: '>' cannot be part of a subject"),
        (f"namespace={'a' * 254}", "at most 253 characters"),
        ("since=yesterday", "since: 'yesterday'; accepted: a time as"),
        ("follow=perhaps", "follow: 'perhaps'; accepted: true, false"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_with_what_is_accepted(query: str, said: str) -> None:
    async with scene() as shown, aiohttp.ClientSession() as session, session.get(f"{shown.url}v1/events?{query}") as answer:
        assert answer.status == 400
        assert said in (await answer.json())["error"]


@given(st.dictionaries(st.sampled_from(["namespace", "pod", "since", "follow"]), st.text()), st.text())
def test_whatever_is_asked_is_understood_or_refused(query: dict[str, str], place: str) -> None:
    try:
        asked = bus_reads.log_question(query, place)
    except ValueError:
        return
    assert asked.right.namespace == query.get("namespace", "")
    assert matches(subjects.ALL_ALLOCATIONS, asked.subject)


async def test_without_a_bus_it_says_so_and_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as shown, aiohttp.ClientSession() as session:

        async def asked(path: str) -> tuple[int, str]:
            async with session.get(f"{shown.url}v1/{path}") as answer:
                return answer.status, await answer.text()

        monkeypatch.setattr(bus_reads, "MOST_READERS", 1)
        monkeypatch.setattr(server_sent, "QUIET_SECONDS", 0.05)  # who has gone is missed when he is written to
        async with session.get(f"{shown.url}v1/events?follow=true") as following:
            assert await following.content.readline() == b": the log follows\n"
            assert (await asked("events"))[0] == 503
        async with asyncio.timeout(10):
            while (await asked("events"))[0] != 200:  # noqa: ASYNC110 - the service sees in its own time that a reader has gone
                await asyncio.sleep(0.05)
        shown.world.bus.down()
        for path in ("events", "usage", "verdicts", "devices", "streams"):
            status, text = await asked(path)
            assert (status, "bus" in text) == (503, True)
        shown.world.bus.up()


async def test_one_user_cannot_keep_all_others_from_reading() -> None:
    tokens = {"of-one": "one", "of-another": "other"}

    async def authorize(request: web.Request, _access: ResourceAccess) -> None:
        request[USER] = tokens[request.headers["Authorization"]]

    bus = MemoryBus()
    await bus.ensure_streams(subjects.STREAMS)
    app = web.Application()
    app.add_routes(bus_reads.routes(bus, authorize))
    async with serve_app(app, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session, AsyncExitStack() as stack:

        async def follow(token: str) -> int:
            url = f"http://127.0.0.1:{port}/v1/events?follow=true"
            answer = await stack.enter_async_context(session.get(url, headers={"Authorization": token}))
            return answer.status

        statuses = [await follow("of-one") for _ in range(bus_reads.MOST_OF_ONE + 5)]
        assert statuses == [200] * bus_reads.MOST_OF_ONE + [429] * 5
        assert await follow("of-another") == 200


def test_each_message_of_the_log_has_its_place() -> None:
    assert server_sent.event(b"{}", place=7) == b"id: 7\ndata: {}\n\n"
    assert server_sent.event(b"{}", name="end") == b"event: end\ndata: {}\n\n"


async def test_a_reader_whose_right_is_taken_away_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sent, "REVIEW_SECONDS", 0.0)
    monkeypatch.setattr(server_sent, "QUIET_SECONDS", 0.05)
    allowed = True

    async def authorize(_request: object, _access: object) -> tuple[HTTPStatus, str] | None:
        return None if allowed else (HTTPStatus.FORBIDDEN, "no more")

    async with (
        scene(authorize=authorize) as shown,
        aiohttp.ClientSession() as session,
        session.get(f"{shown.url}v1/events?follow=true") as following,
        asyncio.timeout(10),
    ):
        assert await following.content.readline() == b": the log follows\n"
        allowed = False
        await following.content.read()  # to its end

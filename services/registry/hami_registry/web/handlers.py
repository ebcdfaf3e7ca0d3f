"""What the page asks over HTTP: ``/v1/page/...``, for who may list nodes and pods. Decides nothing; ``feed`` knows.

The stream of changes is server-sent events. It ends when its reader does not keep up, or may not read any more; the page then begins anew.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from hami_registry import server_sent
from hami_registry.seats import Seats
from hami_registry.web.feed import MOST_LISTENERS, Feed, Listener, SchedulerSilent
from hami_runtime.http import error_response
from hami_runtime.http_bounds import BodyRefused, read_body
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Authorize, Refusal

RIGHTS: Final = (ResourceAccess(verb="list", resource="nodes"), ResourceAccess(verb="list", resource="pods"))
"""What one must be allowed to see the page's figures."""
MOST_QUESTION_BYTES: Final = 512 * 1024
MOST_SIMULATIONS: Final = 2
MOST_OF_ONE: Final = 10
"""Pages that one user has open."""
"""At once; each keeps the scheduler busy."""


def routes(feed: Feed, authorize: Authorize) -> list[web.RouteDef]:
    """The routes, answered from ``feed`` to whom ``authorize`` lets in."""
    return _Handlers(feed, authorize).routes()


class _Handlers:
    def __init__(self, feed: Feed, authorize: Authorize) -> None:
        self._feed = feed
        self._authorize = authorize
        self._simulating = 0
        self._seats = Seats()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/page/overview", self._overview),
            web.get("/v1/page/nodes/{node}", self._node),
            web.get("/v1/page/card", self._card),
            web.get("/v1/page/changes", self._changes),
            web.post("/v1/page/simulate", self._simulate),
        ]

    async def _refusal(self, request: web.Request) -> Refusal | None:
        for right in RIGHTS:
            if (refusal := await self._authorize(request, right)) is not None:
                return refusal
        return None

    async def _overview(self, request: web.Request) -> web.Response:
        if (refusal := await self._refusal(request)) is not None:
            return error_response(*refusal)
        try:
            return _json(self._feed.overview(self._at(request)))
        except ValueError as exc:
            return error_response(HTTPStatus.BAD_REQUEST, str(exc))

    async def _node(self, request: web.Request) -> web.Response:
        if (refusal := await self._refusal(request)) is not None:
            return error_response(*refusal)
        name = request.match_info["node"]
        try:
            found = self._feed.node(name, self._at(request))
        except ValueError as exc:
            return error_response(HTTPStatus.BAD_REQUEST, str(exc))
        return error_response(HTTPStatus.NOT_FOUND, f"there is no node {name} with devices") if found is None else _json(found)

    async def _card(self, request: web.Request) -> web.Response:
        if (refusal := await self._refusal(request)) is not None:
            return error_response(*refusal)
        node, uuid = request.query.get("node", ""), request.query.get("uuid", "")
        found = self._feed.card(node, uuid)
        return error_response(HTTPStatus.NOT_FOUND, f"there is no card {uuid!r} on node {node!r}") if found is None else _json(found)

    async def _simulate(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # which a page of another site cannot send
            return error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {request.content_type}; accepted: application/json")
        if (refusal := await self._refusal(request)) is not None:
            return error_response(*refusal)
        try:
            question = await read_body(request, most_bytes=MOST_QUESTION_BYTES)
        except BodyRefused as exc:
            return error_response(HTTPStatus(exc.status), exc.reason)
        if self._simulating >= MOST_SIMULATIONS:
            return error_response(HTTPStatus.TOO_MANY_REQUESTS, f"{MOST_SIMULATIONS} simulations are on their way; try again in a moment")
        self._simulating += 1
        try:
            answer = await self._feed.simulate(question)
        except SchedulerSilent as exc:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"the scheduler does not answer: {exc}")
        finally:
            self._simulating -= 1
        refused = b'"error"' in answer[:16]
        return web.Response(body=answer, status=HTTPStatus.BAD_REQUEST if refused else HTTPStatus.OK, content_type="application/json")

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        if (refusal := await self._refusal(request)) is not None:
            return error_response(*refusal)
        if (refusal := self._seats.refusal(request, most=MOST_LISTENERS, of_one=MOST_OF_ONE)) is not None:
            return error_response(*refusal)
        if self._feed.full:
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many are listening already; the page can be read without live changes"
            )

        async def may_read() -> bool:
            return await self._refusal(request) is None

        with self._seats.taken(request), self._feed.listen() as listener:
            return await server_sent.tell(request, _changes(listener), first=b": changes follow\n\n", may_read=may_read)

    def _at(self, request: web.Request) -> float | None:
        """The moment that is asked for, or the nearest that can be told of; None for now.

        Raises:
            ValueError: it is no moment.
        """
        text = request.query.get("at", "")
        if not text:
            return None
        try:
            at = float(text)
        except ValueError:
            at = math.nan
        if not math.isfinite(at):
            raise ValueError(f"at: {text[:40]!r}; accepted: Unix seconds")
        begins, now = self._feed.span()
        return min(max(at, begins), now)


async def _changes(listener: Listener) -> AsyncIterator[bytes]:
    while (data := await listener.get()) is not None:
        yield server_sent.event(data, name="change")


def _json(fact: msgspec.Struct) -> web.Response:
    response = web.Response(body=msgspec.json.encode(fact), content_type="application/json", headers={"Cache-Control": "no-store"})
    response.enable_compression()
    return response

"""``POST /v1/resize``: a wish for other sizes, as JSON (``resizing.Wish``), from who may patch the pod. Decides nothing.

The leader alone answers, and never over the bus, where nobody says who asks; a follower says who leads.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web

from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Authorize
from hami_scheduler.resizing import ResizeRefused, State, Wish
from hami_scheduler.service import Scheduler


def route(scheduler: Scheduler, authorize: Authorize) -> web.RouteDef:
    """The route, answered by ``scheduler`` to whom ``authorize`` lets in."""

    async def resize(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # which a page of another site cannot send
            return _problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {request.content_type}; accepted: application/json")
        try:
            wish = msgspec.json.decode(await request.read(), type=Wish)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            return _problem(HTTPStatus.BAD_REQUEST, f"the wish cannot be read: {exc}")
        refusal = await authorize(request, ResourceAccess(verb="patch", resource="pods", namespace=wish.namespace, name=wish.pod))
        if refusal is not None:
            return _problem(*refusal)
        return await _answer(scheduler, wish)

    return web.post("/v1/resize", resize)


async def _answer(scheduler: Scheduler, wish: Wish) -> web.Response:
    if (obstacle := scheduler.obstacle()) is not None:
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, obstacle)
    try:
        found = await scheduler.resize(wish)
    except ResizeRefused as exc:
        return _problem(HTTPStatus.CONFLICT, str(exc))
    if found is None:
        return _problem(HTTPStatus.NOT_FOUND, f"there is no pod {wish.namespace}/{wish.pod}")
    status = HTTPStatus.OK if found.state is State.APPLIED else HTTPStatus.ACCEPTED
    return web.Response(body=msgspec.json.encode(found), status=status, content_type="application/json")


def _problem(status: HTTPStatus, error: str) -> web.Response:
    return web.Response(body=msgspec.json.encode({"error": error}), status=status, content_type="application/json")

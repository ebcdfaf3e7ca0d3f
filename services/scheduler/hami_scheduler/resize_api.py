"""``POST /v1/resize``: a wish for other sizes, as JSON (``ResizeRequest``), from who may patch the pod. Decides nothing.

The leader alone answers, and never over the bus, where nobody says who asks. A follower hands the wish on to it with the token of who asks, which
the leader reviews itself: there the route is beside the extender's, and no less guarded than here.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from hami_protocol.resize import ResizeRequest, ResizeState
from hami_runtime.http import error_response
from hami_runtime.http_bounds import BodyRefused, read_body
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.login import TOKEN_HEADER
from hami_runtime.kube.readers import Authorize, token_of
from hami_scheduler.forwarding import FORWARDED, Forwarder
from hami_scheduler.resizing import ResizeRefused
from hami_scheduler.service import Scheduler

PATH: Final = "/v1/resize"
MAX_BODY_BYTES: Final = 64 * 1024


def route(scheduler: Scheduler, authorize: Authorize, forwarder: Forwarder | None = None) -> web.RouteDef:
    """The route, answered by ``scheduler`` to whom ``authorize`` lets in, or by the leader that ``forwarder`` reaches."""

    async def resize(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # which a page of another site cannot send
            return error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {request.content_type}; accepted: application/json")
        if (refusal := await authorize(request, None)) is not None:
            return error_response(*refusal)
        try:
            body = await read_body(request, most_bytes=MAX_BODY_BYTES)
        except BodyRefused as exc:
            return error_response(HTTPStatus(exc.status), exc.reason)
        try:
            wish = msgspec.json.decode(body, type=ResizeRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            return error_response(HTTPStatus.BAD_REQUEST, f"the wish cannot be read: {exc}")
        refusal = await authorize(request, ResourceAccess(verb="patch", resource="pods", namespace=wish.namespace, name=wish.pod))
        if refusal is not None:
            return error_response(*refusal)
        leader = scheduler.leader
        if forwarder is None or leader is None or FORWARDED in request.headers:
            return await _answer(scheduler, wish)
        try:
            status, answer = await forwarder.pass_on(leader, PATH, body, {TOKEN_HEADER: token_of(request)})
        except (ConnectionError, TimeoutError) as exc:
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, f"this replica does not lead: {str(exc) or 'the leader has not answered in time'}"
            )
        return web.Response(body=answer, status=status, content_type="application/json")

    return web.post(PATH, resize)


async def _answer(scheduler: Scheduler, wish: ResizeRequest) -> web.Response:
    if (obstacle := scheduler.obstacle()) is not None:
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, obstacle)
    try:
        found = await scheduler.resize(wish)
    except ResizeRefused as exc:
        return error_response(HTTPStatus.CONFLICT, str(exc))
    if found is None:
        return error_response(HTTPStatus.NOT_FOUND, f"there is no pod {wish.namespace}/{wish.pod}")
    status = HTTPStatus.OK if found.state is ResizeState.APPLIED else HTTPStatus.ACCEPTED
    return web.Response(body=msgspec.json.encode(found), status=status, content_type="application/json")

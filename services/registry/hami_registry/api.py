"""The registry over HTTP: ``GET /v1/inventory`` for whoever may list nodes, what is on the bus, and the web page where there is one.

Who is let in is ``hami_runtime.kube.readers``' to say. A listener that lets all in serves this machine alone: a request that came by another
name, as a page of another site can bring about by pointing its own name here, is turned away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from hami_protocol.inventory import Inventory
from hami_registry import bus_reads
from hami_registry.web import bundle, handlers
from hami_registry.web.feed import Feed
from hami_runtime.bus.port import Bus
from hami_runtime.http import error_response
from hami_runtime.kube.readers import Authorize, let_all_in


def application(inventory: Callable[[], Inventory], bus: Bus, authorize: Authorize, feed: Feed | None = None) -> web.Application:
    """The application, with the page where there is a ``feed`` for it."""

    async def answer(request: web.Request) -> web.Response:
        if (refusal := await authorize(request, bus_reads.LIST_NODES)) is not None:
            return error_response(*refusal)
        return web.Response(body=msgspec.json.encode(inventory()), content_type="application/json")

    app = web.Application(middlewares=[_from_this_machine] if authorize is let_all_in else [])
    app.on_response_prepare.append(_guarded)
    app.add_routes([web.get("/v1/inventory", answer), *bus_reads.routes(bus, authorize)])
    if feed is not None:
        app.add_routes([*handlers.routes(feed, authorize), *bundle.routes()])
    return app


@web.middleware
async def _from_this_machine(request: web.Request, handler: Handler) -> web.StreamResponse:
    name = request.url.host or ""
    if not _is_loopback(name):
        return error_response(
            HTTPStatus.MISDIRECTED_REQUEST, f"Host: {name[:80]!r}; accepted: localhost, since this listener asks nobody for a token"
        )
    result: Awaitable[web.StreamResponse] = handler(request)
    return await result


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


async def _guarded(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(bundle.HEADERS)

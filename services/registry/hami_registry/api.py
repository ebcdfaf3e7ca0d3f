"""``GET /v1/inventory`` over HTTP, for whoever may list nodes; the same on the bus, where permissions are the bus's."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from hami_protocol.inventory import Inventory
from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ClusterError

_LIST_NODES = ResourceAccess(verb="list", resource="nodes")


def application(inventory: Callable[[], Inventory], access: AccessReviewer | None) -> web.Application:
    """The application; without ``access`` it is open, which is for loopback."""

    async def answer(request: web.Request) -> web.Response:
        if access is not None:
            await _require(access, request.headers.get("Authorization", ""))
        return web.Response(body=msgspec.json.encode(inventory()), content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/v1/inventory", answer)])
    return app


async def _require(access: AccessReviewer, authorization: str) -> None:
    scheme, _, token = authorization.partition(" ")
    try:
        user = await access.user_of(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise web.HTTPUnauthorized(text="a bearer token is required\n", headers={"WWW-Authenticate": "Bearer"})
        if not await access.may(user, _LIST_NODES):
            raise web.HTTPForbidden(text=f"{user.name} may not list nodes\n")
    except ClusterError as exc:
        raise web.HTTPServiceUnavailable(text=f"the API server cannot be asked who you are: {exc}\n") from exc

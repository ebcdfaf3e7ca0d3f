"""A registry of images that gives none: each name says how it refuses. Over HTTP, or over TLS with a certificate that nobody trusts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from hami_runtime import self_signed
from hami_runtime.http import serve_app
from tests.cluster.harness import ports

STATUS: Final = {"unknown": 404, "private": 401, "busy": 429}
INDEX: Final = "application/vnd.oci.image.index.v1+json"
OTHERS: Final = {
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "digest": f"sha256:{'0' * 64}",
    "size": 2,
    "platform": {"os": "linux", "architecture": "s390x"},
}
"""The one manifest of an index: for machines that are not ours."""


@asynccontextmanager
async def registry_of_images() -> AsyncIterator[dict[str, str]]:
    """By what is wrong with them, images that cannot be pulled."""

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"].rpartition("/")[2]
        if name == "foreign":
            return web.json_response({"schemaVersion": 2, "mediaType": INDEX, "manifests": [OTHERS]}, content_type=INDEX)
        return web.json_response({"errors": []}, status=STATUS[name])

    def app() -> web.Application:
        routes = ("/v2/{name:.+}/manifests/{tag}", "/v2/{name:.+}/blobs/{digest}")
        served = web.Application()
        served.add_routes([web.get(route, answer) for route in routes])
        return served

    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(serve_app(app()))
        secure = await stack.enter_async_context(serve_app(app(), ports.own_address(), ssl=self_signed.context("registry")))
        images = {name: f"127.0.0.1:{plain}/team/{name}:1" for name in (*STATUS, "foreign")}
        yield {**images, "distrusted": f"{ports.own_address()}:{secure}/team/app:1", "unreachable": f"127.0.0.1:{ports.free()}/team/app:1"}

"""The page's own files: plain HTML, CSS and JavaScript modules as they are in ``page/``, read once, served compressed and without a build step.

Nothing of it comes from another host, and the browser is told to let nothing else in: no inline script, no ``eval``, no frame around it, and no
text becomes HTML (trusted types).
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import Final

from aiohttp import web
from msgspec import Struct

CONTENT_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Of every answer, the page's and the API's."""


class Asset(Struct, frozen=True, kw_only=True):
    """One file."""

    content_type: str
    content: bytes
    compressed: bytes
    tag: str


def assets() -> dict[str, Asset]:
    """All files, by name."""
    folder = resources.files(__package__).joinpath("page")
    return {file.name: _asset(file.name, file.read_bytes()) for file in folder.iterdir() if file.name.rpartition(".")[2] in CONTENT_TYPES}


def routes() -> list[web.RouteDef]:
    """The page at ``/``, and its files beside it."""
    files = assets()

    async def answer(request: web.Request) -> web.Response:
        asset = files.get(request.match_info.get("file") or "index.html")
        if asset is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": asset.content_type, "ETag": asset.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == asset.tag:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=asset.compressed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=asset.content, headers=headers)

    return [web.get("/", answer), web.get(r"/{file:[a-z-]+\.(?:html|css|js|svg)}", answer)]


def _asset(name: str, content: bytes) -> Asset:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    compressed = gzip.compress(content, mtime=0)
    return Asset(content_type=CONTENT_TYPES[name.rpartition(".")[2]], content=content, compressed=compressed, tag=tag)

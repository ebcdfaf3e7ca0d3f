"""How the registry says over HTTP that it does not answer: ``{"error": …}`` with its status."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web


def problem(status: HTTPStatus, error: str) -> web.Response:
    """The answer to who cannot be answered."""
    headers = {"WWW-Authenticate": "Bearer"} if status is HTTPStatus.UNAUTHORIZED else {}
    return web.Response(body=msgspec.json.encode({"error": error}), status=status, content_type="application/json", headers=headers)

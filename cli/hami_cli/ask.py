"""Asks the scheduler's ``/v1`` over HTTP, and says in plain words what it answers instead of an answer."""

from __future__ import annotations

import aiohttp
import msgspec

from hami_cli.exits import CommandError

TIMEOUT_SECONDS = 70.0
"""Longer than the scheduler itself takes for its longest answer."""


async def get(url: str, path: str, token: str) -> bytes:
    """The body of the answer to a GET.

    Raises:
        CommandError: it is an error; the text says which.
    """
    return await _asked("GET", url, path, token, None)


async def post(url: str, path: str, token: str, body: bytes) -> bytes:
    """The body of the answer to a POST of JSON.

    Raises:
        CommandError: it is an error; the text says which.
    """
    return await _asked("POST", url, path, token, body)


async def _asked(method: str, url: str, path: str, token: str, body: bytes | None) -> bytes:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, connect=10)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url.rstrip("/") + path, headers=headers, data=body) as answer,
        ):
            content = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
        raise CommandError(f"{url}: {str(exc) or type(exc).__name__}") from exc
    if not answer.ok:
        raise CommandError(f"{url}: {answer.status}: {_reason(content)}")
    return content


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content, type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError):
        return content.decode(errors="replace")[:500]

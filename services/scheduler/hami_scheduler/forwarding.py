"""How a follower reaches the leader: a replica's identity carries the URL of its extender, and the Lease carries the identity."""

from __future__ import annotations

import io
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp

FORWARDED = "X-Hami-Forwarded"
"""On a request that a replica hands on: it is answered or refused, never handed on again."""
TIMEOUT_SECONDS = 30.0


def identity(name: str, url: str) -> str:
    """The identity of replica ``name`` whose extender others reach at ``url``; empty where nobody does."""
    return f"{name}@{url}" if url else name


def address(identity: str) -> str | None:
    """The URL in an identity; None where it has none."""
    _, at, url = identity.rpartition("@")
    return url if at and url.startswith(("http://", "https://")) else None


class Forwarder:
    """Hands requests to the leader; made by ``forwarding``."""

    def __init__(self, session: aiohttp.ClientSession, tls: ssl.SSLContext | None, server_name: str) -> None:
        self._session = session
        self._tls = tls
        self._server_name = server_name or None

    async def post(self, leader: str, path: str, body: bytes) -> bytes:
        """POST ``body`` to the replica with identity ``leader`` and return its answer.

        Raises:
            ConnectionError: it cannot be reached, or has not answered as an extender does.
            TimeoutError: it has not answered in time.
        """
        status, answer = await self.pass_on(leader, path, body)
        if status != HTTPStatus.OK:
            raise ConnectionError(f"the leader {leader} answered {status}")
        return answer

    async def pass_on(self, leader: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """POST ``body`` to the replica with identity ``leader`` and return what it answers, whatever that is.

        Raises:
            ConnectionError: it cannot be reached.
            TimeoutError: it has not answered in time.
        """
        url = address(leader)
        if url is None:
            raise ConnectionError(f"the leader {leader} does not say where it is")
        sent = {**(headers or {}), FORWARDED: "1", "Content-Type": "application/json"}
        try:
            async with self._session.post(
                url + path, data=io.BytesIO(body), headers=sent, ssl=self._tls or True, server_hostname=self._server_name
            ) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as exc:
            raise ConnectionError(f"the leader {leader} cannot be reached: {exc}") from exc


@asynccontextmanager
async def forwarding(tls: ssl.SSLContext | None = None, *, server_name: str = "") -> AsyncIterator[Forwarder]:
    """A forwarder while the context is open.

    Args:
        tls: has the client certificate and the authority, for extenders behind TLS.
        server_name: that their certificates must be for; empty for the address in a leader's URL, which pods do not know beforehand.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as session:
        yield Forwarder(session, tls, server_name)

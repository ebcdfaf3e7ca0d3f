"""Asks a service's ``/v1`` over HTTP, and says in plain words what it answers instead of an answer.

Its place is a URL, or ``service://NAMESPACE/NAME:PORT``: then through the API server's service proxy, with the kubeconfig's login. The proxy takes
``Authorization`` for itself, so that the token that the service reviews goes in a header of its own: the user's, or else the kubeconfig's.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from hami_cli.exits import CommandError, reason_of
from hami_cli.places import REGISTRY_URL, SCHEDULER_URL, kubeconfig_path, place
from hami_runtime.kube.login import TOKEN_HEADER, login

SERVICE = "service://"
_SERVICE = re.compile(SERVICE + r"(?P<namespace>[a-z0-9-]{1,63})/(?P<name>[a-z0-9-]{1,63}):(?P<port>[a-z0-9-]{1,63})")
TIMEOUT_SECONDS = 70.0
"""Longer than the scheduler itself takes for its longest answer."""
SILENCE_SECONDS = 60.0
"""A stream says more often than that that it lives."""
OPEN = "open"
MOST_LINE_BYTES = 4 * 1024 * 1024


class Service(NamedTuple):
    """Where a service is, and who asks it."""

    url: str
    token: str
    kubeconfig: str
    context: str


class Refused(CommandError):  # noqa: N818 - reads as the condition it names
    """The service has answered, and not with what was asked for."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Told(Struct, frozen=True, kw_only=True):
    """One server-sent event."""

    name: str = ""
    place: str = ""
    data: bytes = b""


def scheduler(url: str, token: str, kubeconfig: str, context: str) -> Service:
    """The scheduler, as the user said; where he said nothing that of the rig, or of the cluster."""
    return Service(place("scheduler_url", url, SCHEDULER_URL, kubeconfig=kubeconfig), token, kubeconfig, context)


def registry(url: str, token: str, kubeconfig: str, context: str) -> Service:
    """The registry, likewise."""
    return Service(place("registry_url", url, REGISTRY_URL, kubeconfig=kubeconfig), token, kubeconfig, context)


async def get(asked: Service, path: str) -> bytes:
    """The body of the answer to one GET.

    Raises:
        CommandError: it is an error; the text says which.
    """
    async with connect(asked) as line:
        return await line.get(path)


async def post(asked: Service, path: str, body: bytes) -> bytes:
    """The body of the answer to one POST of JSON.

    Raises:
        CommandError: it is an error; the text says which.
    """
    async with connect(asked) as line:
        return await line.post(path, body)


@asynccontextmanager
async def connect(asked: Service) -> AsyncIterator[Line]:
    """A way to the service, for as many questions as there are.

    Raises:
        CommandError: the place names no service.
        ClusterError: there is no kubeconfig to go by.
    """
    way = await _through_api_server(asked) if asked.url.startswith(SERVICE) else _straight(asked)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, connect=10)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=MOST_LINE_BYTES) as session:
        yield Line(asked.url, way, session)


class Line:
    """An open way to a service."""

    def __init__(self, url: str, way: _Way, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._way = way
        self._session = session

    async def get(self, path: str, **query: str) -> bytes:
        """The body of the answer to a GET.

        Raises:
            CommandError: it is an error; the text says which.
        """
        return await self._asked("GET", path, query, None)

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer to a POST of JSON.

        Raises:
            CommandError: it is an error; the text says which.
        """
        return await self._asked("POST", path, {}, body)

    async def listen(self, path: str, *, after: str = "", **query: str) -> AsyncGenerator[Told, None]:
        """That it is ``OPEN``, and server-sent events; ``after`` is the place of the last that is known.

        Raises:
            CommandError: there are none; the text says why.
            ConnectionError: there may be more, and the connection is gone.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=SILENCE_SECONDS)
        headers = {"Last-Event-ID": after} if after else {}
        try:
            async with self._request("GET", path, query, None, headers=headers, timeout=timeout) as answer:
                if not answer.ok:
                    raise _refused(self._url, answer.status, await answer.read())
                yield Told(name=OPEN)
                async for told in _events(answer.content):
                    yield told
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            raise ConnectionError(f"{self._url}: {reason_of(exc)}") from exc

    async def _asked(self, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> bytes:
        try:
            async with self._request(method, path, query, body) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            raise CommandError(f"{self._url}: {reason_of(exc)}") from exc
        if not answer.ok:
            raise _refused(self._url, answer.status, content)
        return content

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        way = self._way
        return self._session.request(
            method,
            way.base + path,
            params={key: value for key, value in query.items() if value},
            headers={"Content-Type": "application/json"} | way.headers | dict(headers or {}),
            data=body,
            ssl=way.tls,
            server_hostname=way.server_name,
            proxy=way.proxy,
            timeout=timeout or self._session.timeout,
        )


class _Way(NamedTuple):
    base: str
    headers: dict[str, str]
    tls: ssl.SSLContext | bool = True
    server_name: str | None = None
    proxy: str | None = None


def _straight(asked: Service) -> _Way:
    return _Way(asked.url.rstrip("/"), {"Authorization": f"Bearer {asked.token}"} if asked.token else {})


async def _through_api_server(asked: Service) -> _Way:
    """The API server's proxy to the service, which speaks TLS of its own making to it.

    Raises:
        CommandError: the place names no service.
        ClusterError: there is no kubeconfig to go by.
    """
    match = _SERVICE.fullmatch(asked.url)
    if match is None:
        raise CommandError(f"{asked.url}: no service; accepted: {SERVICE}NAMESPACE/NAME:PORT, or a URL")
    account = await login(kubeconfig_path(asked.kubeconfig), asked.context or None)
    authorization = await account.authorization()
    token = asked.token or authorization.removeprefix("Bearer ")
    headers = {"Authorization": authorization} if authorization else {}
    return _Way(
        f"{account.server}/api/v1/namespaces/{match['namespace']}/services/https:{match['name']}:{match['port']}/proxy",
        headers | ({TOKEN_HEADER: token} if token else {}),
        account.tls or True,
        account.server_name,
        account.proxy,
    )


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[Told, None]:
    """The events of a body; comments are passed over."""
    fields: dict[bytes, bytes] = {}
    async for line in content:
        key, _, value = line.rstrip(b"\r\n").partition(b":")
        if key:
            fields[key] = value.removeprefix(b" ")
        elif line.strip() == b"":
            if b"data" in fields:
                yield Told(name=fields.get(b"event", b"").decode(), place=fields.get(b"id", b"").decode(), data=fields[b"data"])
            fields = {}


def _refused(url: str, status: int, content: bytes) -> CommandError:
    """What a service says instead of an answer; what somebody on the way to it says is none of its own."""
    try:
        return Refused(f"{url}: {status}: {msgspec.json.decode(content, type=dict[str, str])['error']}", status)
    except (msgspec.DecodeError, KeyError):
        return CommandError(f"{url}: {status}: {content.decode(errors='replace')[:500]}")

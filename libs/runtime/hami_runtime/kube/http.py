"""The API server over HTTP: the cluster port on aiohttp, with kubernetes-asyncio's configuration and bodies left to msgspec.

Reads are tried again a few times. Writes are not, except where the server says that it did not look at them (401, 429): a write whose answer
was lost raises ``Unavailable`` with ``maybe_applied``, and the caller looks. A refused connection is no lost answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from hami_protocol.devices import PodRef
from hami_runtime.kube import wire
from hami_runtime.kube.bodies import binding, delete_options, eviction, with_preconditions
from hami_runtime.kube.cluster import PODS, Body, Change, ClusterError, Kind, Listing, TooManyRequests, Unavailable, WatchExpired
from hami_runtime.kube.login import Login, login
from hami_runtime.telemetry import OFF, Telemetry

T = TypeVar("T")

REQUEST_SECONDS = 10.0
_LIST_SECONDS = 120.0
_EVICTION_SECONDS = 30.0
"""The API server itself tries an eviction that is in conflict for ten seconds."""
_PAGE_OBJECTS = 500
_WATCH_SECONDS = (240, 480)
"""The server ends a watch after a time between these, so that not all end at once."""
_SILENCE_SECONDS = 100.0
"""Bookmarks come about once a minute: a watch that is silent for longer may have lost its server, and is begun again."""
_READ_TRIES = 3
_THROTTLED_TRIES = 4
_LONGEST_THROTTLE_SECONDS = 5.0
_CONNECTIONS = 64
REVIEW_CONNECTIONS = 8
"""For the reviews of tokens and rights, which strangers cause: apart from those of a service's own calls."""
_VERSION: Kind[Body] = Kind(api_version="v1", kind="Info", plural="version", namespaced=False, type=dict)
_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_UNAUTHORIZED = 401
_FIRST_ERROR = 400


class HttpCluster:
    """A client of one API server; made by ``connect``."""

    def __init__(self, requests: aiohttp.ClientSession, watches: aiohttp.ClientSession, account: Login, telemetry: Telemetry) -> None:
        self._requests = requests
        self._watches = watches
        self._login = account
        self._open: dict[aiohttp.ClientResponse, None] = {}
        self._counted = telemetry.counter("hami_kube_requests", "requests to the API server, by verb, resource and status (0: no answer)")
        self._timed = telemetry.histogram("hami_kube_request_seconds", "how long the API server takes to answer, by verb and resource")

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._login.server

    async def version(self) -> str:
        """The API server's version, as ``v1.34.2``, with whatever its vendor adds."""
        return str(msgspec.json.decode(await self._read("get", _VERSION, "/version", {}), type=dict[str, Any]).get("gitVersion", ""))

    def close_watches(self) -> None:
        """Hang up on all watches; whoever reads them sees them end and begins again."""
        for response in tuple(self._open):
            response.close()

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep_as: Callable[[T], T] | None = None,
    ) -> Listing[T]:
        """All objects of a kind, fetched in pages that belong to one version."""
        params = _selecting(labels, fields) | {"limit": str(_PAGE_OBJECTS)}
        items: list[T] = []
        while True:
            try:
                page = wire.decode_page(kind, await self._read("list", kind, _path(kind, namespace), params, seconds=_LIST_SECONDS))
            except WatchExpired:
                if "continue" not in params:
                    raise
                del params["continue"], params["limit"]  # the pages took too long: all at once, then
                items.clear()
                continue
            items += page.items if keep_as is None else map(keep_as, page.items)
            if not page.next_page:
                return Listing(items=items, resource_version=page.resource_version)
            params["continue"] = page.next_page

    @asynccontextmanager
    async def watch(
        self, kind: Kind[T], *, since: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[AsyncIterator[Change[T]]]:
        """Changes after a version."""
        params = _selecting(labels, fields) | {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311 - spreads clients, keeps no secret
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=_SILENCE_SECONDS)
        response = await self._open_watch(kind, _path(kind, namespace), params, timeout)
        self._open[response] = None
        try:
            async with aclosing(_changes(kind, response)) as changes:
                yield changes
        finally:
            del self._open[response]
            response.close()

    async def get(self, kind: Kind[T], name: str, *, namespace: str | None = None) -> T:
        """One object."""
        return wire.decode_object(kind, await self._read("get", kind, _path(kind, namespace, name), {}))

    async def create(self, kind: Kind[T], body: Body, *, namespace: str | None = None) -> T:
        """Create an object."""
        typed = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return wire.decode_object(kind, await self._write("create", kind, "POST", _path(kind, namespace), typed))

    async def rehearse(self, kind: Kind[T], body: Body, *, namespace: str | None = None) -> T:
        """What creating ``body`` would come to, admission included. Nothing is kept.

        Raises:
            ClusterError: it would be refused.
        """
        typed = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        path, seconds = _path(kind, namespace), REQUEST_SECONDS
        return wire.decode_object(
            kind, await self._call("create", kind, "POST", path, {"dryRun": "All"}, typed, writing=False, seconds=seconds)
        )

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> T:
        """Merge-patch an object."""
        guarded = with_preconditions(body, uid=uid, resource_version=resource_version)
        path = _path(kind, namespace, name, subresource)
        return wire.decode_object(kind, await self._write("patch", kind, "PATCH", path, guarded, content=_MERGE_PATCH))

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[Body]) -> None:
        """Set conditions of a pod, each by its type."""
        body = with_preconditions({"status": {"conditions": list(conditions)}}, uid=pod.uid)
        await self._write("patch", PODS, "PATCH", _path(PODS, pod.namespace, pod.name, "status"), body, content=_STRATEGIC_PATCH)

    async def replace(self, kind: Kind[T], name: str, body: Body, *, namespace: str | None = None) -> T:
        """Replace an object."""
        typed = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return wire.decode_object(kind, await self._write("update", kind, "PUT", _path(kind, namespace, name), typed))

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str | None = None, uid: str = "", grace_seconds: int | None = None
    ) -> None:
        """Delete an object."""
        options = delete_options(uid=uid, grace_seconds=grace_seconds)
        await self._write("delete", kind, "DELETE", _path(kind, namespace, name), options)

    async def bind(
        self, pod: PodRef, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str], resource_version: str = ""
    ) -> None:
        """Bind a pod."""
        body = binding(pod, node, annotations=annotations, labels=labels, resource_version=resource_version)
        await self._write("bind", PODS, "POST", _path(PODS, pod.namespace, pod.name, "binding"), body)

    async def evict(self, pod: PodRef) -> None:
        """Evict a pod. A budget that forbids it is the caller's to wait for, not ours."""
        path = _path(PODS, pod.namespace, pod.name, "eviction")
        await self._call("evict", PODS, "POST", path, {}, eviction(pod), writing=True, seconds=_EVICTION_SECONDS, wait_when_throttled=False)

    # How

    async def _read(self, verb: str, kind: Kind[Any], path: str, params: Mapping[str, str], *, seconds: float = REQUEST_SECONDS) -> bytes:
        for tries_left in reversed(range(_READ_TRIES)):
            try:
                return await self._call(verb, kind, "GET", path, params, None, writing=False, seconds=seconds)
            except Unavailable:
                if not tries_left:
                    raise
                await asyncio.sleep(random.uniform(0.05, 0.2))  # noqa: S311 - spreads clients, keeps no secret
        raise Unavailable("unreachable")  # pragma: no cover - the last try returns or raises

    async def _write(self, verb: str, kind: Kind[Any], method: str, path: str, body: Body, *, content: str = _JSON) -> bytes:
        return await self._call(verb, kind, method, path, {}, body, writing=True, content=content)

    async def _call(
        self,
        verb: str,
        kind: Kind[Any],
        method: str,
        path: str,
        params: Mapping[str, str],
        body: Body | None,
        *,
        writing: bool,
        content: str = _JSON,
        seconds: float = REQUEST_SECONDS,
        wait_when_throttled: bool = True,
    ) -> bytes:
        """One request and its answer; again only where the server has not looked at it."""
        url = URL(self._login.server + path, encoded=True)
        data = msgspec.json.encode(body) if body is not None else None
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, REQUEST_SECONDS))
        tries_left, renewed = (_THROTTLED_TRIES if wait_when_throttled else 1), False
        while True:
            authorization = await self._login.authorization()
            headers = {"Content-Type": content} if data is not None else {}
            if authorization:
                headers["Authorization"] = authorization
            began, status = time.monotonic(), 0
            try:
                async with self._requests.request(
                    method, url, params=params or None, data=data, headers=headers, timeout=timeout, **self._through()
                ) as response:
                    status = response.status
                    answer = await response.read()
                    retry_after = _seconds(response.headers.get("Retry-After"))
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:
                raise Unavailable(f"{self._login.server} cannot be reached: {exc}") from exc
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise Unavailable(f"{method} {path}: {exc or type(exc).__name__}", maybe_applied=writing) from exc
            finally:
                labels = {"verb": verb, "resource": kind.plural}
                self._counted.add(1, {**labels, "code": str(status)})
                self._timed.record(time.monotonic() - began, labels)
            if status < _FIRST_ERROR:
                return answer
            if status == _UNAUTHORIZED and not renewed and await self._login.renew(authorization):
                renewed = True
                continue
            error = wire.refused(status, answer, retry_after_seconds=retry_after, writing=writing)
            tries_left -= 1
            if not isinstance(error, TooManyRequests) or not tries_left:
                raise error
            await asyncio.sleep(min(error.retry_after_seconds, _LONGEST_THROTTLE_SECONDS))

    async def _open_watch(
        self, kind: Kind[Any], path: str, params: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        for renewed in (False, True):
            authorization = await self._login.authorization()
            headers = {"Authorization": authorization} if authorization else {}
            url, status = self._login.server + path, 0
            try:
                response = await self._watches.get(url, params=params, headers=headers, timeout=timeout, **self._through())
                status = response.status
                if status < _FIRST_ERROR:
                    return response
                async with response:
                    answer = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise Unavailable(f"{kind.plural} cannot be watched: {exc or type(exc).__name__}") from exc
            finally:
                self._counted.add(1, {"verb": "watch", "resource": kind.plural, "code": str(status)})
            if status != _UNAUTHORIZED or renewed or not await self._login.renew(authorization):
                raise wire.refused(status, answer)
        raise Unavailable("unreachable")  # pragma: no cover - the last try returns or raises

    def _through(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._login.proxy:
            options["proxy"] = self._login.proxy
        if self._login.server_name:
            options["server_hostname"] = self._login.server_name
        return options


async def _changes(kind: Kind[T], response: aiohttp.ClientResponse) -> AsyncGenerator[Change[T], None]:
    """The lines of a watch, until it ends in whatever way: a line that was cut off comes again with the next watch."""
    rest = b""
    try:
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    yield wire.decode_change(kind, line)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return


@asynccontextmanager
async def connect(
    kubeconfig: str | None,
    context: str | None = None,
    *,
    user_agent: str = "hami",
    telemetry: Telemetry = OFF,
    connections: int = _CONNECTIONS,
) -> AsyncIterator[HttpCluster]:
    """A client of the API server that ``kubeconfig`` names, or of the cluster that we run in. Nothing is asked yet.

    Args:
        kubeconfig: its path; None or empty for the pod's service account.
        context: in the kubeconfig; None for its current one.
        user_agent: how audit logs name us, as ``hami-scheduler``.
        telemetry: where requests are counted.
        connections: for requests, at most; watches have their own.

    Raises:
        ClusterError: there is no usable configuration.
    """
    account = await login(kubeconfig or None, context)
    headers = {"User-Agent": user_agent, "Accept": _JSON, "Accept-Encoding": "identity"}
    secure: Any = account.tls if account.tls is not None else True
    no_cookies = aiohttp.DummyCookieJar()
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=secure, keepalive_timeout=60), headers=headers, cookie_jar=no_cookies
        ) as requests,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=secure), headers=headers, cookie_jar=no_cookies) as watches,
    ):
        yield HttpCluster(requests, watches, account, telemetry)


def _path(kind: Kind[Any], namespace: str | None, name: str = "", subresource: str = "") -> str:
    if kind.namespaced and name and not namespace:
        raise ClusterError(f"{kind.kind} {name!r} was asked for without its namespace")
    parts = [kind.root]
    if kind.namespaced and namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(kind.plural)
    parts += [quote(part, safe="") for part in (name, subresource) if part]
    return "/".join(parts)


def _selecting(labels: str, fields: str) -> dict[str, str]:
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None  # a date, which nobody but proxies sends

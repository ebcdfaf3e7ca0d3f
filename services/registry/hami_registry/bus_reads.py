"""The bus over HTTP, for who has no way to it: ``/v1/events``, ``/v1/devices``, ``/v1/usage``, ``/v1/verdicts`` and ``/v1/streams``. Read-only.

Messages are told as they are on the bus, as CloudEvents in JSON; the log as server-sent events, each with its place in the log as its id, so that a
reader who was cut off goes on after it (``Last-Event-ID``). Who may read is what Kubernetes says of the like: of pods who may get or list those,
of nodes who may list nodes. Each replica answers for itself; ``hami_runtime.bus.reading`` reads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from hami_protocol import cloud_events, subjects
from hami_protocol.errors import ProtocolError
from hami_protocol.subjects import StreamSpec
from hami_registry import server_sent
from hami_registry.seats import Seats
from hami_runtime.bus import reading
from hami_runtime.bus.port import Bus, BusError, StartAt
from hami_runtime.http import error_response
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Authorize, Refusal

MOST_READERS: Final = 100
"""Of the log, at once: each is a consumer on the bus."""
MOST_OF_ONE: Final = 10
"""Of these, for one user: nobody can keep all others from reading."""
MOST_NAME: Final = 253
LIST_NODES: Final = ResourceAccess(verb="list", resource="nodes")
LIST_PODS: Final = ResourceAccess(verb="list", resource="pods")
_TRUE: Final = frozenset({"1", "true"})
_FALSE: Final = frozenset({"", "0", "false"})


class LogQuestion(Struct, frozen=True, kw_only=True):
    """What is asked of the log."""

    subject: str
    right: ResourceAccess
    since: datetime | None
    follow: bool
    start: StartAt | int


def routes(bus: Bus, authorize: Authorize) -> list[web.RouteDef]:
    """The routes, answered from ``bus`` to whom ``authorize`` lets in."""
    return _BusReads(bus, authorize).routes()


def log_question(query: dict[str, str], last_event_id: str = "") -> LogQuestion:
    """What a request asks of the log.

    Raises:
        ValueError: it asks nothing that can be answered; the text names the parameter, what was given, and what is accepted.
    """
    namespace, pod = _pods(query)
    follow = query.get("follow", "").lower()
    if follow not in _TRUE | _FALSE:
        raise ValueError(f"follow: {follow[:40]!r}; accepted: true, false")
    if last_event_id and not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= len(str(1 << 63))):
        raise ValueError(f"Last-Event-ID: {last_event_id[:40]!r}; accepted: the id of an event")
    return LogQuestion(
        subject=reading.log_subject(namespace, pod),
        right=_pod_right(namespace, pod),
        since=_time(query.get("since", "")),
        follow=follow in _TRUE,
        start=int(last_event_id) + 1 if last_event_id else StartAt.ALL,
    )


class _BusReads:
    def __init__(self, bus: Bus, authorize: Authorize) -> None:
        self._bus = bus
        self._authorize = authorize
        self._seats = Seats()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/events", self._events),
            web.get("/v1/devices", self._devices),
            web.get("/v1/usage", self._usage),
            web.get("/v1/verdicts", self._verdicts),
            web.get("/v1/streams", self._streams),
        ]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = log_question(dict(request.query), request.headers.get("Last-Event-ID", ""))
        except ValueError as exc:
            return error_response(HTTPStatus.BAD_REQUEST, str(exc))
        if (refusal := await self._authorize(request, asked.right)) is not None:
            return error_response(*refusal)
        if not self._bus.connected:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "the registry has no connection to the bus")
        if (refusal := self._seats.refusal(request, most=MOST_READERS, of_one=MOST_OF_ONE)) is not None:
            return error_response(*refusal)

        async def may_read() -> bool:
            return await self._authorize(request, asked.right) is None

        with self._seats.taken(request):
            async with aclosing(self._log(asked)) as told:
                return await server_sent.tell(request, told, first=b": the log follows\n\n", may_read=may_read)

    async def _log(self, asked: LogQuestion) -> AsyncGenerator[bytes, None]:
        """The log as server-sent events; ``end`` says that there is no more, ``failed`` that there may be."""
        try:
            async with aclosing(reading.log(self._bus, asked.subject, since=asked.since, start=asked.start, follow=asked.follow)) as found:
                async for delivery in found:
                    yield server_sent.event(cloud_events.encode(delivery.message), place=delivery.sequence)
            yield server_sent.event(b"{}", name="end")
        except BusError as exc:
            yield server_sent.event(msgspec.json.encode({"error": str(exc)}), name="failed")

    async def _devices(self, request: web.Request) -> web.Response:
        return await self._newest(request, (LIST_NODES,), subjects.DEVICES, subjects.ALL_DEVICES)

    async def _usage(self, request: web.Request) -> web.Response:
        return await self._newest(request, (LIST_NODES, LIST_PODS), subjects.USAGE, subjects.ALL_USAGE)

    async def _verdicts(self, request: web.Request) -> web.Response:
        try:
            namespace, pod = _pods(dict(request.query))
            subject = reading.verdict_subject(namespace, pod)
        except ValueError as exc:
            return error_response(HTTPStatus.BAD_REQUEST, str(exc))
        return await self._newest(request, (_pod_right(namespace, pod),), subjects.VERDICTS, subject)

    async def _newest(self, request: web.Request, rights: tuple[ResourceAccess, ...], stream: StreamSpec, subject: str) -> web.Response:
        if (refusal := await self._refusal(request, rights)) is not None:
            return error_response(*refusal)
        try:
            found = await reading.newest(self._bus, stream, subject)
        except BusError as exc:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"the bus: {exc}")
        return _answer(cloud_events.encode_batch(found), cloud_events.BATCH_CONTENT_TYPE)

    async def _streams(self, request: web.Request) -> web.Response:
        if (refusal := await self._authorize(request, LIST_NODES)) is not None:
            return error_response(*refusal)
        try:
            found = {stream.name: await self._bus.has(stream) for stream in subjects.STREAMS}
        except BusError as exc:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"the bus: {exc}")
        return _answer(msgspec.json.encode(found), "application/json")

    async def _refusal(self, request: web.Request, rights: tuple[ResourceAccess, ...]) -> Refusal | None:
        for right in rights:
            if (refusal := await self._authorize(request, right)) is not None:
                return refusal
        return None


def _pods(query: dict[str, str]) -> tuple[str, str]:
    """Whose: a namespace and a pod, either of them empty for all.

    Raises:
        ValueError: they are no names, or a pod is named without its namespace.
    """
    namespace, pod = query.get("namespace", ""), query.get("pod", "")
    for key, name in (("namespace", namespace), ("pod", pod)):
        if len(name) > MOST_NAME:
            raise ValueError(f"{key}: {name[:40]!r}…; accepted: at most {MOST_NAME} characters")
        try:
            if name:
                subjects.token(name)
        except ProtocolError as exc:
            raise ValueError(f"{key}: {exc}") from exc
    if pod and not namespace:
        raise ValueError(f"namespace: missing beside pod {pod!r}; accepted: the pod's namespace")
    return namespace, pod


def _pod_right(namespace: str, pod: str) -> ResourceAccess:
    return ResourceAccess(verb="get" if pod else "list", resource="pods", namespace=namespace, name=pod)


def _time(text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"since: {text[:40]!r}; accepted: a time as 2026-01-31T12:00:00Z") from exc


def _answer(content: bytes, content_type: str) -> web.Response:
    response = web.Response(body=content, content_type=content_type, headers={"Cache-Control": "no-store"})
    response.enable_compression()
    return response

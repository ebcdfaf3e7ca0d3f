"""The extender over HTTP: /filter, /prioritize, /bind and /preempt, as kube-scheduler calls them, and /volcano/*, as Volcano does. Decides nothing.

Whatever is wrong is answered with status 200 and a text in ``Error``: any other status kube-scheduler shows without it. A follower hands the request
to the leader as it came; a request that was handed on once is never handed on again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
from aiohttp import web

from hami_protocol.devices import PodRef
from hami_runtime.http_bounds import BodyRefused, read_body
from hami_scheduler import volcano, wire
from hami_scheduler.forwarding import FORWARDED, Forwarder
from hami_scheduler.service import Scheduler
from hami_scheduler.wire import FilterAnswer, WireError

log = structlog.get_logger()

MAX_BODY_BYTES = 64 * 1024 * 1024
_MIB = 1024 * 1024

Handler = Callable[[bytes], Awaitable[bytes]]
Failure = Callable[[str], bytes]


def application(scheduler: Scheduler, forwarder: Forwarder) -> web.Application:
    """The extender's routes."""
    extender = _Extender(scheduler, forwarder)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post("/filter", extender.route("filter", extender.filter, _filter_failure)),
            web.post("/prioritize", extender.route("prioritize", extender.prioritize, lambda _: wire.encode_priorities([]))),
            web.post("/bind", extender.route("bind", extender.bind, wire.encode_binding)),
            *_volcano_routes(extender),
            web.post("/preempt", extender.route("preempt", extender.preempt, lambda _: wire.encode_preemption({}))),
        ]
    )
    return app


def volcano_application(scheduler: Scheduler, forwarder: Forwarder) -> web.Application:
    """Volcano's routes alone, which change nothing: for a listener that another pod reaches."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(_volcano_routes(_Extender(scheduler, forwarder)))
    return app


def _volcano_routes(extender: _Extender) -> list[web.RouteDef]:
    return [
        web.post("/volcano/predicate", extender.route("volcano/predicate", extender.predicate, _predicate_failure)),
        web.post("/volcano/prioritize", extender.route("volcano/prioritize", extender.volcano_prioritize, _scores_failure)),
    ]


class _Extender:
    """What the routes do."""

    def __init__(self, scheduler: Scheduler, forwarder: Forwarder) -> None:
        self._scheduler = scheduler
        self._forwarder = forwarder
        metrics = scheduler.metrics
        self._seconds = {"filter": metrics.filter_seconds, "bind": metrics.bind_seconds}

    def route(self, verb: str, handler: Handler, failure: Failure) -> Callable[[web.Request], Awaitable[web.Response]]:
        """``handler`` as a route; what it raises about the request is answered by ``failure``."""
        histogram = self._seconds.get(verb)

        async def handle(request: web.Request) -> web.Response:
            started = time.perf_counter()
            try:
                body = await read_body(request, most_bytes=MAX_BODY_BYTES)
                answer = await self._handed_on(verb, request, body)
                if answer is None:
                    answer = await handler(body)
            except WireError as exc:
                log.warning("request not read", verb=verb, error=str(exc))
                answer = failure(str(exc))
            except BodyRefused as exc:
                answer = failure(f"request refused: {exc.reason}")
                log.warning("request refused", verb=verb, status=exc.status, reason=exc.reason)
            except Exception:  # whatever one request stumbles over, the next one is served
                log.exception("request failed", verb=verb)
                answer = failure("the request failed in a way that nobody foresaw; the scheduler's log has the details")
            if histogram is not None:
                histogram.record(time.perf_counter() - started)
            return web.Response(body=answer, content_type="application/json")

        return handle

    async def filter(self, body: bytes) -> bytes:
        """POST /filter."""
        return wire.encode_filter(self._scheduler.filter(wire.decode_args(body)))

    async def prioritize(self, body: bytes) -> bytes:
        """POST /prioritize."""
        return wire.encode_priorities(self._scheduler.prioritize(wire.decode_args(body)))

    async def bind(self, body: bytes) -> bytes:
        """POST /bind."""
        args = wire.decode_binding(body)
        pod = PodRef(namespace=args.pod_namespace, name=args.pod_name, uid=args.pod_uid)
        return wire.encode_binding(await self._scheduler.bind(pod, args.node))

    async def preempt(self, body: bytes) -> bytes:
        """POST /preempt."""
        return wire.encode_preemption(self._scheduler.preempt(wire.decode_preemption(body)))

    async def predicate(self, body: bytes) -> bytes:
        """POST /volcano/predicate."""
        question = volcano.decode_predicate(body)
        return volcano.encode_predicate(*self._scheduler.predicate(question.pod, question.nodes[0]))

    async def volcano_prioritize(self, body: bytes) -> bytes:
        """POST /volcano/prioritize."""
        question = volcano.decode_prioritize(body)
        return volcano.encode_scores(self._scheduler.scores(question.pod, list(question.nodes)))

    async def _handed_on(self, verb: str, request: web.Request, body: bytes) -> bytes | None:
        """The leader's answer, where another replica leads and can be reached; None where this one must answer."""
        leader = self._scheduler.leader
        if leader is None or FORWARDED in request.headers:
            return None
        with suppress(ConnectionError, TimeoutError):
            answer = await self._forwarder.post(leader, f"/{verb}", body)
            self._scheduler.metrics.forwarded.add(1, {"verb": verb})
            return answer
        return None


def _predicate_failure(error: str) -> bytes:
    return volcano.encode_predicate(error, volcano.ERROR)


def _scores_failure(error: str) -> bytes:
    return volcano.encode_scores({}, error)


def _filter_failure(error: str) -> bytes:
    return wire.encode_filter(FilterAnswer(error=error))

"""The webhook over HTTP: bytes in, bytes out. Whatever is sent gets an answer, and the process lives on."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

import structlog
from aiohttp import web

from hami_runtime.http_bounds import BodyRefused, read_body
from hami_runtime.telemetry import OFF, Telemetry, current_traceparent
from hami_webhook import wire
from hami_webhook.review import Reviewer
from hami_webhook.wire import AdmissionRequest, Decision, ReviewError

log = structlog.get_logger()
MAX_BODY_BYTES: Final = 7 * 1024 * 1024
"""More than twice of what an API server takes for one object; a review of an update has two."""

Judge = Callable[[AdmissionRequest], Decision]


class Reviews:
    """Answers AdmissionReviews."""

    def __init__(self, reviewer: Reviewer, *, telemetry: Telemetry = OFF, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._reviewer = reviewer
        self._telemetry = telemetry
        self._max_body_bytes = max_body_bytes
        self._reviews = telemetry.counter("hami_webhook_reviews", "reviews, by path and outcome")
        self._seconds = telemetry.histogram("hami_webhook_review_seconds", "time to judge one review, by path")

    def application(self) -> web.Application:
        """``POST /webhook`` (the mutating side, at the reference's path) and ``POST /validate``."""
        app = web.Application(client_max_size=self._max_body_bytes)
        app.add_routes([web.post("/webhook", self._mutate), web.post("/validate", self._validate)])
        return app

    async def _mutate(self, request: web.Request) -> web.Response:
        return await self._answer(request, lambda asked: self._reviewer.mutate(asked, traceparent=current_traceparent()))

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._answer(request, self._reviewer.validate)

    async def _answer(self, request: web.Request, judge: Judge) -> web.Response:
        path = request.path
        if request.content_type != "application/json":
            return self._refuse(path, 415, f"content type {request.content_type[:64]!r}; accepted: application/json")
        try:
            body = await read_body(request, most_bytes=self._max_body_bytes)
        except BodyRefused as exc:
            return self._refuse(path, exc.status, exc.reason)
        try:
            version, asked = wire.decode(body)
        except ReviewError as exc:
            return self._refuse(path, 400, str(exc))
        began = perf_counter()
        try:
            with self._telemetry.span("admission", request.headers.get("traceparent"), path=path, namespace=asked.namespace):
                answer = wire.encode(version, asked.uid, self._decide(path, asked, judge))
        except Exception:  # a fault of ours must not end the connection, let alone the process: the API server's policy decides
            log.exception("a review failed", path=path, uid=asked.uid)
            return self._refuse(path, 500, "the review failed; the webhook's log says why")
        self._seconds.record(perf_counter() - began, {"path": path})
        return web.Response(body=answer, content_type="application/json")

    def _decide(self, path: str, asked: AdmissionRequest, judge: Judge) -> Decision:
        decision = judge(asked)
        outcome = ("patched" if decision.patch else "allowed") if decision.allowed else "denied"
        self._reviews.add(1, {"path": path, "outcome": outcome})
        if outcome != "allowed":
            log.info(
                f"pod {outcome}",
                namespace=asked.namespace,
                pod=asked.name or "(to be named)",
                uid=asked.uid,
                user=asked.user_info.username,
                reason=decision.message,
                dry_run=bool(asked.dry_run),
            )
        return decision

    def _refuse(self, path: str, status: int, message: str) -> web.Response:
        self._reviews.add(1, {"path": path, "outcome": "unreadable" if status < 500 else "failed"})
        log.warning("review refused", path=path, status=status, reason=message)
        return web.Response(status=status, text=message + "\n")

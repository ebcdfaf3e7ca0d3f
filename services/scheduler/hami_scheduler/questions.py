"""Answers for people and tools: ``GET /v1/explain/{namespace}/{pod}`` and the question ``hami.v1.ask.explain`` on the bus.

The leader answers on the bus, for it alone has the verdicts; a follower's HTTP side asks it there. To have a pod explained one must be allowed to get
it: the bearer token is reviewed, then that right. An open listener is for loopback (``settings`` refuses any other).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct

from hami_protocol import subjects
from hami_runtime.bus.port import Bus, BusError
from hami_runtime.lifecycle import sleep_until
from hami_scheduler.explaining import Explanation
from hami_scheduler.service import Scheduler

log = structlog.get_logger()

ASK_TIMEOUT_SECONDS = 5.0
CHECK_SECONDS = 0.5

Refusal = tuple[HTTPStatus, str]
Authorize = Callable[[web.Request, str, str], Awaitable[Refusal | None]]
"""By request, namespace and pod: why it may not be answered; None where it may."""


class Question(Struct, frozen=True, kw_only=True):
    """Which pod is to be explained."""

    namespace: str
    pod: str


class NoAnswer(Struct, frozen=True, kw_only=True):
    """Why there is no explanation. An explanation has no ``error``."""

    error: str = ""


def application(scheduler: Scheduler, bus: Bus, authorize: Authorize) -> web.Application:
    """The routes of /v1."""

    async def explain(request: web.Request) -> web.Response:
        question = Question(namespace=request.match_info["namespace"], pod=request.match_info["pod"])
        refusal = await authorize(request, question.namespace, question.pod)
        if refusal is not None:
            return _problem(*refusal)
        if scheduler.leader is None:
            body = msgspec.json.encode(answer(scheduler, question))
        else:
            try:
                body = await bus.request(subjects.ASK_EXPLAIN, msgspec.json.encode(question), timeout_seconds=ASK_TIMEOUT_SECONDS)
            except BusError as exc:
                return _problem(HTTPStatus.SERVICE_UNAVAILABLE, f"the leader {scheduler.leader} was not reached: {exc}")
        status = HTTPStatus.NOT_FOUND if msgspec.json.decode(body, type=NoAnswer).error else HTTPStatus.OK
        return web.Response(body=body, status=status, content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/v1/explain/{namespace}/{pod}", explain)])
    return app


async def answer_on_bus(scheduler: Scheduler, bus: Bus, stop: asyncio.Event) -> None:
    """Answer the bus's questions while this replica leads, until ``stop``."""

    async def handle(data: bytes) -> bytes:
        try:
            question = msgspec.json.decode(data, type=Question)
        except msgspec.DecodeError as exc:
            return msgspec.json.encode(NoAnswer(error=f"the question cannot be read: {exc}"))
        return msgspec.json.encode(answer(scheduler, question))

    while not stop.is_set():
        if scheduler.leads():
            async with bus.answer(subjects.ASK_EXPLAIN, handle):
                while scheduler.leads() and not await sleep_until(stop, CHECK_SECONDS):
                    pass
        await sleep_until(stop, CHECK_SECONDS)


def answer(scheduler: Scheduler, question: Question) -> Explanation | NoAnswer:
    """The answer to ``question``."""
    found = scheduler.explain(question.namespace, question.pod)
    return NoAnswer(error=f"there is no pod {question.namespace}/{question.pod}") if found is None else found


def _problem(status: HTTPStatus, error: str) -> web.Response:
    return web.Response(body=msgspec.json.encode(NoAnswer(error=error)), status=status, content_type="application/json")

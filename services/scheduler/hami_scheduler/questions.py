"""Answers for people and tools: ``GET /v1/explain/{namespace}/{pod}`` and ``POST /v1/simulate``, and ``hami.v1.ask.*`` on the bus.

The leader answers on the bus, for it alone has the verdicts; a follower's HTTP side asks it there. To have a pod explained one must be allowed to get
it, to have pods simulated to list nodes: the bearer token is reviewed, then that right.
``POST /v1/resize`` is ``resize_api``'s. An open listener is for loopback (``settings`` refuses
any other).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct

from hami_protocol import subjects
from hami_protocol.explanation import Explanation
from hami_protocol.holdings import HoldingsQuestion
from hami_protocol.simulation import Simulation, SimulationQuestion
from hami_runtime.bus.port import Bus, BusError
from hami_runtime.http import error_response
from hami_runtime.http_bounds import BodyRefused, read_body
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Authorize
from hami_runtime.lifecycle import sleep_until
from hami_scheduler import resize_api
from hami_scheduler.forwarding import Forwarder
from hami_scheduler.service import Scheduler
from hami_scheduler.simulating import SimulationError

log = structlog.get_logger()

ASK_TIMEOUT_SECONDS = 5.0
SIMULATE_TIMEOUT_SECONDS = 60.0
MAX_BODY_BYTES = 16 * 1024 * 1024
CHECK_SECONDS = 0.5


class Question(Struct, frozen=True, kw_only=True):
    """Which pod is to be explained."""

    namespace: str
    pod: str


class NoAnswer(Struct, frozen=True, kw_only=True):
    """Why there is no explanation. An explanation has no ``error``."""

    error: str = ""


def application(scheduler: Scheduler, bus: Bus, authorize: Authorize, forwarder: Forwarder | None = None) -> web.Application:
    """The routes of /v1; what the leader alone can do, ``forwarder`` hands on to it."""

    async def explain(request: web.Request) -> web.Response:
        question = Question(namespace=request.match_info["namespace"], pod=request.match_info["pod"])
        access = ResourceAccess(verb="get", resource="pods", namespace=question.namespace, name=question.pod)
        refusal = await authorize(request, access)
        if refusal is not None:
            return error_response(*refusal)
        data = msgspec.json.encode(question)
        return await answered(subjects.ASK_EXPLAIN, data, timeout_seconds=ASK_TIMEOUT_SECONDS, problem=HTTPStatus.NOT_FOUND)

    async def simulate(request: web.Request) -> web.Response:
        refusal = await authorize(request, ResourceAccess(verb="list", resource="nodes"))
        if refusal is not None:
            return error_response(*refusal)
        try:
            data = await read_body(request, most_bytes=MAX_BODY_BYTES)
        except BodyRefused as exc:
            return error_response(HTTPStatus(exc.status), exc.reason)
        return await answered(subjects.ASK_SIMULATE, data, timeout_seconds=SIMULATE_TIMEOUT_SECONDS, problem=HTTPStatus.BAD_REQUEST)

    async def answered(subject: str, data: bytes, *, timeout_seconds: float, problem: HTTPStatus) -> web.Response:
        """Our own answer, or the leader's where that is another."""
        if scheduler.leader is None:
            body = await handlers[subject](data)
        else:
            try:
                body = await bus.request(subject, data, timeout_seconds=timeout_seconds)
            except BusError as exc:
                return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"the leader {scheduler.leader} was not reached: {exc}")
        status = problem if msgspec.json.decode(body, type=NoAnswer).error else HTTPStatus.OK
        return web.Response(body=body, status=status, content_type="application/json")

    handlers = _handlers(scheduler)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.get("/v1/explain/{namespace}/{pod}", explain),
            web.post("/v1/simulate", simulate),
            resize_api.route(scheduler, authorize, forwarder),
        ]
    )
    return app


async def answer_on_bus(scheduler: Scheduler, bus: Bus, stop: asyncio.Event) -> None:
    """Answer the bus's questions while this replica leads, until ``stop``."""
    while not stop.is_set():
        if scheduler.leads():
            async with AsyncExitStack() as stack:
                for subject, handler in _handlers(scheduler).items():
                    await stack.enter_async_context(bus.answer(subject, handler))
                while scheduler.leads() and not await sleep_until(stop, CHECK_SECONDS):
                    pass
        await sleep_until(stop, CHECK_SECONDS)


def _handlers(scheduler: Scheduler) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
    """How each question is answered. What cannot be read is answered with why."""

    async def explain(data: bytes) -> bytes:
        try:
            question = msgspec.json.decode(data, type=Question)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            return msgspec.json.encode(NoAnswer(error=f"the question cannot be read: {exc}"))
        return msgspec.json.encode(answer(scheduler, question))

    async def simulate(data: bytes) -> bytes:
        try:
            question = msgspec.json.decode(data, type=SimulationQuestion)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            return msgspec.json.encode(NoAnswer(error=f"the question cannot be read: {exc}"))
        return msgspec.json.encode(await simulated(scheduler, question))

    async def holdings(data: bytes) -> bytes:
        try:
            question = msgspec.json.decode(data or b"{}", type=HoldingsQuestion)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            return msgspec.json.encode(NoAnswer(error=f"the question cannot be read: {exc}"))
        obstacle = scheduler.unready()
        return msgspec.json.encode(scheduler.holdings(question) if obstacle is None else NoAnswer(error=obstacle))

    return {subjects.ASK_EXPLAIN: explain, subjects.ASK_SIMULATE: simulate, subjects.ASK_HOLDINGS: holdings}


def answer(scheduler: Scheduler, question: Question) -> Explanation | NoAnswer:
    """The answer to ``question``."""
    found = scheduler.explain(question.namespace, question.pod)
    return NoAnswer(error=f"there is no pod {question.namespace}/{question.pod}") if found is None else found


async def simulated(scheduler: Scheduler, question: SimulationQuestion) -> Simulation | NoAnswer:
    """The answer to ``question``. Others are served between two pods."""
    if (obstacle := scheduler.unready()) is not None:
        return NoAnswer(error=obstacle)
    try:
        return await scheduler.simulate(question)
    except SimulationError as exc:
        return NoAnswer(error=str(exc))

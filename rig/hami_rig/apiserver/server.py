"""The HTTP side of the development API server: listens, tells requests apart, and answers. Decides nothing about objects.

Beside Kubernetes' own paths there are two of this tool's own: ``/rig/requests`` (how many requests of each kind there were; DELETE starts again)
and ``/rig/down`` (``{"seconds": N}``: closes every connection, refuses new ones so long).
"""

import asyncio
import random
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from hami_rig.apiserver import discovery, logs
from hami_rig.apiserver.admission import Admission
from hami_rig.apiserver.calls import Call, target_of, verb_of
from hami_rig.apiserver.controller_loop import ControllerLoop
from hami_rig.apiserver.faults import Fault, Faults, RequestCounts, RequestKey
from hami_rig.apiserver.identity import User, user_of_token
from hami_rig.apiserver.kubeconfig import kubeconfig
from hami_rig.apiserver.objects import Objects, Outcome
from hami_rig.apiserver.rendering import Rendering, form_of
from hami_rig.apiserver.reviews import answered
from hami_rig.apiserver.served import Review
from hami_rig.apiserver.settings import ApiServerSettings, utc_now
from hami_rig.apiserver.watches import Watches
from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import PRIORITY_CLASSES

__all__ = ["ApiServer"]

_LONGEST_BODY_BYTES = 3 * 1024 * 1024
_SHUTDOWN_SECONDS = 0.5
_AGGREGATED = "as=APIGroupDiscoveryList"
_AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class ApiServer:
    """A development API server, running while its context is entered.

    ``async with ApiServer() as server:`` listens at ``server.url``; what it holds is in ``server.store``, and ``server.faults`` takes the failures
    that its requests are to meet.
    """

    def __init__(self, settings: ApiServerSettings | None = None) -> None:
        self._settings = settings or ApiServerSettings()
        rng = random.Random()  # noqa: S311 - names and uids of a development server are no secrets
        self.store = ObjectStore(now=utc_now, rng=rng, history=self._settings.watch_history)
        self._admission = Admission(self.store, rng)
        self._objects = Objects(self.store, self._admission, utc_now)
        self._watches = Watches(self.store, bookmark_seconds=self._settings.bookmark_seconds)
        self._controllers = ControllerLoop(self.store, self._objects)
        self._counts = RequestCounts()
        self.faults = Faults()
        self._port = self._settings.port
        self._runner: web.AppRunner | None = None
        self._site: web.BaseSite | None = None
        self._tasks = asyncio.TaskGroup()
        self._background: list[asyncio.Task[None]] = []
        for name, value in _SYSTEM_PRIORITIES.items():
            self.store.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"})

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://{self._settings.host}:{self._port}"

    @property
    def kubeconfig(self) -> str:
        """The text of a kubeconfig for the administrator."""
        return kubeconfig(self.url, self._settings.token)

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application(client_max_size=_LONGEST_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS)
        await self._runner.setup()
        await self._listen()
        await self._tasks.__aenter__()
        self._background.append(self._tasks.create_task(self._controllers.run()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all watches and stop listening."""
        for task in self._background:
            task.cancel()
        self._watches.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._admission.close()
        await self._tasks.__aexit__(kind, error, trace)

    async def _listen(self) -> None:
        if self._runner is None:
            raise RuntimeError("the server has not been started")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._settings.host, self._port))
        except OSError:
            listener.close()
            raise
        self._port = listener.getsockname()[1]
        self._site = web.SockSite(self._runner, listener)
        await self._site.start()

    async def be_down(self, seconds: float) -> None:
        """Close every connection and refuse new ones for so long."""
        if self._runner is None or self._runner.server is None or self._site is None:
            raise RuntimeError("the server has not been started")
        await self._site.stop()
        self._watches.end_all()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(seconds)
        await self._listen()

    # Requests

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            user = self._user(request)
            return await self._routed(request, user)
        except ApiError as refused:
            return _json(refused.code, refused.status, headers=_retry_after(refused))
        except web.HTTPRequestEntityTooLarge:
            message = f"Request entity too large: limit is {_LONGEST_BODY_BYTES}"
            return _json(413, ApiError(413, "RequestEntityTooLarge", message).status)

    def _user(self, request: web.Request) -> User:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        user = user_of_token(token.strip() if scheme.lower() == "bearer" else "", self._settings.token)
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    async def _routed(self, request: web.Request, user: User) -> web.StreamResponse:
        path = request.path
        target = target_of(path)
        if isinstance(target, Review):
            return await self._review(request, target)
        if target is None:
            return await self._rig(request) if path.startswith("/rig/") else _described(request)
        watch = request.query.get("watch") in ("true", "1")
        verb = verb_of(request.method, target, watch=watch)
        if verb is None:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})
        agent = request.headers.get("User-Agent", "")
        resource = target.served.resource.plural
        self._counts.add(RequestKey(verb=verb, resource=resource, subresource=target.subresource, user_agent=agent.split(" ")[0]))
        call = Call(
            verb=verb,
            target=target,
            query=request.query,
            user=user,
            user_agent=agent,
            content_type=request.headers.get("Content-Type", "").split(";")[0].strip(),
            body=await request.read(),
        )
        fault = self.faults.take(verb, resource, target.subresource)
        if fault is not None:
            return await self._faulty(request, call, fault)
        return await self._carried_out(request, call)

    async def _carried_out(self, request: web.Request, call: Call) -> web.StreamResponse:
        form = form_of(request.headers.get("Accept", ""))
        if form is None:
            accepted = "application/json"
            raise ApiError(406, "NotAcceptable", f"only the following media types are accepted: {accepted}")
        rendering = Rendering(served=call.target.served, form=form, now=utc_now, include=call.query.get("includeObject", "Metadata"))
        match call.verb:
            case "watch":
                return await self._watches.serve(request, call, rendering)
            case "get" | "list":
                return self._read(call, rendering)
            case _:
                return await self._written(call, rendering)

    def _read(self, call: Call, rendering: Rendering) -> web.Response:
        target = call.target
        resource = target.served.resource
        if call.verb == "list":
            return _raw(200, rendering.many(self.store.select(resource, call.selection()), self.store.revision), ())
        found = self.store.get(resource, target.name, target.namespace)
        if target.subresource == "log":
            return web.Response(body=logs.read(self._settings.nodes_folder, found.body, call.query), content_type="text/plain")
        return _raw(200, rendering.one(found), ())

    async def _written(self, call: Call, rendering: Rendering) -> web.Response:
        warnings: list[str] = []
        match call.verb:
            case "create":
                outcome = await self._objects.create(call, warnings)
            case "update":
                outcome = await self._objects.update(call, warnings)
            case "patch":
                outcome = await self._objects.patch(call, warnings)
            case _:
                outcome = await self._objects.delete(call, warnings)
        return _outcome(outcome, rendering, warnings)

    async def _faulty(self, request: web.Request, call: Call, fault: Fault) -> web.StreamResponse:
        if fault.after_commit:
            await self._carried_out(request, call)
        if not fault.status:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        raise ApiError(fault.status, "InternalError", f"a failure was ordered for this {call.verb} of {call.target.served.resource.plural}")

    async def _review(self, request: web.Request, review: Review) -> web.StreamResponse:
        if request.method != "POST":
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})
        self._counts.add(
            RequestKey(verb="create", resource=review.plural, subresource="", user_agent=request.headers.get("User-Agent", ""))
        )
        return _json(201, answered(review, await _posted(request), self._settings.token))

    async def _rig(self, request: web.Request) -> web.StreamResponse:
        match request.method, request.path:
            case "GET", "/rig/requests":
                return _json(200, {"requests": self._counts.rows()})
            case "DELETE", "/rig/requests":
                self._counts.reset()
            case "POST", "/rig/down":
                outage = _outage(await _posted(request))
                response = _json(200, {})
                await response.prepare(request)
                await response.write_eof()
                self._background.append(self._tasks.create_task(self.be_down(outage.seconds)))
                return response
            case _:
                return web.Response(status=404, text="404 page not found\n")
        return _json(200, {})


class _Outage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: float


def _described(request: web.Request) -> web.StreamResponse:
    """What the server says about itself, or that there is no such page."""
    answer = _description(request.path, everything=_AGGREGATED in request.headers.get("Accept", ""))
    if answer is None:
        if discovery.is_served_group(request.path):
            raise ApiError(404, "NotFound", "the server could not find the requested resource", {})
        return web.Response(status=404, text="404 page not found\n")
    if request.method != "GET":
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})
    return answer


def _description(path: str, *, everything: bool) -> web.Response | None:
    if path == "/readyz":
        return web.Response(text="ok")
    if everything and path in ("/api", "/apis"):
        return _json(200, discovery.aggregated(path == "/api"), {"Content-Type": _AGGREGATED_TYPE})
    if path == "/openapi/v2":  # kubectl wants it before it takes a List apart, and reads nothing but protobuf
        return web.Response(body=discovery.OPENAPI_V2, headers={"Content-Type": discovery.OPENAPI_V2_TYPE})
    described = discovery.described(path)
    return None if described is None else _raw(200, described, ())


def _outcome(outcome: Outcome, rendering: Rendering, warnings: list[str]) -> web.Response:
    if outcome.stored is None:
        return _raw(outcome.code, msgspec.json.encode(outcome.status), warnings)
    return _raw(outcome.code, rendering.one(outcome.stored), warnings)


def _json(code: int, body: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode(body), headers={"Content-Type": "application/json", **(headers or {})})


def _raw(code: int, body: bytes, warnings: list[str] | tuple[()]) -> web.Response:
    response = web.Response(status=code, body=body, headers={"Content-Type": "application/json"})
    for warning in dict.fromkeys(warnings):
        quoted = "".join(each if each.isprintable() else " " for each in warning).replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def _retry_after(refused: ApiError) -> dict[str, str]:
    seconds = (refused.details or {}).get("retryAfterSeconds")
    return {"Retry-After": str(seconds)} if seconds else {}


async def _posted(request: web.Request) -> Any:
    """The posted JSON; nothing where it cannot be read: reviews that are answered without it come in other encodings too."""
    try:
        return msgspec.json.decode(await request.read())
    except msgspec.DecodeError:
        return {}


def _outage(body: Any) -> _Outage:
    try:
        return msgspec.convert(body, _Outage)
    except msgspec.ValidationError as wrong:
        raise ApiError.bad_request(f"{wrong}") from wrong

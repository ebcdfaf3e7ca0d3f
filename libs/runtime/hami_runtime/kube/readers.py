"""Who may ask a service's ``/v1``: the bearer token's owner, if the API server lets him do the like. One rule for all services that answer people.

The token comes in ``Authorization: Bearer``, or in ``X-Hami-Token`` where the way leads through the API server's service proxy: that takes
``Authorization`` for itself and does not pass it on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ClusterError
from hami_runtime.kube.login import TOKEN_HEADER

_BEARER: Final = "bearer "

Refusal = tuple[HTTPStatus, str]
Authorize = Callable[[web.Request, ResourceAccess | None], Awaitable[Refusal | None]]
"""By request and the right that it takes: why it may not be answered; None where it may. Without a right: whether its owner is known at all."""

MOST_UNKNOWN: Final = 20
"""Unknown tokens that one address may show at once; one more is reviewed each ``UNKNOWN_SECONDS``."""
UNKNOWN_SECONDS: Final = 1.0
MOST_TOKEN_CHARACTERS: Final = 16_384
_SOURCES: Final = 4096


class Failures:
    """How many unknown tokens each address may still show: a bucket per address that fills again. Pure: times are given."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def seconds_to_wait(self, source: str, now: float) -> float:
        """Until ``source`` may show one; 0 where it may now."""
        return max(0.0, self._full_at.get(source, now) - now - (MOST_UNKNOWN - 1) * UNKNOWN_SECONDS)

    def failed(self, source: str, now: float) -> None:
        """``source`` has shown one."""
        self._full_at[source] = max(self._full_at.pop(source, now), now) + UNKNOWN_SECONDS
        if len(self._full_at) > _SOURCES:
            self._full_at.popitem(last=False)


USER: Final = web.RequestKey("hami_user", str)
"""Under which a request keeps the name of its user, once that is known."""


class Readers:
    """Lets in whom the API server lets do the like."""

    def __init__(self, reviewer: AccessReviewer) -> None:
        self._reviewer = reviewer
        self._clock = reviewer.clock
        self._failures = Failures()

    async def __call__(self, request: web.Request, access: ResourceAccess | None) -> Refusal | None:
        """Why the request may not be answered; None where it may."""
        token = token_of(request)
        if not token:
            return HTTPStatus.UNAUTHORIZED, f"Authorization: missing; accepted: a bearer token, here or in {TOKEN_HEADER}"
        if len(token) > MOST_TOKEN_CHARACTERS:
            return HTTPStatus.UNAUTHORIZED, f"Authorization: {len(token)} characters; accepted: at most {MOST_TOKEN_CHARACTERS}"
        source = request.remote or ""
        known = self._reviewer.knows(token)
        if not known and (seconds := self._failures.seconds_to_wait(source, self._clock.monotonic())) > 0:
            return HTTPStatus.TOO_MANY_REQUESTS, f"too many unknown tokens came from {source}; try again in {seconds:.0f} s"
        try:
            user = await self._reviewer.user_of(token)
            if user is None:
                if not known:
                    self._failures.failed(source, self._clock.monotonic())
                return HTTPStatus.UNAUTHORIZED, "Authorization: the token is not accepted"
            request[USER] = user.name
            if access is None or await self._reviewer.may(user, access):
                return None
        except ClusterError as exc:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the API server cannot say who you are: {exc}"
        what = f"{access.verb} pod {access.namespace}/{access.name}" if access.name else f"{access.verb} {access.resource}"
        what += f" in namespace {access.namespace}" if access.namespace and not access.name else ""
        return HTTPStatus.FORBIDDEN, f"{user.name} may not {what}"


async def let_all_in(_request: web.Request, _access: ResourceAccess | None) -> Refusal | None:
    """For a listener that only this machine reaches."""
    return None


def token_of(request: web.Request) -> str:
    """The caller's token, empty where there is none."""
    authorization = request.headers.get("Authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return request.headers.get(TOKEN_HEADER, "").strip()

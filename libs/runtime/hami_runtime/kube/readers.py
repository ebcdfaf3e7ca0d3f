"""Who may ask a service's ``/v1``: the bearer token's owner, if the API server lets him do the like. One rule for all services that answer people.

The token comes in ``Authorization: Bearer``, or in ``X-Hami-Token`` where the way leads through the API server's service proxy: that takes
``Authorization`` for itself and does not pass it on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ClusterError

TOKEN_HEADER: Final = "X-Hami-Token"  # noqa: S105 - a header's name
_BEARER: Final = "bearer "

Refusal = tuple[HTTPStatus, str]
Authorize = Callable[[web.Request, ResourceAccess], Awaitable[Refusal | None]]
"""By request and the right that it takes: why it may not be answered; None where it may."""


class Readers:
    """Lets in whom the API server lets do the like."""

    def __init__(self, reviewer: AccessReviewer) -> None:
        self._reviewer = reviewer

    async def __call__(self, request: web.Request, access: ResourceAccess) -> Refusal | None:
        """Why the request may not be answered; None where it may."""
        token = token_of(request)
        if not token:
            return HTTPStatus.UNAUTHORIZED, f"Authorization: missing; accepted: a bearer token, here or in {TOKEN_HEADER}"
        try:
            user = await self._reviewer.user_of(token)
            if user is None:
                return HTTPStatus.UNAUTHORIZED, "Authorization: the token is not accepted"
            if await self._reviewer.may(user, access):
                return None
        except ClusterError as exc:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the API server cannot say who you are: {exc}"
        what = f"{access.verb} pod {access.namespace}/{access.name}" if access.name else f"{access.verb} {access.resource}"
        what += f" in namespace {access.namespace}" if access.namespace and not access.name else ""
        return HTTPStatus.FORBIDDEN, f"{user.name} may not {what}"


async def let_all_in(_request: web.Request, _access: ResourceAccess) -> Refusal | None:
    """For a listener that only this machine reaches."""
    return None


def token_of(request: web.Request) -> str:
    """The caller's token, empty where there is none."""
    authorization = request.headers.get("Authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return request.headers.get(TOKEN_HEADER, "").strip()

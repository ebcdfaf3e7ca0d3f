"""Who may ask /v1: the bearer token's owner, if the API server lets him read what the answer tells of."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ClusterError
from hami_scheduler.questions import Refusal

_BEARER = "Bearer "


class Readers:
    """Lets in whom the API server lets do the like."""

    def __init__(self, reviewer: AccessReviewer) -> None:
        self._reviewer = reviewer

    async def __call__(self, request: web.Request, access: ResourceAccess) -> Refusal | None:
        """Why the request may not be answered; None where it may."""
        header = request.headers.get("Authorization", "")
        if not header.startswith(_BEARER):
            return HTTPStatus.UNAUTHORIZED, "Authorization: missing; accepted: a bearer token"
        try:
            user = await self._reviewer.user_of(header.removeprefix(_BEARER).strip())
            if user is None:
                return HTTPStatus.UNAUTHORIZED, "Authorization: the token is not accepted"
            if await self._reviewer.may(user, access):
                return None
        except ClusterError as exc:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the API server cannot say who you are: {exc}"
        what = f"{access.verb} pod {access.namespace}/{access.name}" if access.name else f"{access.verb} {access.resource}"
        return HTTPStatus.FORBIDDEN, f"{user.name} may not {what}"


async def let_all_in(_request: web.Request, _access: ResourceAccess) -> Refusal | None:
    """For a listener that only this machine reaches."""
    return None

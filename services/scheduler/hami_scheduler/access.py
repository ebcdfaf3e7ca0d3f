"""Who may ask /v1: the bearer token's owner, if the API server lets him get the pod."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import ClusterError
from hami_scheduler.questions import Refusal

_BEARER = "Bearer "


class PodReaders:
    """Lets in who may get the pod."""

    def __init__(self, reviewer: AccessReviewer) -> None:
        self._reviewer = reviewer

    async def __call__(self, request: web.Request, namespace: str, pod: str) -> Refusal | None:
        """Why the request may not be answered; None where it may."""
        header = request.headers.get("Authorization", "")
        if not header.startswith(_BEARER):
            return HTTPStatus.UNAUTHORIZED, "Authorization: missing; accepted: a bearer token"
        try:
            user = await self._reviewer.user_of(header.removeprefix(_BEARER).strip())
            if user is None:
                return HTTPStatus.UNAUTHORIZED, "Authorization: the token is not accepted"
            if await self._reviewer.may(user, ResourceAccess(verb="get", resource="pods", namespace=namespace, name=pod)):
                return None
        except ClusterError as exc:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"the API server cannot say who you are: {exc}"
        return HTTPStatus.FORBIDDEN, f"{user.name} may not get pod {namespace}/{pod}"


async def let_all_in(_request: web.Request, _namespace: str, _pod: str) -> Refusal | None:
    """For a listener that only this machine reaches."""
    return None

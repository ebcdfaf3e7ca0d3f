"""Seats for readers that stay: a bound on all of them, and one on those of one user, so that nobody keeps all others from reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from aiohttp import web

from hami_runtime.kube.readers import USER, Refusal


class Seats:
    """Who reads now. A listener that asks nobody for a token has one user, without a bound of its own."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def refusal(self, request: web.Request, *, most: int, of_one: int) -> Refusal | None:
        """Why ``request``, whose user is known, gets no seat now: of ``most``, and ``of_one`` for each user."""
        user = request.get(USER, "")
        if user and self._taken[user] >= of_one:
            return HTTPStatus.TOO_MANY_REQUESTS, f"{user} has {of_one} readers here already; accepted: so many at a time"
        if self._taken.total() >= most:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"{most} are reading already; try again in a moment"
        return None

    @contextmanager
    def taken(self, request: web.Request) -> Iterator[None]:
        """A seat while the context is open."""
        user = request.get(USER, "")
        self._taken[user] += 1
        try:
            yield
        finally:
            self._taken[user] -= 1
            if not self._taken[user]:
                del self._taken[user]

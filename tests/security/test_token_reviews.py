"""Anybody can make tokens up: what they cost the API server is bounded, and those who are known do not notice."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from aiohttp.test_utils import make_mocked_request

from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import TOKEN_REVIEWS
from hami_runtime.kube.readers import MOST_TOKEN_CHARACTERS, MOST_UNKNOWN, UNKNOWN_SECONDS, Failures, Readers

LIST = ResourceAccess(verb="list", resource="nodes")


class Time:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class ApiServer:
    """Knows alice's token."""

    def __init__(self) -> None:
        self.token_reviews = 0

    async def create(self, kind: Any, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if kind is not TOKEN_REVIEWS:
            return {"status": {"allowed": True}}
        self.token_reviews += 1
        known = body["spec"]["token"].startswith("alice")
        return {"status": {"authenticated": known, "user": {"username": "alice"}}}


class Scene:
    def __init__(self) -> None:
        self.server, self.time = ApiServer(), Time()
        self.readers = Readers(AccessReviewer(self.server, self.time))  # type: ignore[arg-type]

    async def ask(self, token: str, source: str = "10.0.0.9") -> HTTPStatus:
        request = make_mocked_request("GET", "/", headers={"Authorization": f"Bearer {token}"}).clone(remote=source)
        refusal = await self.readers(request, LIST)
        return HTTPStatus.OK if refusal is None else refusal[0]


async def test_one_address_with_made_up_tokens_costs_a_bounded_number_of_reviews() -> None:
    scene = Scene()
    answers = [await scene.ask(f"made-up-{number}") for number in range(1000)]
    assert scene.server.token_reviews == MOST_UNKNOWN
    assert set(answers[MOST_UNKNOWN:]) == {HTTPStatus.TOO_MANY_REQUESTS}
    scene.time.now += 3 * UNKNOWN_SECONDS
    for number in range(10):
        await scene.ask(f"later-{number}")
    assert scene.server.token_reviews == MOST_UNKNOWN + 3


async def test_who_is_known_is_served_from_the_same_address_and_others_from_theirs() -> None:
    scene = Scene()
    assert await scene.ask("alice") == HTTPStatus.OK
    for number in range(5000):
        await scene.ask(f"made-up-{number}")
    scene.time.now += 0.5
    assert await scene.ask("alice") == HTTPStatus.OK
    scene.time.now += 11  # what is known is reviewed again, and is not counted as unknown
    for number in range(100):
        await scene.ask(f"again-{number}")
    assert await scene.ask("alice") == HTTPStatus.OK
    assert await scene.ask("alice-2", source="10.0.0.10") == HTTPStatus.OK


async def test_a_refusal_is_kept_for_a_while_and_a_long_token_is_not_sent_at_all() -> None:
    scene = Scene()
    for _ in range(100):
        assert await scene.ask("made-up") == HTTPStatus.UNAUTHORIZED
    assert scene.server.token_reviews == 1
    assert await scene.ask("x" * (MOST_TOKEN_CHARACTERS + 1)) == HTTPStatus.UNAUTHORIZED
    assert scene.server.token_reviews == 1


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    failures = Failures()
    for number in range(100_000):
        failures.failed(f"10.{number}", 0.0)
    assert len(failures._full_at) <= 4096

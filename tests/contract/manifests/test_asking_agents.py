"""The scheduler asks agents over the production overlay's bus, where they have an account of their own: an answer, or at once that none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from hami_protocol import subjects
from hami_runtime.bus import NoReply
from hami_runtime.bus.jetstream import JetStreamBus
from tests.contract.manifests import test_nats_auth_callout as callout
from tests.contract.manifests.test_nats_auth_callout import World, connected

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]

QUESTION = subjects.ask_agent("node-1", "nvidia")
ANSWER_SECONDS = 2.0
"""As the scheduler waits. The server mostly reports at once that nobody responds; across accounts it was seen to stay silent."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder, other = tmp_path_factory.mktemp("bus"), tmp_path_factory.mktemp("callout")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AUTH_ISSUER", callout.SECRET["issuer"])
        async with callout.running(folder, other) as world:
            yield world


async def answered(scheduler: JetStreamBus) -> bytes:
    """The first answer: the server takes a moment to link the accounts of a connection that is new."""
    async with asyncio.timeout(30):
        while True:
            with suppress(NoReply):
                return await scheduler.request(QUESTION, b"", timeout_seconds=ANSWER_SECONDS)
            await asyncio.sleep(0.05)


async def test_an_agent_answers_and_one_that_is_gone_is_known_at_once(world: World) -> None:
    async def answer(_question: bytes) -> bytes:
        return b"{}"

    async with world.bus.connect("hami-scheduler") as scheduler:
        await connected(scheduler)
        async with world.agent("node-1") as agent:
            await connected(agent)
            async with agent.answer(QUESTION, answer):
                assert await answered(scheduler) == b"{}"
            with pytest.raises(NoReply):
                await scheduler.request(QUESTION, b"", timeout_seconds=ANSWER_SECONDS)
        with pytest.raises(NoReply):
            await scheduler.request(QUESTION, b"", timeout_seconds=ANSWER_SECONDS)

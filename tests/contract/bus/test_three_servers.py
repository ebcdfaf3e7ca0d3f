"""Words that are expected behind others, on a stream that three servers keep: what is decided once stays so, whoever leads the stream."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from hami_runtime.bus import BusUnavailable, Overtaken, jetstream
from hami_runtime.bus.jetstream import JetStreamBus
from tests.contract.bus.conftest import NatsServer
from tests.contract.bus.test_bus import LOG, a_message, taken
from tests.contract.bus.three import Three, start

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]


@pytest.fixture
async def three(make_server: Callable[..., NatsServer]) -> Three:
    return await start(make_server)


@pytest.fixture
async def bus(three: Three) -> AsyncIterator[JetStreamBus]:
    async with jetstream.connect(three.url, name="test", replicas=3) as bus:
        await three.formed(bus)
        await bus.ensure_streams([LOG])
        await three.leader(bus, LOG)
        yield bus


async def kept(bus: JetStreamBus, text: str, *, behind: int, message_id: str = "") -> int:
    """The sequence of a message, once it is kept; tried again as an outbox does."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await bus.publish(a_message("log.a", text, message_id=message_id or text), expected_last=behind, timeout_seconds=2)
            except BusUnavailable:
                await asyncio.sleep(0.02)


async def test_a_message_that_is_tried_again_counts_as_kept_whatever_is_expected_of_it(bus: JetStreamBus) -> None:
    first = await kept(bus, "one", behind=0)
    assert await kept(bus, "one", behind=0) == first
    second = await kept(bus, "two", behind=first)
    assert await kept(bus, "two", behind=first) == second
    with pytest.raises(Overtaken) as refused:
        await kept(bus, "late", behind=first)
    assert refused.value.sequence == second
    assert await kept(bus, "late", behind=second) == second + 1


async def test_the_same_message_at_the_same_moment_is_kept_once_and_refused_by_nobody(bus: JetStreamBus) -> None:
    """A server that is just keeping it says that it is in process: that is no reason to drop it."""
    last = 0
    for number in range(20):
        sequences = await asyncio.gather(*(kept(bus, f"text-{number}", behind=last) for _ in range(4)))
        assert len(set(sequences)) == 1
        last = sequences[0]
    async with bus.consume(LOG, subjects=["log.a"]) as deliveries:
        assert await taken(deliveries, 20) == [f"text-{number}" for number in range(20)]


async def test_of_two_that_speak_at_the_same_moment_one_is_first_and_the_other_is_told(bus: JetStreamBus, three: Three) -> None:
    async with jetstream.connect(three.url, name="other", replicas=3) as other:
        await other.ensure_streams([LOG])
        await other.wait_connected()
        last = 0
        for number in range(20):
            answers = await asyncio.gather(
                kept(bus, f"ours-{number}", behind=last), kept(other, f"theirs-{number}", behind=last), return_exceptions=True
            )
            won = [answer for answer in answers if isinstance(answer, int)]
            lost = [answer for answer in answers if isinstance(answer, Overtaken)]
            assert (len(won), len(lost)) == (1, 1)
            assert lost[0].sequence == won[0] > last
            last = won[0]


async def test_over_the_death_of_who_leads_the_stream_two_speakers_keep_one_order(bus: JetStreamBus, three: Three) -> None:
    """Each says its words behind what it believes to be the last; who is refused takes over what is there, and tries the same word again."""
    said: dict[str, list[str]] = {"ours": [], "theirs": []}

    async def speak(speaker: JetStreamBus, name: str) -> None:
        behind = 0
        for number in range(60):
            text = f"{name}-{number}"
            while True:
                try:
                    behind = await kept(speaker, text, behind=behind)
                    break
                except Overtaken as exc:
                    behind = exc.sequence
            said[name].append(text)

    async def kill_leader() -> None:
        while len(said["ours"]) < 10:  # noqa: ASYNC110 - of a list
            await asyncio.sleep(0.01)
        victim = three.servers[await three.leader(bus, LOG)]
        await victim.kill()
        await asyncio.sleep(0.5)
        await victim.start()

    async with jetstream.connect(three.url, name="other", replicas=3) as other, asyncio.TaskGroup() as group:
        await other.ensure_streams([LOG])
        await other.wait_connected()
        group.create_task(speak(bus, "ours"))
        group.create_task(speak(other, "theirs"))
        group.create_task(kill_leader())
    async with bus.consume(LOG, subjects=["log.a"]) as deliveries:
        told = await taken(deliveries, 120)
    assert sorted(told) == sorted(said["ours"] + said["theirs"])
    for name, texts in said.items():
        assert [text for text in told if text.startswith(name)] == texts

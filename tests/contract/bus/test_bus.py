import asyncio
from collections.abc import AsyncIterator

import pytest

from hami_protocol.envelope import MESSAGE_ID, Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus import Bus, BusUnavailable, Delivery, MessageRefused, NoReply, Overtaken, StartAt, jetstream, reading
from hami_runtime.bus.memory import MemoryBus
from tests.contract.bus.conftest import NatsServer

LOG = StreamSpec(name="LOG", subjects=("log.>",))
LAST = StreamSpec(name="LAST", subjects=("last.*",), max_messages_per_subject=1)


def a_message(subject: str, text: str = "", *, message_id: str = "") -> Message:
    return Message(subject=subject, data=text.encode(), headers={MESSAGE_ID: message_id} if message_id else {})


async def taken(deliveries: AsyncIterator[Delivery], count: int, *, ack: bool = True) -> list[str]:
    """The texts of the next ``count`` messages."""
    texts = []
    async with asyncio.timeout(20):
        for _ in range(count):
            delivery = await anext(deliveries)
            texts.append(delivery.message.data.decode())
            if ack:
                await delivery.ack()
    return texts


class BusContract:
    """What every bus does."""

    async def test_a_published_message_is_delivered_with_its_headers(self, bus: Bus) -> None:
        await bus.publish(Message(subject="log.a", data=b"one", headers={"traceparent": "00-1", MESSAGE_ID: "x"}))
        async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
            delivery = await anext(deliveries)
        assert (delivery.message.subject, delivery.message.data) == ("log.a", b"one")
        assert delivery.message.headers == {"traceparent": "00-1", MESSAGE_ID: "x"}
        assert (delivery.sequence, delivery.attempt, delivery.pending) == (1, 1, 0)

    async def test_sequences_rise_in_the_order_of_keeping(self, bus: Bus) -> None:
        assert [await bus.publish(a_message(f"log.{n}")) for n in range(3)] == [1, 2, 3]

    async def test_a_message_said_twice_is_kept_once(self, bus: Bus) -> None:
        first = await bus.publish(a_message("log.a", "one", message_id="id"))
        assert await bus.publish(a_message("log.a", "one", message_id="id")) == first
        await bus.publish(a_message("log.a", "two", message_id="other"))
        async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
            assert await taken(deliveries, 2) == ["one", "two"]

    async def test_an_id_that_another_message_has_hides_no_message(self, bus: Bus) -> None:
        theirs = await bus.publish(a_message("log.b", "theirs", message_id="guessed"))
        ours = await bus.publish(a_message("log.a", "ours", message_id="guessed"))
        assert theirs < ours
        async with bus.consume(LOG, subjects=["log.a"]) as deliveries:
            assert await taken(deliveries, 1) == ["ours"]

    async def test_a_message_may_be_kept_only_behind_the_one_that_is_expected_last_on_its_subject(self, bus: Bus) -> None:
        first = await bus.publish(a_message("log.a", "one"), expected_last=0)
        await bus.publish(a_message("log.b", "elsewhere"))
        second = await bus.publish(a_message("log.a", "two"), expected_last=first)
        assert (first, second) == (1, 3)
        for expected in (0, first, 2, second + 1):
            with pytest.raises(Overtaken, match=r"log\.a") as refused:
                await bus.publish(a_message("log.a", "late"), expected_last=expected)
            assert refused.value.last is not None
            assert (refused.value.last.data, refused.value.sequence) == (b"two", second)
        async with bus.consume(LOG, subjects=["log.a"]) as deliveries:
            assert await taken(deliveries, 2) == ["one", "two"]

    async def test_where_nothing_is_left_of_what_was_expected_it_is_said_so(self, bus: Bus) -> None:
        first = await bus.publish(a_message("log.a", "one"), expected_last=0)
        await bus.purge(LOG, "log.a")
        with pytest.raises(Overtaken) as refused:
            await bus.publish(a_message("log.a", "two"), expected_last=first)
        assert (refused.value.last, refused.value.sequence) == (None, 0)
        assert await bus.publish(a_message("log.a", "two"), expected_last=0) == first + 1

    async def test_what_was_kept_though_nobody_heard_so_counts_as_kept_and_not_as_overtaken_by_itself(self, bus: Bus) -> None:
        first = await bus.publish(a_message("log.a", "one", message_id="id"), expected_last=0)
        assert await bus.publish(a_message("log.a", "one", message_id="id"), expected_last=0) == first
        second = await bus.publish(a_message("log.a", "two", message_id="other"), expected_last=first)
        assert await bus.publish(a_message("log.a", "one", message_id="id"), expected_last=second) == first
        async with bus.consume(LOG, subjects=["log.a"]) as deliveries:
            assert await taken(deliveries, 2) == ["one", "two"]
            await bus.publish(a_message("log.a", "three"))
            assert await taken(deliveries, 1) == ["three"]

    async def test_what_was_refused_may_be_said_behind_what_it_did_not_know(self, bus: Bus) -> None:
        first = await bus.publish(a_message("log.a", "theirs"))
        with pytest.raises(Overtaken):
            await bus.publish(a_message("log.a", "ours", message_id="id"), expected_last=0)
        assert await bus.publish(a_message("log.a", "ours", message_id="id"), expected_last=first) == first + 1

    async def test_a_connection_says_since_when_it_is_there(self, bus: Bus) -> None:
        since = bus.connected_since
        await bus.publish(a_message("log.a"))
        assert since is not None
        assert bus.connected_since == since

    async def test_order_holds_over_many_messages(self, bus: Bus) -> None:
        wanted = [str(n) for n in range(700)]  # more than a reader takes at once
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as durable, bus.consume(LOG, subjects=["log.>"]) as reader:
            for text in wanted:
                await bus.publish(a_message(f"log.{int(text) % 7}", text))
            assert await taken(durable, 700) == wanted
            assert await taken(reader, 700) == wanted

    async def test_filters_choose_subjects(self, bus: Bus) -> None:
        for subject in ("log.a.grant", "log.a.outcome", "log.b.grant", "log.c"):
            await bus.publish(a_message(subject, subject))
        async with bus.consume(LOG, subjects=["log.*.grant", "log.c"]) as deliveries:
            assert await taken(deliveries, 3) == ["log.a.grant", "log.b.grant", "log.c"]

    async def test_pending_reaches_zero_when_a_reader_has_caught_up(self, bus: Bus) -> None:
        for n in range(3):
            await bus.publish(a_message("log.a", str(n)))
        async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
            assert [(await anext(deliveries)).pending for _ in range(3)] == [2, 1, 0]

    async def test_an_unacknowledged_message_comes_back(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "one"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=0.5) as deliveries:
            first = await anext(deliveries)
            second = await anext(deliveries)
            assert (first.sequence, first.attempt) == (1, 1)
            assert (second.sequence, second.attempt) == (1, 2)

    async def test_a_refused_message_comes_back_after_its_delay(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "one"))
        await bus.publish(a_message("log.a", "two"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
            await (await anext(deliveries)).nak(delay_seconds=0.3)
            assert await taken(deliveries, 2) == ["two", "one"]

    async def test_a_message_refused_without_delay_comes_back_at_once(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "one"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
            await (await anext(deliveries)).nak()
            again = await anext(deliveries)
            assert (again.message.data, again.attempt) == (b"one", 2)

    async def test_a_terminated_message_never_comes_back(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "bad"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=0.2) as deliveries:
            await (await anext(deliveries)).term("cannot be\r\nread")
            await asyncio.sleep(0.5)
            await bus.publish(a_message("log.a", "good"))
            assert await taken(deliveries, 1) == ["good"]

    async def test_a_durable_consumer_goes_on_where_it_was(self, bus: Bus) -> None:
        for text in ("one", "two", "three"):
            await bus.publish(a_message("log.a", text))
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=0.5) as deliveries:
            assert await taken(deliveries, 1) == ["one"]
            await anext(deliveries)  # not acknowledged
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=0.5) as deliveries:
            assert sorted(await taken(deliveries, 2)) == ["three", "two"]

    async def test_a_durable_consumer_takes_new_filters(self, bus: Bus) -> None:
        async with bus.consume(LOG, subjects=["log.a"], durable="d") as deliveries:
            await bus.publish(a_message("log.a", "one"))
            assert await taken(deliveries, 1) == ["one"]
        async with bus.consume(LOG, subjects=["log.b", "log.c"], durable="d", ack_wait_seconds=5) as deliveries:
            await bus.publish(a_message("log.a", "two"))
            await bus.publish(a_message("log.c", "three"))
            assert await taken(deliveries, 1) == ["three"]

    async def test_readers_without_a_name_do_not_share(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "one"))
        async with bus.consume(LOG, subjects=["log.>"]) as first, bus.consume(LOG, subjects=["log.>"]) as second:
            assert await taken(first, 1) == await taken(second, 1) == ["one"]

    async def test_a_reader_may_begin_with_what_is_new(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "old"))
        async with bus.consume(LOG, subjects=["log.>"], start=StartAt.NEW) as deliveries:
            await bus.publish(a_message("log.a", "new"))
            assert await taken(deliveries, 1) == ["new"]

    async def test_a_reader_may_begin_at_a_sequence(self, bus: Bus) -> None:
        for text in ("one", "two", "three"):
            await bus.publish(a_message("log.a", text))
        async with bus.consume(LOG, subjects=["log.>"], start=2) as deliveries:
            assert await taken(deliveries, 2) == ["two", "three"]

    async def test_a_reader_may_begin_with_the_last_of_each_subject(self, bus: Bus) -> None:
        for subject, text in (("log.a", "a1"), ("log.b", "b1"), ("log.a", "a2")):
            await bus.publish(a_message(subject, text))
        async with bus.consume(LOG, subjects=["log.>"], start=StartAt.LAST_PER_SUBJECT) as deliveries:
            assert await taken(deliveries, 2) == ["b1", "a2"]
            await bus.publish(a_message("log.b", "b2"))
            assert await taken(deliveries, 1) == ["b2"]

    async def test_only_the_last_of_each_subject_is_kept_where_the_stream_says_so(self, bus: Bus) -> None:
        for subject, text in (("last.a", "a1"), ("last.b", "b1"), ("last.a", "a2")):
            await bus.publish(a_message(subject, text))
        async with bus.consume(LAST, subjects=["last.*"]) as deliveries:
            assert await taken(deliveries, 2) == ["b1", "a2"]

    async def test_the_last_message_of_a_subject_can_be_asked_for(self, bus: Bus) -> None:
        assert await bus.last(LAST, "last.a") is None
        await bus.publish(Message(subject="last.a", data=b"\x00a1", headers={"traceparent": "00-1"}))
        found = await bus.last(LAST, "last.a")
        assert found == Message(subject="last.a", data=b"\x00a1", headers={"traceparent": "00-1"})

    async def test_the_last_message_of_several_subjects_is_the_newest_of_them(self, bus: Bus) -> None:
        assert await bus.last(LAST, "last.*") is None
        for subject, text in (("last.a", "a1"), ("last.b", "b1"), ("last.a", "a2")):
            await bus.publish(a_message(subject, text))
        found = await bus.last(LAST, "last.*")
        assert found is not None
        assert (found.subject, found.data) == ("last.a", b"a2")

    async def test_whether_there_is_a_stream_can_be_asked(self, bus: Bus) -> None:
        assert await bus.has(LAST)
        assert not await bus.has(StreamSpec(name="NEVER_MADE", subjects=("never.*",)))

    async def test_the_newest_message_of_each_subject_is_read(self, bus: Bus) -> None:
        assert await reading.newest(bus, LAST, "last.*") == []
        for subject, text in (("last.a", "a1"), ("last.b", "b1"), ("last.a", "a2")):
            await bus.publish(a_message(subject, text))
        assert {(each.subject, each.data) for each in await reading.newest(bus, LAST, "last.*")} == {("last.a", b"a2"), ("last.b", b"b1")}
        assert [each.data for each in await reading.newest(bus, LAST, "last.b")] == [b"b1"]

    async def test_what_is_purged_is_gone(self, bus: Bus) -> None:
        for subject in ("log.n1.a", "log.n1.b", "log.n2.a"):
            await bus.publish(a_message(subject, subject))
        await bus.purge(LOG, "log.n1.*")
        await bus.purge(LOG, "log.n3.*")
        assert await bus.last(LOG, "log.n1.a") is None
        async with bus.consume(LOG, subjects=["log.>"]) as deliveries:
            delivery = await anext(deliveries)
        assert (delivery.message.data, delivery.pending) == (b"log.n2.a", 0)

    async def test_a_durable_name_that_was_forgotten_begins_anew(self, bus: Bus) -> None:
        await bus.publish(a_message("log.a", "one"))
        for _ in range(2):
            async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
                assert await taken(deliveries, 1) == ["one"]
            await bus.forget(LOG, "d")
        await bus.forget(LOG, "never-there")

    async def test_giving_up_a_read_loses_nothing(self, bus: Bus) -> None:
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(deliveries)
            await bus.publish(a_message("log.a", "one"))
            assert await taken(deliveries, 1) == ["one"]

    async def test_a_subject_that_no_stream_keeps_is_refused(self, bus: Bus) -> None:
        with pytest.raises(MessageRefused, match=r"elsewhere\.a"):
            await bus.publish(a_message("elsewhere.a"))

    async def test_a_message_that_is_too_large_is_refused(self, bus: Bus) -> None:
        with pytest.raises(MessageRefused, match=r"log\.a"):
            await bus.publish(Message(subject="log.a", data=b"x" * (1024 * 1024 + 1)))

    async def test_a_stream_that_differs_is_reconciled_and_keeps_its_messages(self, bus: Bus) -> None:
        for text in ("one", "two"):
            await bus.publish(a_message("log.a", text))
        await bus.ensure_streams([StreamSpec(name="LOG", subjects=("log.>", "more.*"), max_age_seconds=3600)])
        await bus.publish(a_message("more.a", "three"))
        async with bus.consume(LOG, subjects=["log.>", "more.*"]) as deliveries:
            assert await taken(deliveries, 3) == ["one", "two", "three"]

    async def test_a_reader_may_come_before_its_stream(self, bus: Bus) -> None:
        late = StreamSpec(name="LATE", subjects=("late.*",))
        async with bus.consume(late, subjects=["late.*"], durable="d") as deliveries:
            await bus.ensure_streams([late])
            await bus.publish(a_message("late.a", "one"))
            assert await taken(deliveries, 1) == ["one"]

    async def test_a_question_is_answered(self, bus: Bus) -> None:
        async def shout(data: bytes) -> bytes:
            return data.upper()

        async with bus.answer("ask.shout", shout):
            assert await bus.request("ask.shout", b"hello", timeout_seconds=5) == b"HELLO"
        with pytest.raises(NoReply, match=r"ask\.shout"):
            await bus.request("ask.shout", b"hello", timeout_seconds=0.5)

    async def test_who_asks_is_told_at_once_when_nobody_answers_any_more(self, bus: Bus) -> None:
        async def shout(question: bytes) -> bytes:
            return question.upper()

        async with bus.answer("ask.shout", shout):
            assert await bus.request("ask.shout", b"ok", timeout_seconds=5) == b"OK"
        with pytest.raises(NoReply, match="nobody answers"):
            await bus.request("ask.shout", b"ok", timeout_seconds=30)

    async def test_a_question_whose_answer_fails_has_no_reply(self, bus: Bus) -> None:
        async def fail(_data: bytes) -> bytes:
            raise ValueError("no")

        async with bus.answer("ask.fail", fail):
            with pytest.raises(NoReply, match=r"ask\.fail"):
                await bus.request("ask.fail", b"", timeout_seconds=0.3)


class TestMemoryBus(BusContract):
    @pytest.fixture
    async def bus(self) -> MemoryBus:
        bus = MemoryBus()
        await bus.ensure_streams([LOG, LAST])
        return bus


@pytest.mark.nats
class TestJetStreamBus(BusContract):
    @pytest.fixture
    async def bus(self, server: NatsServer) -> AsyncIterator[Bus]:
        async with jetstream.connect(server.url, name="test") as bus:
            await bus.ensure_streams([LOG, LAST])
            await bus.wait_connected()
            yield bus


class TestMemoryBusGoesAway:
    @pytest.fixture
    async def bus(self) -> MemoryBus:
        bus = MemoryBus()
        await bus.ensure_streams([LOG])
        return bus

    async def test_while_it_is_down_nothing_is_kept(self, bus: MemoryBus) -> None:
        bus.down()
        assert not bus.connected
        with pytest.raises(BusUnavailable):
            await bus.publish(a_message("log.a"))
        with pytest.raises(BusUnavailable):
            await bus.request("ask.x", b"", timeout_seconds=1)
        bus.up()
        assert bus.kept(LOG) == ()

    async def test_readers_pause_and_go_on(self, bus: MemoryBus) -> None:
        async with bus.consume(LOG, subjects=["log.>"], durable="d") as deliveries:
            await bus.publish(a_message("log.a", "one"))
            bus.down()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(deliveries)
            bus.up()
            assert await taken(deliveries, 1) == ["one"]

    async def test_an_acknowledgement_while_it_is_down_is_lost(self, bus: MemoryBus) -> None:
        await bus.publish(a_message("log.a", "one"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=0.05) as deliveries:
            delivery = await anext(deliveries)
            bus.down()
            await delivery.ack()
            bus.up()
            assert (await anext(deliveries)).attempt == 2

    async def test_who_waits_for_it_is_told(self, bus: MemoryBus) -> None:
        bus.down()
        asyncio.get_running_loop().call_later(0.01, bus.up)
        async with asyncio.timeout(5):
            await bus.wait_connected()
        assert bus.connected

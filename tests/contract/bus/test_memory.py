"""What time does to the bus in memory: under a virtual loop hours pass at once, and equal programs have equal runs."""

import asyncio
import random

from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from tests.contract.bus.test_bus import LOG, a_message

SHORT = StreamSpec(name="SHORT", subjects=("short.>",), max_age_seconds=3600, duplicate_window_seconds=120)


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.data.decode() for message in messages]


def test_what_is_too_old_is_gone() -> None:
    async def main() -> None:
        bus = MemoryBus()
        await bus.ensure_streams([SHORT])
        async with bus.consume(SHORT, subjects=["short.>"], durable="d") as deliveries:
            await bus.publish(a_message("short.a", "old"))
            await asyncio.sleep(3000)
            await bus.publish(a_message("short.a", "new"))
            await asyncio.sleep(1000)
            assert texts(bus.kept(SHORT)) == ["new"]
            delivery = await anext(deliveries)
            assert (delivery.message.data, delivery.pending) == (b"new", 0)

    virtual.run(main())


def test_a_double_is_known_for_its_window() -> None:
    async def main() -> None:
        bus = MemoryBus()
        await bus.ensure_streams([SHORT])
        first = await bus.publish(a_message("short.a", "one", message_id="id"))
        await asyncio.sleep(119)
        assert await bus.publish(a_message("short.a", "one", message_id="id")) == first
        await asyncio.sleep(2)
        assert await bus.publish(a_message("short.a", "one", message_id="id")) == first + 1

    virtual.run(main())


def test_a_double_that_is_still_the_last_on_its_subject_is_known_for_ever_where_something_is_expected() -> None:
    async def main() -> None:
        bus = MemoryBus()
        await bus.ensure_streams([SHORT])
        first = await bus.publish(a_message("short.a", "one", message_id="id"), expected_last=0)
        await asyncio.sleep(1000)
        assert await bus.publish(a_message("short.a", "one", message_id="id"), expected_last=0) == first

    virtual.run(main())


def test_what_is_never_acknowledged_comes_every_ack_wait() -> None:
    async def main() -> list[float]:
        bus, times = MemoryBus(), []
        await bus.ensure_streams([LOG])
        await bus.publish(a_message("log.a", "one"))
        async with bus.consume(LOG, subjects=["log.>"], durable="d", ack_wait_seconds=30) as deliveries:
            for _ in range(4):
                await anext(deliveries)
                times.append(asyncio.get_running_loop().time())
        return times

    assert virtual.run(main()) == [0.0, 30.0, 60.0, 90.0]


def test_equal_programs_have_equal_runs() -> None:
    async def main() -> list[tuple[str, str, float]]:
        bus, rng, trail = MemoryBus(), random.Random(7), list[tuple[str, str, float]]()
        await bus.ensure_streams([LOG])
        loop = asyncio.get_running_loop()

        async def read(name: str, durable: str | None) -> None:
            async with bus.consume(LOG, subjects=["log.>"], durable=durable, ack_wait_seconds=5) as deliveries:
                async for delivery in deliveries:
                    trail.append((name, delivery.message.data.decode(), loop.time()))
                    await asyncio.sleep(rng.random())
                    await (delivery.ack() if rng.random() < 0.7 else delivery.nak(delay_seconds=rng.random()))

        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read(name, durable)) for name, durable in (("a", "d"), ("b", "d"), ("c", None))]
            for number in range(40):
                await bus.publish(a_message(f"log.{number % 3}", str(number)))
                await asyncio.sleep(rng.random())
                if number % 10 == 5:
                    bus.down()
                    await asyncio.sleep(3)
                    bus.up()
            await asyncio.sleep(300)
            for reader in readers:
                reader.cancel()
        return trail

    first = virtual.run(main())
    assert first == virtual.run(main())
    assert [text for name, text, _ in first if name == "c"] == [str(number) for number in range(40)]
    assert {text for name, text, _ in first if name in "ab"} == {str(number) for number in range(40)}

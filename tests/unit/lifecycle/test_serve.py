import asyncio
import gc
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_runtime import lifecycle, virtual


async def until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


async def test_a_signal_stops_all_loops() -> None:
    ended = []

    async def loop(stop: asyncio.Event) -> None:
        await stop.wait()
        ended.append("orderly")

    asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
    await lifecycle.serve(loop, loop, grace_seconds=5)
    assert ended == ["orderly", "orderly"]


async def test_signals_mean_what_they_did_once_it_has_ended() -> None:
    before = signal.getsignal(signal.SIGTERM)
    asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
    await lifecycle.serve(until_stopped, grace_seconds=1)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_loop_that_fails_stops_the_others_in_order_and_is_told() -> None:
    ended = []

    async def failing(_stop: asyncio.Event) -> None:
        raise ValueError("no disk")

    async def other(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(1)
        ended.append("orderly")

    with pytest.raises(ExceptionGroup) as caught:
        virtual.run(lifecycle.serve(other, failing, grace_seconds=5, stop=asyncio.Event()))
    assert [str(exc) for exc in caught.value.exceptions] == ["no disk"]
    assert ended == ["orderly"]


def test_a_loop_that_returns_early_is_a_fault() -> None:
    async def early(_stop: asyncio.Event) -> None:
        return

    with pytest.raises(ExceptionGroup) as caught:
        virtual.run(lifecycle.serve(until_stopped, early, grace_seconds=5, stop=asyncio.Event()))
    assert caught.group_contains(lifecycle.LoopEndedError, match="early returned before")


def test_at_a_signal_the_farewell_comes_first_and_the_loops_stop_behind_it() -> None:
    said: list[str] = []

    async def main() -> None:
        async def work(stop: asyncio.Event) -> None:
            await stop.wait()
            said.append("stopped")

        async def farewell() -> None:
            await asyncio.sleep(0.05)
            said.append("farewell")

        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        await lifecycle.serve(work, grace_seconds=2, farewell=farewell)

    asyncio.run(main())
    assert said == ["farewell", "stopped"]


def test_a_loop_that_fails_during_the_farewell_ends_it() -> None:
    async def main() -> None:
        async def breaks(_stop: asyncio.Event) -> None:
            await asyncio.sleep(0.05)
            raise ValueError("broken")

        async def farewell() -> None:
            await asyncio.sleep(1000)

        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        await lifecycle.serve(breaks, grace_seconds=2, farewell=farewell)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(ValueError, match="broken")


def test_who_is_late_is_cancelled() -> None:
    async def main() -> float:
        stop = asyncio.Event()
        cancelled = []

        async def stubborn(_stop: asyncio.Event) -> None:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        asyncio.get_running_loop().call_later(1, stop.set)
        await lifecycle.serve(stubborn, grace_seconds=2, stop=stop)
        assert cancelled == [True]
        return asyncio.get_running_loop().time()

    assert virtual.run(main()) == pytest.approx(3)


async def numbers(*, then_wait: bool) -> AsyncIterator[int]:
    yield 1
    yield 2
    if then_wait:
        await asyncio.Event().wait()


def test_until_ends_with_its_items() -> None:
    async def main() -> list[int]:
        return [n async for n in lifecycle.until(asyncio.Event(), numbers(then_wait=False))]

    assert virtual.run(main()) == [1, 2]


def test_until_ends_at_the_stop_though_no_item_comes() -> None:
    async def main() -> list[int]:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(5, stop.set)
        return [n async for n in lifecycle.until(stop, numbers(then_wait=True))]

    assert virtual.run(main()) == [1, 2]


def test_until_takes_nothing_more_once_stopped() -> None:
    async def main() -> list[int]:
        stop = asyncio.Event()
        seen = []
        async for n in lifecycle.until(stop, numbers(then_wait=False)):
            seen.append(n)
            stop.set()
        return seen

    assert virtual.run(main()) == [1]


def test_a_stop_that_interrupts_loses_nothing() -> None:
    async def main() -> list[int]:
        stop = asyncio.Event()
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def collect(source: AsyncIterator[int]) -> list[int]:
            return [n async for n in source]

        first = asyncio.create_task(collect(lifecycle.until(stop, Items(queue))))
        queue.put_nowait(1)
        await asyncio.sleep(1)
        stop.set()
        queue.put_nowait(2)
        return [*await first, *(queue.get_nowait() for _ in range(queue.qsize()))]

    assert virtual.run(main()) == [1, 2]


class Items(AsyncIterator[int]):
    """What is put into a queue."""

    def __init__(self, queue: asyncio.Queue[int]) -> None:
        self._queue = queue

    async def __anext__(self) -> int:
        return await self._queue.get()


@pytest.mark.parametrize("stopped", [False, True])
def test_who_is_cancelled_while_waiting_for_an_item_is_cancelled(stopped: bool) -> None:
    async def main() -> bool:
        stop = asyncio.Event()

        async def work() -> None:
            async for _ in lifecycle.until(stop, numbers(then_wait=True)):
                pass
            await asyncio.sleep(1_000)  # where a cancellation that was swallowed shows

        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        if stopped:
            stop.set()
        task.cancel()
        await asyncio.wait((task,), timeout=10)
        return task.cancelled()

    assert virtual.run(main())


def test_what_the_consumer_does_with_an_item_is_not_interrupted() -> None:
    async def main() -> list[int]:
        stop = asyncio.Event()
        done = []
        asyncio.get_running_loop().call_later(1, stop.set)
        async for n in lifecycle.until(stop, numbers(then_wait=False)):
            await asyncio.sleep(5)
            done.append(n)
        return done

    assert virtual.run(main()) == [1]


def test_a_sleep_ends_early_at_the_stop() -> None:
    async def main() -> tuple[bool, bool, float]:
        stop = asyncio.Event()
        first = await lifecycle.sleep_until(stop, 3)
        asyncio.get_running_loop().call_later(1, stop.set)
        return first, await lifecycle.sleep_until(stop, 3), asyncio.get_running_loop().time()

    assert virtual.run(main()) == (False, True, pytest.approx(4))


def test_the_bound_ports_appear_whole(tmp_path: Path) -> None:
    lifecycle.announce(str(tmp_path / "ready.json"), {"health": 1234})
    assert json.loads((tmp_path / "ready.json").read_text()) == {"health": 1234}
    assert [each.name for each in tmp_path.iterdir()] == ["ready.json"]


def test_without_a_ready_file_nothing_is_written() -> None:
    lifecycle.announce("", {"health": 1234})


def test_a_process_runs_its_main_coroutine() -> None:
    async def main() -> str:
        await asyncio.sleep(0)
        return "done"

    assert lifecycle.run(main()) == "done"


async def test_work_that_fails_while_its_waiter_is_cancelled_is_complained_about_by_nobody() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    fail = asyncio.Event()

    async def work() -> None:
        await fail.wait()
        raise ValueError("too old")

    waiting = asyncio.create_task(lifecycle.run_until(asyncio.Event(), work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    fail.set()
    await asyncio.sleep(0)  # the work has failed, and the waiter has not heard of it
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    del waiting
    gc.collect()
    assert complaints == []

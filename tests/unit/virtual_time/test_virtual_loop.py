import asyncio
import socket
import time
from datetime import timedelta

import pytest

from hami_runtime import virtual


def test_a_day_passes_at_once() -> None:
    async def sleep() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert virtual.run(sleep()) == pytest.approx(86_400)
    assert time.monotonic() - before < 60


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            seen.append((asyncio.get_running_loop().time(), name))

        async with asyncio.TaskGroup() as group:
            for seconds, name in ((3, "c"), (1, "a"), (2, "b")):
                group.create_task(after(seconds, name))
        return seen

    assert virtual.run(main()) == [(1.0, "a"), (2.0, "b"), (3.0, "c")]


def test_waiting_for_what_never_comes_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual.Stuck):
        virtual.run(main())


def test_it_does_no_io() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asyncio.get_running_loop().add_reader(ours, lambda: None)

    with pytest.raises(RuntimeError, match="does no I/O"):
        virtual.run(main())


def test_the_wall_clock_may_jump_while_the_monotonic_one_goes_on() -> None:
    async def main() -> tuple[float, timedelta]:
        clock = virtual.VirtualClock()
        await asyncio.sleep(10)
        clock.skew = timedelta(hours=-1)
        return clock.monotonic(), clock.utc() - virtual.EPOCH

    assert virtual.run(main()) == (10.0, timedelta(hours=-1, seconds=10))

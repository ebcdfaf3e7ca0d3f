"""How a process runs and stops: its loops, its signals, the file that says where it listens. Decides nothing about the work itself.

A loop gets the stop event and returns once it is set, having finished what it holds. A loop that fails or returns early stops the others
in the same orderly way; what they raised is raised again together. Whoever is still at work after the grace period is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Loop = Callable[[asyncio.Event], Awaitable[None]]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class LoopEndedError(RuntimeError):
    """A loop returned although nobody had asked it to."""


async def serve(
    *loops: Loop, grace_seconds: float, stop: asyncio.Event | None = None, farewell: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run ``loops`` until a signal, or until one fails or returns early; then stop all, cancelling the late ones.

    Args:
        loops: what to run.
        grace_seconds: how long the loops may take to finish once they are asked to stop.
        stop: given by whoever stops the loops itself; signals are then left alone. A second signal ends the process at once.
        farewell: run at the first signal, before any loop is stopped; it bounds its own time, and raises nothing.

    Raises:
        ExceptionGroup: what the loops raised.
    """
    failures: list[Exception] = []
    stopping = stop or asyncio.Event()

    async def run(loop: Loop) -> None:
        try:
            await loop(stopping)
            if not stopping.is_set():
                raise LoopEndedError(f"{_name(loop)} returned before it was asked to stop")
        except Exception as exc:  # noqa: BLE001 - raised again, with the others', once all have stopped
            failures.append(exc)
            stopping.set()

    heard: list[signal.Signals] = []
    asked = asyncio.Event() if farewell else stopping

    if stop is None:
        for signum in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signum, asked.set)
            heard.append(signum)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(loop), name=_name(loop)) for loop in loops]
            leaving = group.create_task(_leave(asked, heard, stopping, farewell))
            await stopping.wait()
            leaving.cancel()
            _forget_signals(heard)
            late: set[asyncio.Task[None]] = set()
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
    finally:
        _forget_signals(heard)
    if failures:
        raise ExceptionGroup("the service stopped because a part of it failed", failures)


async def _leave(
    asked: asyncio.Event, heard: list[signal.Signals], stopping: asyncio.Event, farewell: Callable[[], Awaitable[None]] | None
) -> None:
    await asked.wait()
    _forget_signals(heard)
    if farewell is not None:
        await farewell()
    stopping.set()


async def until(stop: asyncio.Event, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield ``items`` until there are no more or ``stop`` is set. What has not been yielded by then stays with ``items``.

    Whoever waits for the next item is interrupted by a cancellation, which goes no further; there is one more task for all of them, not one for each.
    """
    waiting: asyncio.Task[Any] | None = None
    interrupted = False

    def interrupt(_stopped: asyncio.Future[Any]) -> None:
        nonlocal interrupted
        if waiting is not None:
            interrupted = waiting.cancel()

    stopped = asyncio.ensure_future(stop.wait())
    stopped.add_done_callback(interrupt)
    try:
        while not stop.is_set():
            waiting = asyncio.current_task()
            cancellations = waiting.cancelling() if waiting is not None else 0
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if waiting is None or not interrupted or waiting.uncancel() > cancellations:
                    raise  # somebody else means us
                return
            finally:
                waiting = None
            yield item
    finally:
        stopped.remove_done_callback(interrupt)
        await _end(stopped)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it is done, or cancel it when ``stop`` is set; what it raises by itself is raised here."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await _end(task, stopped)


async def _end(*futures: asyncio.Future[Any]) -> None:
    """Cancel what is not done, and wait for it. Whoever cancels us meanwhile is heard: only the futures' own cancellation goes no further.

    What has failed in the very moment in which we are cancelled has failed for nobody: it is not complained about when it is collected.
    """
    for future in futures:
        if future.done() and not future.cancelled():
            future.exception()
    late = [future for future in futures if not future.done()]
    for future in late:
        future.cancel()
    if late:
        await asyncio.wait(late)
    for future in late:
        if not future.cancelled():
            future.result()


async def sleep_until(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep ``seconds``, or until ``stop`` is set; return whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a process's main coroutine, on uvloop where it is present."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def announce(ready_file: str, ports: Mapping[str, int]) -> None:
    """Write the bound ports, as one JSON object, to ``ready_file`` in one step; nothing where it is empty."""
    if not ready_file:
        return
    path = Path(ready_file)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        json.dump(dict(ports), file)
    Path(temporary).replace(path)


def _forget_signals(heard: list[signal.Signals]) -> None:
    """From here on a signal has its usual effect: whoever sends a second one does not want to wait."""
    while heard:
        asyncio.get_running_loop().remove_signal_handler(heard.pop())


def _name(loop: Loop) -> str:
    return getattr(loop, "__qualname__", None) or repr(loop)

"""A program of the rig: ready when it says so, reported with its last words when it dies, ended with all that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from hami_rig.processes import ManagedProcess, ProcessFailed

READY = "import os, pathlib, time; pathlib.Path(os.environ['READY']).write_text('{\"port\": 7}'); time.sleep(60)"


def a_program(folder: Path, code: str) -> ManagedProcess:
    process = ManagedProcess("program", [sys.executable, "-c", code], folder=folder, environ=dict(os.environ))
    process.environ["READY"] = str(process.ready_file)
    return process


async def test_it_is_ready_when_its_file_is_there(tmp_path: Path) -> None:
    process = a_program(tmp_path, READY)
    await process.start()
    assert await process.ready(timeout_seconds=20) == {"port": 7}
    assert not process.ended_unasked
    await process.stop(grace_seconds=5)
    assert process.pid == 0
    assert not process.ended_unasked


async def test_one_that_ends_first_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = a_program(tmp_path, "import sys; print('the port is taken'); sys.exit(3)")
    await process.start()
    with pytest.raises(ProcessFailed, match=r"program ended with exit status 3\n    the port is taken"):
        await process.ready(timeout_seconds=20)
    assert process.ended_unasked


async def test_one_that_is_never_ready_is_reported_with_its_last_words(tmp_path: Path) -> None:
    process = a_program(tmp_path, "import time; print('still looking', flush=True); time.sleep(60)")
    await process.start()
    await asyncio.to_thread(wait_for_text, process.log)
    with pytest.raises(ProcessFailed, match=r"not ready after 0 s\n    still looking"):
        await process.ready(timeout_seconds=0.1)
    await process.stop(grace_seconds=5)


async def test_a_killed_one_says_which_signal_it_was(tmp_path: Path) -> None:
    process = a_program(tmp_path, READY)
    await process.start()
    await process.ready(timeout_seconds=20)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert process.ended_unasked
    assert process.obituary().startswith("program was killed by signal 9")


async def test_one_that_does_not_listen_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = """if True:
        import signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
        signal.pause()
    """
    process = a_program(tmp_path, child)
    await process.start()
    grandchild = int(await asyncio.to_thread(wait_for_text, process.log))
    await process.stop(grace_seconds=0.2)
    await asyncio.to_thread(wait_until_gone, grandchild)


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = ManagedProcess("nats", [str(tmp_path / "nats-server")], folder=tmp_path, environ={})
    with pytest.raises(ProcessFailed, match=r"nats cannot be started: .*nats-server: No such file"):
        await process.start()


def wait_for_text(path: Path) -> str:
    """The first line of ``path``, once there is one."""
    for _ in range(2000):
        if path.exists() and "\n" in (text := path.read_text()):
            return text.splitlines()[0]
        signal.sigtimedwait([], 0.01)
    raise AssertionError(f"{path} stays empty")


def wait_until_gone(pid: int) -> None:
    """Return once no such process runs (a zombie that nobody has waited for does not run)."""
    for _ in range(2000):
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError(f"{pid} still runs")

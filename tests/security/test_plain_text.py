"""Control and direction characters that a tenant wrote reach no Event, log line, error or terminal."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys

import pytest

from hami_cli import output
from hami_protocol.errors import ProtocolError
from hami_protocol.plain_text import plain
from hami_runtime import virtual
from hami_runtime.kube.cluster import EVENTS
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock

BAD = ["\x1b[2J", "\0", "\u202e", "\u2066", "\u200f", "\u2028", "\r\n", "\x7f", "\x9b", "\ud800", "\ufeff"]


@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_no_such_character_is_left(bad: str) -> None:
    assert plain(f"a{bad}b").isprintable()
    assert plain("größe 30 % ✓ 显存") == "größe 30 % ✓ 显存"
    assert output.plain is plain
    assert str(ProtocolError(f"a{bad}b")).isprintable()


@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_an_event_is_written_without_it(bad: str) -> None:
    async def main() -> None:
        clock, stop = VirtualClock(), asyncio.Event()
        cluster = MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1)))
        recorder = EventRecorder(cluster, clock, "hami-test")
        recorder.record("n1", "Warning", "Reason", f"a{bad}b")
        stop.set()
        await recorder.run(stop)
        (event,) = (await cluster.list(EVENTS)).items
        assert event["message"].isprintable()

    virtual.run(main())


def test_a_log_line_is_written_without_it() -> None:
    program = "import structlog; from hami_runtime import logs; logs.configure('info', 'test')"
    program += r"; structlog.get_logger('x').info('e', pod='a\u202e\x1b[2Jb')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["pod"] == "a  [2Jb"
    assert line.isprintable()

"""A reader that goes away ends the process silently, with the exit code of SIGPIPE."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from hami_cli.pipes import closed_pipe_is_silent
from hami_cli.exits import run

async def write():
    for number in range({lines}):
        print("line", number, flush={flush})

with closed_pipe_is_silent():
    run("events", write())
"""


@pytest.mark.parametrize("lines", [1, 200_000])
@pytest.mark.parametrize("flush", [True, False])
def test_a_closed_pipe_is_no_error(lines: int, flush: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(lines=lines, flush=flush)], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writing)
    assert (done.stderr, done.returncode) == ("", 141)

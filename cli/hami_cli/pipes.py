"""Standard output whose reader has gone, as in ``hami events | head -1``: the process ends silently, as if by SIGPIPE."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLOSED = 128 + signal.SIGPIPE
"""The exit code that a shell gives a process that SIGPIPE has ended."""


@contextmanager
def closed_pipe_is_silent() -> Iterator[None]:
    """End with ``CLOSED`` and without a message where standard output has been closed."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes standard output once more when it ends
        raise SystemExit(CLOSED) from None

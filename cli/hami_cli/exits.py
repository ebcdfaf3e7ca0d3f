"""How a command ends: its exit codes, and what it says when it cannot do what it was asked. The codes are part of the interface (docs/cli.md)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import aiohttp

from hami_protocol.errors import ProtocolError
from hami_runtime.bus.port import BusError
from hami_runtime.kube.cluster import ClusterError

T = TypeVar("T")

OK: Final = 0
FAILED: Final = 1
"""What was asked could not be done: something was not reached, not found, or refused."""
USAGE: Final = 2
"""The command line makes no sense."""
FOUND: Final = 3
"""It was done, and the answer is bad news: a finding, a failed check, a pod that fits nowhere."""
INTERRUPTED: Final = 130


class CommandError(Exception):
    """A command cannot go on; the text says what was given and what is accepted, or what to do."""


def run(command: str, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns. Where it fails, the reason goes to standard error and the process ends with ``FAILED``."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (CommandError, ClusterError, BusError, ProtocolError, aiohttp.ClientError, TimeoutError, OSError) as exc:
        print(f"hami {command}: {str(exc) or type(exc).__name__}", file=sys.stderr)
        raise SystemExit(FAILED) from exc

"""How a command ends: its exit codes, and what it says when it cannot do what it was asked. The codes are part of the interface (docs/cli.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

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
    """What ``work`` returns. Where it fails, the reason goes to standard error and the process ends with ``FAILED``.

    Libraries log only errors.
    """
    logging.getLogger().setLevel(logging.ERROR)
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        raise
    except Exception as exc:
        if not isinstance(exc, _failures()):
            raise
        print(f"hami {command}: {reason_of(exc)}", file=sys.stderr)
        raise SystemExit(FAILED) from exc


def reason_of(exc: BaseException) -> str:
    """What went wrong, in words: without error numbers and the libraries' own notation."""
    cause = exc.__cause__
    if isinstance(exc, OSError) and exc.strerror and not str(exc).startswith("Cannot connect"):
        return f"{exc.filename}: {exc.strerror.lower()}" if exc.filename else exc.strerror.lower()
    text = str(exc) or type(exc).__name__
    if isinstance(cause, OSError) and str(cause) in text:
        return text.replace(str(cause), _connection(cause) or reason_of(cause))
    return _connection(exc) or text


def _connection(exc: BaseException) -> str:
    """Why a connection could not be made; empty where it is no such failure."""
    host, port, error = (getattr(exc, name, None) for name in ("host", "port", "os_error"))
    if not isinstance(error, OSError):
        return ""
    if isinstance(error, ssl.SSLError):
        return f"TLS with {host}:{port} failed: {getattr(error, 'verify_message', '') or error.reason or error}"
    if isinstance(error, socket.gaierror):
        return f"host {host} is not known: {error.strerror}"
    text = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    return f"connection to {host}:{port} failed: {text.lower()}"


def _failures() -> tuple[type[Exception], ...]:
    """What may go wrong; imported only where something has."""
    import aiohttp

    from hami_protocol.errors import ProtocolError
    from hami_runtime.bus.port import BusError
    from hami_runtime.kube.cluster import ClusterError

    return (CommandError, ClusterError, BusError, ProtocolError, aiohttp.ClientError, TimeoutError, OSError)

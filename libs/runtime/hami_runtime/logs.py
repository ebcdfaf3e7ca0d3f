"""Structured logs: one JSON object a line on standard error, or a coloured line where a person looks on.

``configure`` is called once, by ``main``. Everything else only asks structlog for a logger; what libraries log through ``logging`` comes
out in the same form. A line below the level costs next to nothing, and one that is written goes straight to its stream.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import msgspec
import structlog
from opentelemetry import trace
from structlog.typing import EventDict, WrappedLogger

from hami_protocol.plain_text import plain

LEVELS = ("debug", "info", "warning", "error")


class _Lines(structlog.WriteLogger):
    """Where the lines of one module go.

    Attributes:
        name: of the module.
    """

    def __init__(self, name: str, stream: TextIO) -> None:
        super().__init__(stream)
        self.name = name


class _Modules:
    """Gives each module its ``_Lines``; a logger that was asked for without a name has its module's, as with ``logging``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._named = structlog.stdlib.LoggerFactory([__name__])

    def __call__(self, *args: Any) -> _Lines:
        return _Lines(self._named(*args).name, self._stream)


def configure(level: str, service: str, *, stream: TextIO | None = None, for_good: bool = False) -> None:
    """Log from ``level`` on, each line with the service's name, and the trace that it belongs to.

    Args:
        level: one of ``LEVELS``.
        service: as ``scheduler``.
        stream: where to, standard error where not given.
        for_good: nobody configures logging again in this process, so that each module's logger is made once and not for each line.

    Raises:
        ValueError: no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not accepted; accepted: {', '.join(LEVELS)}")
    out = stream or sys.stderr

    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_service,
        _name_trace,
        _cleaned,
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if out.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        logger_factory=_Modules(out),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=for_good,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering]
        )
    )
    root = logging.getLogger()
    for earlier in root.handlers[:]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def _cleaned(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """What tenants have written, such as names and annotations, without characters that change a terminal or hide text."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = plain(value)
    return event


def _json(event: EventDict, *, default: Callable[[Any], Any]) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=default).decode()
    except (TypeError, ValueError, OverflowError):  # half a character, a number of more than 64 bits: whatever it is, it must be told
        return json.dumps(event, default=default)


def _name_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event

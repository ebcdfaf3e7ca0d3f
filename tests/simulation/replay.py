"""What makes a run replay exactly: its event loop, the services' logs, and a record of everything that happened."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from hami_protocol import subjects
from hami_protocol.envelope import EVENT_ID
from hami_runtime.virtual import VirtualLoop
from tests.simulation.town import Town

TURNS_AT_ONCE = 50_000


class WatchfulLoop(VirtualLoop):
    """A virtual loop that notices tasks which spin without time passing, and then lets time pass, so that the run ends.

    Attributes:
        spinning: which tasks spun; empty while all is well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.spinning = ""
        self._turns = 0
        self._since = -1.0

    def _run_once(self) -> None:
        if self.time() > self._since:
            self._since, self._turns = self.time(), 0
        self._turns += 1
        if self._turns > TURNS_AT_ONCE:
            self.spinning = self.spinning or f"{TURNS_AT_ONCE} turns of the loop at {self.time():.3f} s, of {_awaiting(self)}"
            self._jump(0.1)
        super()._run_once()  # type: ignore[misc]  # of asyncio's, under every loop of it


def _awaiting(loop: asyncio.AbstractEventLoop) -> str:
    """Where the tasks that are ready wait."""
    found: Counter[str] = Counter()
    for handle in loop._ready:  # type: ignore[attr-defined]
        task = getattr(handle._callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            names: list[str] = []
            coroutine: Any = task.get_coro()
            while coroutine is not None and hasattr(coroutine, "cr_code"):
                names.append(coroutine.cr_code.co_qualname)
                coroutine = coroutine.cr_await
            found[" > ".join(names)] += 1
    return str(found)


def digest(town: Town) -> str:
    """A digest of everything that happened: equal for equal runs."""
    whole = hashlib.sha256()
    for line in town.faults.told:
        whole.update(line.encode())
    for _, change in town.changes:
        whole.update(change.now.json)
    for stream in subjects.STREAMS:
        for message in town.bus.kept(stream):
            whole.update(f"{message.subject} {message.headers.get(EVENT_ID)}".encode() + message.data)
    return whole.hexdigest()


def log(town: Town, lines: list[str]) -> Iterator[str]:
    """Faults, log lines and writes, in order of time."""
    entries = [*town.faults.told, *lines]
    for time, change in town.changes:
        if change.resource.plural in ("leases", "events"):
            continue
        metadata = change.now.body["metadata"]
        annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if "hami.io/" in key}
        status, spec = change.now.body.get("status") or {}, change.now.body.get("spec") or {}
        about = {
            "uid": metadata["uid"][:8],
            "rv": metadata["resourceVersion"],
            "node": spec.get("nodeName"),
            "phase": status.get("phase"),
            "deleted": metadata.get("deletionTimestamp"),
            **annotations,
        }
        told = " ".join(f"{key}={value}" for key, value in about.items() if value)
        entries.append(f"{time:9.3f} {change.type} {change.resource.plural}/{metadata['name']} {told}")
    return iter(sorted(entries, key=lambda line: float(line[:9])))


@contextmanager
def captured_logs(lines: list[str] | None, raised: list[str]) -> Iterator[None]:
    """Keep what the services log, or drop it before it costs anything; what they raised unexpectedly goes to ``raised``."""

    def keep(_logger: object, level: str, event: dict[str, Any]) -> Any:
        traceback = ""
        if event.get("exc_info"):
            traceback = str(structlog.processors.ExceptionRenderer()(None, "", dict(event)).get("exception", ""))
            raised.append(f"{event['event']}: {traceback.splitlines()[-1]}")
        if lines is not None:
            now = f"{asyncio.get_running_loop().time():9.3f}"
            about = " ".join(f"{key}={value}" for key, value in event.items() if key not in {"event", "exc_info"})
            lines.extend(f"{now}   {line}" for line in (f"{level}: {event['event']} {about}", *traceback.splitlines()))
        raise structlog.DropEvent

    before = structlog.get_config()
    level = logging.ERROR if lines is None else logging.DEBUG
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collected between runs: in the middle it would close generators at moments that differ from process to process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

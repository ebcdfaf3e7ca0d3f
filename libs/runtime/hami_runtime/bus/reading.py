"""What the bus keeps, read for people who ask: the newest message of each subject, and the log of allocations from a place on.

Whoever reads acknowledges nothing and leaves nothing behind. One home for the command line, which reads the bus itself where it can reach it, and
for the registry, which reads it for who cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

from hami_protocol import subjects
from hami_protocol.envelope import Message
from hami_protocol.subjects import StreamSpec
from hami_runtime.bus.port import Bus, Delivery, StartAt

QUIET_SECONDS: Final = 1.5
"""A reader that is told nothing for so long has caught up."""


def log_subject(namespace: str = "", pod: str = "") -> str:
    """Where the log of one pod, of one namespace's pods, or of all is.

    Raises:
        ProtocolError: a name cannot be part of a subject.
    """
    if pod:
        return subjects.pod_allocations(namespace, pod)
    return subjects.namespace_allocations(namespace) if namespace else subjects.ALL_ALLOCATIONS


def verdict_subject(namespace: str = "", pod: str = "") -> str:
    """Where the scheduler's verdicts on one pod, on one namespace's pods, or on all are.

    Raises:
        ProtocolError: a name cannot be part of a subject.
    """
    if pod:
        return subjects.verdict(namespace, pod)
    return subjects.namespace_verdicts(namespace) if namespace else subjects.ALL_VERDICTS


async def newest(bus: Bus, stream: StreamSpec, subject: str) -> list[Message]:
    """The newest message of each subject that ``subject``, which may have wildcards, stands for.

    Raises:
        BusError: there is no connection, or the bus refuses.
    """
    last = await bus.last(stream, subject)
    if last is None or last.subject == subject:
        return [] if last is None else [last]
    found: dict[str, Message] = {}
    async with bus.consume(stream, subjects=(subject,), start=StartAt.LAST_PER_SUBJECT) as deliveries:
        while True:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    delivery = await anext(deliveries)
            except TimeoutError:
                break
            found[delivery.message.subject] = delivery.message
            if not delivery.pending:
                break
    return list(found.values())


async def log(
    bus: Bus, subject: str, *, since: datetime | None = None, start: StartAt | int = StartAt.ALL, follow: bool = False
) -> AsyncGenerator[Delivery, None]:
    """The log's messages on ``subject``, in order; it ends with what there is, or with ``follow`` never.

    Args:
        bus: where it is.
        subject: whose, as ``log_subject`` words it.
        since: only what was said at that time or later, by the clock of who said it.
        start: the first place in the log, as ``Bus.consume`` takes it.
        follow: go on with what comes.

    Raises:
        BusError: there is no connection to begin with, or the bus refuses.
    """
    oldest = "" if since is None else since.astimezone(UTC).isoformat()
    if not follow and await bus.last(subjects.ALLOCATIONS, subject) is None:
        return
    async with bus.consume(subjects.ALLOCATIONS, subjects=(subject,), start=start) as deliveries:
        while True:
            try:
                async with asyncio.timeout(None if follow else QUIET_SECONDS):
                    delivery = await anext(deliveries)
            except TimeoutError:
                return
            if delivery.message.headers.get("ce-time", "") >= oldest:
                yield delivery
            if not follow and not delivery.pending:
                return

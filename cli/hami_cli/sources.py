"""What the bus says, from either of two places: the bus itself, or the registry, which reads it for who has no way there.

Both give the same: messages as they are on the bus. ``reading`` is what reads them, here or in the registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec import Struct

from hami_cli.ask import OPEN, Line
from hami_cli.exits import CommandError
from hami_protocol import cloud_events, subjects
from hami_protocol.envelope import Message
from hami_protocol.inventory import Inventory
from hami_runtime.bus import reading
from hami_runtime.bus.port import Bus, BusError

ANSWER_SECONDS = 5.0
AGAIN_SECONDS = 1.0


class Logged(Struct, frozen=True, kw_only=True):
    """One message of the log of allocations."""

    sequence: int
    message: Message


class Source(Protocol):
    """Where it is read. What goes wrong is a ``BusError`` or a ``CommandError``."""

    @property
    def name(self) -> str:
        """What it is and where, for people."""
        ...

    async def inventory(self) -> Inventory:
        """All nodes with their devices, and whether they are alive."""
        ...

    async def devices(self) -> list[Message]:
        """What each agent last reported."""
        ...

    async def usage(self) -> list[Message]:
        """What each agent last measured."""
        ...

    async def verdicts(self, namespace: str = "", pod: str = "") -> list[Message]:
        """The scheduler's last word on one pod, on those of a namespace, or on all."""
        ...

    async def streams(self) -> dict[str, bool]:
        """Which streams there are."""
        ...

    def log(
        self, namespace: str = "", pod: str = "", *, since: datetime | None = None, follow: bool = False
    ) -> AsyncGenerator[Logged, None]:
        """The log of allocations of one pod, of a namespace's, or of all; with ``follow``, what comes too."""
        ...


class BusSource:
    """The bus itself."""

    def __init__(self, bus: Bus, url: str) -> None:
        self.name = f"the bus at {url}"
        self.bus = bus

    async def inventory(self) -> Inventory:
        """As the registry's leader answers on the bus."""
        return _inventory(await self.bus.request(subjects.ASK_INVENTORY, b"", timeout_seconds=ANSWER_SECONDS))

    async def devices(self) -> list[Message]:
        """What each agent last reported."""
        return await reading.newest(self.bus, subjects.DEVICES, subjects.ALL_DEVICES)

    async def usage(self) -> list[Message]:
        """What each agent last measured."""
        return await reading.newest(self.bus, subjects.USAGE, subjects.ALL_USAGE)

    async def verdicts(self, namespace: str = "", pod: str = "") -> list[Message]:
        """The scheduler's last words."""
        return await reading.newest(self.bus, subjects.VERDICTS, reading.verdict_subject(namespace, pod))

    async def streams(self) -> dict[str, bool]:
        """Which streams there are."""
        return {stream.name: await self.bus.has(stream) for stream in subjects.STREAMS}

    async def log(
        self, namespace: str = "", pod: str = "", *, since: datetime | None = None, follow: bool = False
    ) -> AsyncGenerator[Logged, None]:
        """The log of allocations."""
        async with aclosing(reading.log(self.bus, reading.log_subject(namespace, pod), since=since, follow=follow)) as deliveries:
            async for delivery in deliveries:
                yield Logged(sequence=delivery.sequence, message=delivery.message)


class RegistrySource:
    """The registry's ``/v1``."""

    def __init__(self, line: Line, url: str) -> None:
        self.name = f"the registry at {url}"
        self._line = line

    async def inventory(self) -> Inventory:
        """As the replica knows it that answers."""
        return _inventory(await self._line.get("/v1/inventory"))

    async def devices(self) -> list[Message]:
        """What each agent last reported."""
        return await self._newest("devices")

    async def usage(self) -> list[Message]:
        """What each agent last measured."""
        return await self._newest("usage")

    async def verdicts(self, namespace: str = "", pod: str = "") -> list[Message]:
        """The scheduler's last words."""
        return await self._newest("verdicts", namespace=namespace, pod=pod)

    async def streams(self) -> dict[str, bool]:
        """Which streams there are."""
        try:
            return msgspec.json.decode(await self._line.get("/v1/streams"), type=dict[str, bool])
        except msgspec.DecodeError as exc:
            raise CommandError(f"{self.name}: {exc}") from exc

    async def log(
        self, namespace: str = "", pod: str = "", *, since: datetime | None = None, follow: bool = False
    ) -> AsyncGenerator[Logged, None]:
        """The log of allocations; who follows and is cut off comes back and goes on where he was."""
        asked = {"namespace": namespace, "pod": pod, "since": since.isoformat() if since else "", "follow": "true" if follow else ""}
        after, opened, ended, cut_off = "", False, False, ""
        while True:
            cut_off = "it has ended too early"
            try:
                async with aclosing(self._line.listen("/v1/events", after=after, **asked)) as told:
                    async for event in told:
                        if event.name == "end":
                            ended = True  # and the body is too: a connection that is given back whole can be closed in order
                        elif event.name == "failed":
                            cut_off = event.data.decode(errors="replace")
                        elif event.name == OPEN:
                            opened = True
                        else:
                            after = event.place
                            yield Logged(sequence=int(after), message=cloud_events.decode(event.data))
            except ConnectionError as exc:
                cut_off = str(exc)
            if ended:
                return
            if not follow or not opened:
                raise CommandError(f"{self.name}: the log: {cut_off}")
            await asyncio.sleep(AGAIN_SECONDS)

    async def _newest(self, what: str, **query: str) -> list[Message]:
        return list(cloud_events.decode_batch(await self._line.get(f"/v1/{what}", **query)))


def _inventory(content: bytes) -> Inventory:
    try:
        return msgspec.json.decode(content, type=Inventory)
    except msgspec.DecodeError as exc:
        raise BusError(f"what the registry answers cannot be read: {exc}") from exc

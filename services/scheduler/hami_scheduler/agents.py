"""Asks a node's agent over the bus, before a pod is bound there, whether it serves pods. ``presence`` decides what follows from the answer.

NATS says at once where nobody subscribes to a subject, so that an agent whose connection has ended is known to be gone in one round trip. Without
a connection of our own nobody is asked; and right after one was made, silence says nothing: agents may still be connecting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from hami_protocol import subjects
from hami_protocol.agent_answer import decode
from hami_protocol.errors import ProtocolError
from hami_runtime.bus.port import Bus, BusError, NoReply
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.presence import Change, Key, Presence

log = structlog.get_logger()

ASK_SECONDS = 2.0
"""An agent that does not answer in that time serves nobody."""
CONNECTING_SECONDS = 10.0
"""Longer than an agent waits between two attempts to connect."""
LOOK_SECONDS = 1.0
_AT_ONCE = 64


class Agents:
    """The agents of all nodes, as they answer."""

    def __init__(
        self, bus: Bus, clock: Clock, presence: Presence, *, changed: Callable[[Change], None], telemetry: Telemetry = OFF
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._presence = presence
        self._changed = changed
        self._isolation = Isolation("agents", clock, telemetry)
        self._asked: dict[Key, asyncio.Task[None]] = {}
        """Questions under way: binds to one node share them."""
        self._connection: tuple[float | None, float] = (None, 0.0)
        """When the connection to the bus was made, and when that was seen."""

    async def obstacle(self, node: str, vendors: Iterable[str]) -> str:
        """Why no pod that holds devices of ``vendors`` may be bound to ``node`` now; empty where it may."""
        wanted = tuple(vendors)
        await asyncio.gather(*(self._ask(key) for key in self._presence.answering(node, wanted)))
        reasons = (self._presence.reason(node, vendor) for vendor in wanted)
        return next((f"node {node} takes no pods now: {reason}" for reason in reasons if reason), "")

    async def run(self, stop: asyncio.Event) -> None:
        """Let holds end by time, and ask agents that did not answer again, until ``stop``."""
        while not await sleep_until(stop, LOOK_SECONDS):
            with self._isolation.item("holds"):
                self._connected_seconds(self._bus.connected_since)
                for change in self._presence.look(connected=self._bus.connected, now=self._clock.monotonic()):
                    self._changed(change)
            await asyncio.gather(*(self._ask(key) for key in self._presence.away[:_AT_ONCE]))

    async def _ask(self, key: Key) -> None:
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._look_at(key))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        await asyncio.shield(task)

    async def _look_at(self, key: Key) -> None:
        with self._isolation.item(f"agent {key.device_type} of node {key.node}"):
            await self._question(key)

    async def _question(self, key: Key) -> None:
        since = self._bus.connected_since
        if since is None:
            return
        try:
            answer = decode(await self._bus.request(subjects.ask_agent(key.node, key.device_type), b"", timeout_seconds=ASK_SECONDS))
        except NoReply as exc:
            if self._bus.connected_since != since or self._connected_seconds(since) < CONNECTING_SECONDS:
                return
            change = self._presence.unanswered(key, str(exc))
        except ProtocolError as exc:
            change = self._presence.answered(key, f"its answer on the bus cannot be read: {exc}")
        except BusError as exc:
            log.warning("agent not asked", node=key.node, device_type=key.device_type, error=str(exc))
            return
        else:
            change = self._presence.answered(key, answer.not_serving)
        if change is not None:
            self._changed(change)

    def _connected_seconds(self, since: float | None) -> float:
        """For how long the connection that was made at ``since`` has been seen here."""
        now = self._clock.monotonic()
        if self._connection[0] != since:
            self._connection = (since, now)
        return now - self._connection[1]

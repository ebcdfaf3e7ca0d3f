"""When this agent acts: takes over from the agent that acts on the node already, and hands over to the one that comes.

An agent that comes registers with kubelet first, so that kubelet always has one whose stream is open; kubelet's calls wait there until it acts. The
one that acted finishes the calls that it has, writes its journal, gives up the seat, and only keeps its stream open until it is stopped.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami_node_agent.agent import NodeAgent
from hami_node_agent.kubelet import KubeletConnection
from hami_node_agent.seat import Seat
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, serve
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
REGISTER_SECONDS: Final = 10.0
"""How long kubelet may take to watch an agent that comes, before that takes the seat all the same."""
POLL_SECONDS: Final = 0.05


class SuccessorLost(Exception):  # noqa: N818 - reads as the condition it names
    """The agent that took over is gone: this one must start anew."""


class Handover:
    """The course of one agent's life."""

    def __init__(
        self, agent: NodeAgent, connection: KubeletConnection, seat: Seat, clock: Clock, *, grace_seconds: float, telemetry: Telemetry = OFF
    ) -> None:
        self._agent = agent
        self._connection = connection
        self._seat = seat
        self._grace_seconds = grace_seconds
        self._handed_over = False
        self._isolation = Isolation("handover", clock, telemetry)
        agent.stand_by()

    def not_ready(self) -> str | None:
        """Why the agent cannot do its job now; None where it can.

        An agent whose reports are not taken answers kubelet, and yet is not ready: a rollout that would replace every agent stops there.
        """
        if self._handed_over:
            return "a newer agent acts on this node"
        if not self._agent.acting.is_set():
            return "another agent acts on this node"
        unwatched = None if self._connection.registered else "kubelet does not watch our devices"
        return self._agent.not_ready() or unwatched or self._agent.registration.lacking()

    async def run(self, stop: asyncio.Event) -> None:
        """Act as soon as nobody else does, until stopped or until another agent comes.

        Raises:
            SuccessorLost: it came, and is gone.
            OSError: the seat cannot be taken.
        """
        with self._isolation.item("first scan"):
            await run_until(stop, self._agent.devices.scan())
        if self._seat.taken():
            await run_until(stop, self._registered())
        if stop.is_set() or not await self._seat.take(stop):
            return
        try:
            await self._act(stop)
        finally:
            self._seat.release()
        if not stop.is_set() and await self._seat.deserted(stop):
            raise SuccessorLost("the agent that took over is gone")

    async def leave(self) -> None:
        """At a signal: let the scheduler know, and serve the pods that are bound, where it is this agent that acts."""
        if self._agent.acting.is_set():
            await self._agent.leave()

    async def _act(self, stop: asyncio.Event) -> None:
        self._agent.take_over()
        log.info("this agent acts")
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            acting = group.create_task(serve(*self._agent.loops, grace_seconds=self._grace_seconds, stop=over))
            if await self._seat.wanted(stop):
                self._handed_over = True
                log.info("another agent takes over")
                await self._agent.hand_over()
            over.set()
            await acting

    async def _registered(self) -> None:
        """Return once kubelet watches this agent, or has taken too long."""
        for _ in range(round(REGISTER_SECONDS / POLL_SECONDS)):
            if self._connection.registered:
                return
            await asyncio.sleep(POLL_SECONDS)
        log.warning("kubelet does not watch this agent, which takes over all the same")

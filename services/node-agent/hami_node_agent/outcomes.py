"""Outcomes go out behind the grants that they answer, so that the log tells things in the order in which they happened.

Only an outage can turn them round: scheduler and agent both have something to say when the bus is back. So for a while after every connection a
pod's outcome waits until its grant has been seen; later nothing waits, since the grant may be older than the log, or another scheduler's.
"""

from __future__ import annotations

from typing import Final

from hami_node_agent.grants_view import GrantsView
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed
from hami_runtime.bus import Bus, BusUnavailable
from hami_runtime.clock import Clock

GRACE_SECONDS: Final = 5.0
"""How long a scheduler may take to say what it could not say before."""


class BehindGrants:
    """The bus, for an agent's outbox."""

    def __init__(self, bus: Bus, view: GrantsView, clock: Clock) -> None:
        self._bus = bus
        self._view = view
        self._clock = clock
        self._grace_until: float | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._bus.connected

    async def wait_connected(self) -> None:
        """Return once there is a connection."""
        await self._bus.wait_connected()

    async def publish(self, message: Message, *, timeout_seconds: float = 5.0) -> int:
        """Keep ``message``, an outcome behind its grant where that is still to come."""
        if not self._bus.connected:
            self._grace_until = None
            raise BusUnavailable("not connected")
        if self._grace_until is None:
            self._grace_until = self._clock.monotonic() + GRACE_SECONDS
        await self._behind_grant(message, self._grace_until - self._clock.monotonic())
        try:
            return await self._bus.publish(message, timeout_seconds=timeout_seconds)
        except BusUnavailable:
            self._grace_until = None
            raise

    async def _behind_grant(self, message: Message, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            event = open_message(message)
        except EventError:
            return  # the bus, or whoever reads it, will say so
        if isinstance(event, ContainerServed | AllocationSucceeded | AllocationFailed):
            uid = event.pod.uid
            await self._view.changed.until(lambda: self._view.known(uid) or None, seconds=seconds)

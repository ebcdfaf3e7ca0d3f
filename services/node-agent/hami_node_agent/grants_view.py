"""What the scheduler granted on this node, from the bus. Only the scheduler's credentials can publish there: this is what annotations are held to.

Kept: the newest grant of each pod that has not been released. What is missing is asked for by subject before anything is refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import structlog

from hami_node_agent.bell import Bell
from hami_protocol import subjects
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.envelope import open_message
from hami_protocol.errors import EventError
from hami_protocol.events import AssignmentLapsed, PodAllocating, PodReleased, ShareResized
from hami_runtime.bus import Bus, BusError, Delivery
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
REMEMBERED_PODS: Final = 10_000
"""The last of whom the log has told; far more than a node has at a time."""


class GrantsView:
    """Grants on one node."""

    def __init__(self, bus: Bus, clock: Clock, *, node: str, telemetry: Telemetry = OFF) -> None:
        self._bus = bus
        self._isolation = Isolation("grants", clock, telemetry)
        self._node = node
        self._grants: dict[str, tuple[VendorAssignment, ...]] = {}
        self.resizes: dict[str, ShareResized] = {}
        """By UID, the newest wish for other sizes; a grant only once the agent has carried it out (``settle``)."""
        self._told: OrderedDict[str, None] = OrderedDict()
        self.changed = Bell()
        self.undecodable = 0
        """Messages on our subjects that nobody could read."""

    @property
    def connected(self) -> bool:
        """Whether the bus can be asked."""
        return self._bus.connected

    def get(self, uid: str, vendor: str) -> VendorAssignment | None:
        """What the pod was granted of one vendor."""
        return next((one for one in self._grants.get(uid, ()) if one.vendor == vendor), None)

    def told(self, uid: str) -> bool:
        """Whether the log has the pod's grant, or already its release, for as long as anything is to be answered to that."""
        return uid in self._told

    @property
    def uids(self) -> frozenset[str]:
        """Pods with a grant, gone ones too until they are forgotten."""
        return frozenset(self._grants)

    async def follow(self, stop: asyncio.Event) -> None:
        """Read the node's grants from the start of the log, and on."""
        async with self._bus.consume(subjects.ALLOCATIONS, subjects=[subjects.node_grants(self._node)]) as deliveries:
            async for delivery in until(stop, deliveries):
                with self._isolation.item(f"message {delivery.message.subject}"):
                    await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        try:
            event = open_message(delivery.message)
        except EventError as exc:
            self.undecodable += 1
            log.error("message cannot be read", subject=delivery.message.subject, reason=str(exc))
            await delivery.term(str(exc))
            return
        self._apply(event)
        await delivery.ack()

    async def ask(self, pod: PodRef) -> bool:
        """Look the pod's grant up by subject; False where the bus cannot be asked."""
        try:
            message = await self._bus.last(subjects.ALLOCATIONS, subjects.grant(self._node, pod.namespace, pod.name))
            if message is not None:
                event = open_message(message)
                if isinstance(event, PodAllocating) and event.pod.uid == pod.uid:
                    self._apply(event)
        except BusError:
            return False
        except EventError as exc:
            log.error("grant cannot be read", pod=str(pod), reason=str(exc))
        return True

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        self._grants.pop(uid, None)
        self.resizes.pop(uid, None)

    def settle(self, resize: ShareResized) -> None:
        """The pod holds the new sizes."""
        self._grants[resize.pod.uid] = resize.assignments

    def _apply(self, event: object) -> None:
        match event:
            case PodAllocating():
                self._grants[event.pod.uid] = event.assignments
                self._tell(event.pod.uid)
            case ShareResized():
                self.resizes[event.pod.uid] = event
                self._tell(event.pod.uid)
            case PodReleased():
                self.forget(event.pod.uid)
                self._tell(event.pod.uid)
            case AssignmentLapsed():
                self.forget(event.pod.uid)
            case _:
                return
        self.changed.ring()

    def _tell(self, uid: str) -> None:
        self._told[uid] = None
        self._told.move_to_end(uid)
        if len(self._told) > REMEMBERED_PODS:
            self._told.popitem(last=False)

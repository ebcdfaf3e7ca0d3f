"""What the scheduler granted on this node, from the bus. Only the scheduler's credentials can publish there: this is what annotations are held to.

Kept: the newest grant of each pod that has not been released. An agent makes no consumer on the bus: it receives what is kept from now on, and
looks up the last event of each pod that it knows, by subject: at every connection, once a minute, and before anything is refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog

from hami_node_agent.bell import Bell
from hami_protocol import subjects
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.envelope import open_message
from hami_protocol.errors import EventError
from hami_protocol.events import AssignmentLapsed, PodAllocating, PodReleased, ShareResized
from hami_runtime.bus import Bus, BusError, BusUnavailable, LiveMessage
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
REMEMBERED_PODS: Final = 10_000
"""The last of whom the log has told; far more than a node has at a time."""
REFRESH_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
_AT_ONCE: Final = 16


class GrantsView:
    """Grants on one node."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        *,
        node: str,
        pods: Callable[[], Iterable[PodRef]],
        pods_known: Callable[[], Awaitable[object]],
        telemetry: Telemetry = OFF,
    ) -> None:
        """``pods``: those of the node whose grants matter; ``pods_known`` returns once they are known."""
        self._bus = bus
        self._isolation = Isolation("grants", clock, telemetry)
        self._node = node
        self._pods = pods
        self._pods_known = pods_known
        self._missed = asyncio.Event()
        self._grants: dict[str, tuple[VendorAssignment, ...]] = {}
        self.resizes: dict[str, ShareResized] = {}
        """By UID, the newest wish for other sizes; a grant only once the agent has carried it out (``settle``)."""
        self._resized: dict[str, int] = {}
        """By UID, the generation of the last resize that was taken."""
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

    def all_of(self, uid: str) -> tuple[VendorAssignment, ...]:
        """What the pod was granted of every vendor; empty where that is not known."""
        return self._grants.get(uid, ())

    def told(self, uid: str) -> bool:
        """Whether the log has the pod's grant, or already its release, for as long as anything is to be answered to that.

        A grant that is published while no stream can keep it counts, but the log does not have it.
        """
        return uid in self._told

    @property
    def uids(self) -> frozenset[str]:
        """Pods with a grant, gone ones too until they are forgotten."""
        return frozenset(self._grants)

    async def follow(self, stop: asyncio.Event) -> None:
        """Take the node's grants as they are published, and look up what may have been missed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_until(stop, self._take_live()))
            group.create_task(run_until(stop, self._refresh_for_ever()))

    async def _take_live(self) -> None:
        async with self._bus.live(subjects.ALLOCATIONS, subjects.node_grants(self._node)) as messages:
            async for published in messages:
                if published is None:
                    self._missed.set()
                    continue
                with self._isolation.item(f"message {published.message.subject}"):
                    self._take(published)

    def _take(self, published: LiveMessage) -> None:
        message = published.message
        try:
            event = open_message(message)
        except EventError as exc:
            self.undecodable += 1
            log.error("message cannot be read", subject=message.subject, reason=str(exc))
        else:
            self._apply(event, in_log=published.kept)

    async def _refresh_for_ever(self) -> None:
        await self._pods_known()
        while True:
            self._missed.clear()
            answered = True
            with self._isolation.item("grants of this node"):
                answered = await self._refresh()
            if not answered:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._missed.wait()

    async def _refresh(self) -> bool:
        """Look up the grants of all pods; False where the bus could not be asked about one."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def ask(pod: PodRef) -> bool:
            async with at_once:
                return await self.ask(pod)

        return all(await asyncio.gather(*map(ask, self._pods())))

    async def ask(self, pod: PodRef) -> bool:
        """Look up the last event on the pod's grant subject; False where the bus cannot be asked."""
        try:
            message = await self._bus.last(subjects.ALLOCATIONS, subjects.grant(self._node, pod.namespace, pod.name))
            event = open_message(message) if message is not None else None
            if isinstance(event, PodAllocating | ShareResized | PodReleased) and event.pod.uid == pod.uid:
                self._looked_up(event)
        except BusUnavailable:
            return False
        except BusError as exc:
            log.error("the bus refuses a look-up", pod=str(pod), reason=str(exc))
        except EventError as exc:
            log.error("grant cannot be read", pod=str(pod), reason=str(exc))
        return True

    def _looked_up(self, event: PodAllocating | ShareResized | PodReleased) -> None:
        """Take what is new in ``event``: it may be old news, or a moment late."""
        uid = event.pod.uid
        match event:
            case ShareResized() if event.generation > self._resized.get(uid, 0):
                self._grants.setdefault(uid, event.assignments)  # only what was granted is resized
                self._apply(event, in_log=True)
            case PodAllocating() if uid not in self._resized and uid not in self._grants:
                self._apply(event, in_log=True)
            case PodReleased() if not self.told(uid) or uid in self._grants:
                self._apply(event, in_log=True)
            case _ if not self.told(uid):  # it came before the log had it
                self._tell(uid)
                self.changed.ring()

    def forget(self, uid: str) -> None:
        """The pod has ended."""
        self._grants.pop(uid, None)
        self.resizes.pop(uid, None)
        self._resized.pop(uid, None)

    def settle(self, resize: ShareResized) -> None:
        """The pod holds the new sizes."""
        self._grants[resize.pod.uid] = resize.assignments

    def _apply(self, event: object, *, in_log: bool) -> None:
        match event:
            case PodAllocating():
                self._grants[event.pod.uid] = event.assignments
            case ShareResized():
                self.resizes[event.pod.uid] = event
                self._resized[event.pod.uid] = event.generation
            case PodReleased() | AssignmentLapsed():
                self.forget(event.pod.uid)
            case _:
                return
        if in_log and not isinstance(event, AssignmentLapsed):
            self._tell(event.pod.uid)
        self.changed.ring()

    def _tell(self, uid: str) -> None:
        self._told[uid] = None
        self._told.move_to_end(uid)
        if len(self._told) > REMEMBERED_PODS:
            self._told.popitem(last=False)

"""Reports the node's devices on the bus: at once when they change, and every 30 s. The registry writes them to the node.

The generation rises whenever what is reported changes, and is kept on disk. At start it goes above everything that anybody may have seen of
this node: the journal, the bus, the node's annotation. Nothing is queued: while the bus is away only the newest state is worth saying.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import msgspec
import structlog

from hami_devices.vendor import Vendor
from hami_node_agent.journal import Journal
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_protocol import keys, subjects
from hami_protocol.devices import AllocationMode, RegisterFormat
from hami_protocol.envelope import open_message, seal
from hami_protocol.errors import EventError
from hami_protocol.events import DevicesReported
from hami_runtime.bus import Bus, BusError
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, sleep_until

log = structlog.get_logger()
PERIOD_SECONDS = 30.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
MAX_GENERATION = 2**53


class Registration:
    """One node's reports of one vendor."""

    def __init__(
        self,
        *,
        bus: Bus,
        clock: Clock,
        journal: Journal,
        devices: NodeDevices,
        pods: NodePods,
        node: str,
        vendor: Vendor,
        mode: AllocationMode,
        register_format: RegisterFormat,
        shim_version: Callable[[], str],
        boot: str,
        isolation: Isolation,
    ) -> None:
        self._isolation = isolation
        self._bus = bus
        self._clock = clock
        self._journal = journal
        self._devices = devices
        self._pods = pods
        self._node = node
        self._vendor = vendor
        self._mode = mode
        self._format = register_format
        self._shim_version = shim_version
        self._boot = boot
        self._seen_generation = 0
        self._sent = 0
        self.reported_at: float | None = None
        """When the bus last took a report, on the monotonic clock."""

    def report(self, generation: int) -> DevicesReported:
        """The node's devices as they are now."""
        devices = self._devices.registered
        uuids = {device.uuid for device in devices}
        scores = self._devices.inventory.pair_scores
        return DevicesReported(
            node=self._node,
            device_type=self._vendor.device_type,
            generation=generation,
            devices=devices,
            allocation_mode=self._mode,
            register_format=self._format,
            pair_scores=scores and {a: {b: score for b, score in to.items() if b in uuids} for a, to in scores.items() if a in uuids},
            shim_version=self._shim_version(),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Report until stopped."""
        await run_until(stop, self._devices.wait_scanned())
        with self._isolation.item("last report"):
            self._seen_generation = await self._newest_seen()
        first = True
        while not stop.is_set():
            rings = self._devices.changed.rings
            with self._isolation.item("report"):
                self._next_generation(first=first)
                first = False
                await self._publish_for_sure(stop)
            if (pause_seconds := self._isolation.pause_seconds("report")) > 0:
                await sleep_until(stop, min(pause_seconds, PERIOD_SECONDS))
            elif rings == self._devices.changed.rings:
                await self._devices.changed.pause(stop, PERIOD_SECONDS)

    def _next_generation(self, *, first: bool) -> None:
        content = hashlib.sha256(msgspec.json.encode(self.report(0))).hexdigest()
        generation = self._journal.generation
        if first:
            generation = max(generation, self._seen_generation) + 1
        elif content != self._journal.reported:
            generation += 1
        if (generation, content) != (self._journal.generation, self._journal.reported):
            self._journal.keep_generation(generation, content)

    async def _newest_seen(self) -> int:
        """The newest generation of this node that somebody else may have seen, as far as it can be asked."""
        seen = 0
        if self._bus.connected:
            try:
                message = await self._bus.last(subjects.DEVICES, subjects.devices(self._node, self._vendor.device_type))
                event = open_message(message) if message else None
                seen = event.generation if isinstance(event, DevicesReported) else 0
            except (BusError, EventError) as exc:
                log.warning("last report cannot be read", reason=str(exc))
        if (node := self._pods.node) is not None:
            text = node.metadata.annotations.get(keys.generation(self._vendor.device_type), "")
            if text.isascii() and text.isdigit() and len(text) < len(str(MAX_GENERATION)):
                seen = max(seen, int(text))
        return seen if seen < MAX_GENERATION else 0

    async def _publish_for_sure(self, stop: asyncio.Event) -> None:
        """Publish what is true now; while it does not work, what is true then."""
        attempt = 0
        while not stop.is_set():
            self._next_generation(first=False)
            event = self.report(self._journal.generation)
            self._sent += 1
            message = seal(
                event,
                event_id=f"{self._node}/{self._vendor.device_type}/{self._boot}/{self._sent}",
                source=f"/hami/node-agent/{self._node}",
                time=f"{self._clock.utc():%Y-%m-%dT%H:%M:%S.%fZ}",
            )
            try:
                await self._bus.publish(message)
            except BusError as exc:  # a refusal too: at first start the stream may not be made yet
                if not attempt:
                    log.warning("report not published, trying until it is", reason=str(exc))
                await sleep_until(stop, RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            self.reported_at = self._clock.monotonic()
            return

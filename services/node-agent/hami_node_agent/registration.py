"""Reports the node's devices on the bus, and whether pods are served: at once when either changes, and every 30 s. Answers the scheduler.

The registry writes the devices to the node.

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
from hami_node_agent.bell import Bell, pause
from hami_node_agent.journal import Journal
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_node_agent.serving import Rejections, Serving
from hami_protocol import keys, subjects
from hami_protocol.agent_answer import AgentAnswer
from hami_protocol.devices import AllocationMode, RegisterFormat
from hami_protocol.envelope import open_message, seal
from hami_protocol.errors import EventError
from hami_protocol.events import DevicesReported
from hami_protocol.kubernetes import Pod
from hami_runtime.bus import Bus, BusError
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, sleep_until

log = structlog.get_logger()
PERIOD_SECONDS = 30.0
SILENT_SECONDS = 2 * PERIOD_SECONDS
"""As long as the registry waits for a report before it calls a node unavailable."""
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
        serving: Serving,
        rejected: Callable[[Pod], None],
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
        self._serving = serving
        self._rejections = Rejections(pods, vendor, clock, rejected=rejected)
        self._boot = boot
        self._seen_generation = 0
        self._sent = 0
        self.reported_at: float | None = None
        """When the bus last took a report, on the monotonic clock."""

    def lacking(self) -> str | None:
        """Why this node is, or will soon be, unavailable to the scheduler; None where reports are taken."""
        if self.reported_at is None:
            return "the bus has taken no report of this agent yet"
        silent_seconds = self._clock.monotonic() - self.reported_at
        return f"the bus has taken no report for {silent_seconds:.0f} s" if silent_seconds > SILENT_SECONDS else None

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
            not_serving=self._serving.not_serving,
            answers=True,
        )

    async def answer(self, stop: asyncio.Event) -> None:
        """Answer the scheduler whether pods are served, until stopped."""

        async def answer(_question: bytes) -> bytes:
            return msgspec.json.encode(AgentAnswer(not_serving=self._serving.not_serving))

        async with self._bus.answer(subjects.ask_agent(self._node, self._vendor.device_type), answer):
            await stop.wait()

    async def announce(self) -> None:
        """Publish what is true now, once, where there is a bus."""
        try:
            await self._publish()
        except BusError as exc:
            log.warning("report not published", reason=str(exc))

    async def run(self, stop: asyncio.Event) -> None:
        """Report until stopped."""
        await run_until(stop, self._devices.wait_scanned())
        with self._isolation.item("last report"):
            self._seen_generation = await self._newest_seen()
        first = True
        bells = (self._devices.changed, self._serving.changed, self._rejections.changed)
        while not stop.is_set():
            rings = [bell.rings for bell in bells[:2]]
            with self._isolation.item("report"):
                self._next_generation(first=first)
                first = False
                await self._publish_for_sure(stop)
            if (pause_seconds := self._isolation.pause_seconds("report")) > 0:
                await sleep_until(stop, min(pause_seconds, PERIOD_SECONDS))
            elif rings == [bell.rings for bell in bells[:2]]:
                await self._until_due(stop, bells)

    async def _until_due(self, stop: asyncio.Event, bells: tuple[Bell, ...]) -> None:
        """Return when the next report is due."""
        period_ends = self._clock.monotonic() + PERIOD_SECONDS
        while not stop.is_set():
            due = min(period_ends, self._rejections.due_at or period_ends)
            seconds = due - self._clock.monotonic()
            if seconds <= 0:
                return
            seen = [bell.rings for bell in bells[:2]]
            await pause(stop, seconds, bells)
            if seen != [bell.rings for bell in bells[:2]]:
                return

    def _next_generation(self, *, first: bool) -> None:
        content = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(self.report(0), not_serving=""))).hexdigest()
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
            try:
                await self._publish()
            except BusError as exc:  # a refusal too: at first start the stream may not be made yet
                if not attempt:
                    log.warning("report not published, trying until it is", reason=str(exc))
                await sleep_until(stop, RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            return

    async def _publish(self) -> None:
        """Publish what is true now.

        Raises:
            BusError: the bus did not take it.
        """
        self._sent += 1
        message = seal(
            self.report(self._journal.generation),
            event_id=f"{self._node}/{self._vendor.device_type}/{self._boot}/{self._sent}",
            source=subjects.agent_source(self._node),
            time=f"{self._clock.utc():%Y-%m-%dT%H:%M:%S.%fZ}",
        )
        self._rejections.reported()
        await self._bus.publish(message)
        self.reported_at = self._clock.monotonic()

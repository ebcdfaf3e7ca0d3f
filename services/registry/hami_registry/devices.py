"""Carries out what ``rules`` decides about nodes: follows the bus and the nodes, patches, publishes, purges. Decides nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Final

import structlog

from hami_devices.registrations import device_record
from hami_devices.vendor import Vendor
from hami_protocol import envelope, quantities, subjects
from hami_protocol.errors import EventError, QuantityError
from hami_protocol.events import DevicesReported, LivenessChanged
from hami_protocol.kubernetes import Node
from hami_registry import records
from hami_registry.commands import Command, Outcome, PatchNode, Publish, PurgeNode, RaiseAlarm
from hami_registry.rules import NodeSeen, Rules
from hami_runtime.bursts import Bursts
from hami_runtime.bus.port import Bus, BusError, Delivery, StartAt
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import NODES, Cluster, ClusterError, NotFound
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import sleep_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
BUS: Final = "bus"
API_SERVER: Final = "api-server"
OURSELVES: Final = "ourselves"
_LOOK_SECONDS: Final = 1.0
_ASLEEP_SECONDS: Final = 10.0
"""A look that comes so late means that this process stood still: it heard nobody, whoever spoke."""
_AT_ONCE: Final = 64


class DeviceMirror:
    """Nodes, as one replica sees them; the leader writes.

    Attributes:
        rules: what is known.
        caught_up: set once everything that the bus had at the start was read.
    """

    def __init__(
        self,
        bus: Bus,
        cluster: Cluster,
        clock: Clock,
        vendors: tuple[Vendor, ...],
        nodes: Informer[Node],
        events: EventRecorder,
        *,
        source: str,
        legacy_handshake: bool = False,
        placing: Bursts | None = None,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Mirror between ``bus`` and the nodes that ``nodes`` follows.

        Args:
            bus: where agents report.
            cluster: where nodes are patched.
            clock: ours.
            vendors: whose devices there may be.
            nodes: follows all nodes; run by the caller.
            events: for what operators must know.
            source: who speaks, in events: ``/hami/registry/<identity>``.
            legacy_handshake: also write the bare handshake annotation.
            placing: how fast pods are granted.
            telemetry: where writes are counted.
        """
        self.rules = Rules(vendors, legacy_handshake=legacy_handshake, placing=placing)
        self.caught_up = asyncio.Event()
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("nodes", clock, telemetry)
        self._vendors = vendors
        self._nodes = nodes
        self._events = events
        self._source = source
        self._wake = asyncio.Event()
        self._leading = False
        self._newest = 0
        self._seen: dict[str, tuple[object, ...]] = {}
        self._writes = telemetry.counter("hami_registry_writes", "what was written for nodes, by kind and outcome")
        self._poison = telemetry.counter("hami_registry_unreadable_messages", "messages that were terminated, by stream")
        self._alarms = telemetry.counter("hami_registry_unreadable_records", "node annotations that could not be read")
        telemetry.gauge("hami_registry_nodes", "entries of nodes and device types, by state", self._states)
        nodes.subscribe(self._node_changed)

    def _states(self) -> Iterable[tuple[float, dict[str, str | int | float | bool]]]:
        alive = [view.alive for view in self.rules.inventory(self._clock.monotonic(), self._clock.utc())]
        return [(alive.count(True), {"state": "alive"}), (alive.count(False), {"state": "unavailable"})]

    def lead(self, leading: bool) -> None:
        """This replica leads from now on, or does not any more."""
        self._leading = leading
        if leading:
            self.rules.take_over(self._clock.monotonic())
        else:
            self.rules.step_down()
        self._wake.set()

    # What happens

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        now = self._clock.monotonic()
        if new is None:
            if old is not None:
                self._seen.pop(old.metadata.name, None)
                self.rules.node_gone(old.metadata.name, now)
                self._wake.set()
            return
        annotations = records.concerning(new.metadata.annotations)
        allocatable = frozenset(v.device_type for v in self._vendors if _any_allocatable(new, v.count_resource))
        name = new.metadata.name
        own = {
            v.device_type: said for v in self._vendors if v.register_key not in annotations and (said := device_record(v, new)) is not None
        }
        seen = (annotations, allocatable, {device_type: said.text for device_type, said in own.items()})
        if self._seen.get(name) == seen:
            return  # nothing of ours changed, as in most of the status updates that kubelets send
        self._seen[name] = seen
        self.rules.node_seen(
            NodeSeen(name=name, version=new.metadata.resource_version, annotations=annotations, allocatable=allocatable, own=own), now
        )
        self._wake.set()

    async def follow_bus(self, stop: asyncio.Event) -> None:
        """Read reports and verdicts until ``stop``."""
        wanted = (subjects.ALL_DEVICES, subjects.ALL_LIVENESS)
        async with self._bus.consume(
            subjects.DEVICES, subjects=wanted, start=StartAt.LAST_PER_SUBJECT, on_loss=self._bus_lost
        ) as deliveries:
            async for delivery in until(stop, deliveries):
                await self._take_in(delivery)
                if delivery.pending == 0:
                    self.caught_up.set()
                    self._wake.set()

    def _bus_lost(self) -> None:
        log.warning("the bus has lost what it had", stream=subjects.DEVICES.name)
        self._newest = 0
        self.rules.bus_restarted(self._clock.monotonic())
        self._wake.set()

    async def _take_in(self, delivery: Delivery) -> None:
        subject = delivery.message.subject
        try:
            event = envelope.open_message(delivery.message)
        except EventError as exc:
            self._poison.add(1, {"stream": subjects.DEVICES.name})
            log.error("message terminated", subject=subject, sequence=delivery.sequence, reason=str(exc))
            await delivery.term(str(exc))
            return
        with self._isolation.item(f"message {subject}"):
            now = self._clock.monotonic()
            if delivery.sequence < self._newest:
                self._bus_lost()
            self._newest = delivery.sequence
            match event:
                case DevicesReported():
                    self.rules.reported(event, f"{delivery.sequence}/{envelope.event_id(delivery.message)}", now)
                case LivenessChanged():
                    self.rules.verdict_seen(event, delivery.sequence, now)
                case _:
                    log.warning("message does not belong here", subject=subject, type=type(event).__name__)
        self._wake.set()
        await delivery.ack()

    async def watch_sources(self, stop: asyncio.Event) -> None:
        """Tell the rules when we are cut off from those whose silence they judge, until ``stop``."""
        last = self._clock.monotonic()
        while not await sleep_until(stop, _LOOK_SECONDS):
            asleep_seconds, last = self._clock.monotonic() - last, self._clock.monotonic()
            with self._isolation.item("sources"):
                self._look_at_sources(asleep_seconds)

    def _look_at_sources(self, asleep_seconds: float) -> None:
        now = self._clock.monotonic()
        if self._nodes.synced.is_set():
            self.rules.nodes_synced()
        if asleep_seconds > _ASLEEP_SECONDS:
            log.warning("this process stood still, everyone has a fresh start", seconds=round(asleep_seconds, 1))
            self.rules.source_lost(OURSELVES)
            self.rules.source_back(OURSELVES, now)
        for source, connected in ((BUS, self._bus.connected), (API_SERVER, self._nodes.connected)):
            if connected:
                self.rules.source_back(source, now)
            else:
                self.rules.source_lost(source)
        self._wake.set()

    # What is done

    async def carry_out(self, stop: asyncio.Event) -> None:
        """Do what is due, while this replica leads, until ``stop``."""
        at_once = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                self._wake.clear()
                if self._leading:
                    with self._isolation.item("what is due"):
                        for command in self.rules.due(self._clock.monotonic(), self._clock.utc()):
                            await at_once.acquire()
                            group.create_task(self._settle(command, at_once.release))
                if (pause_seconds := self._isolation.pause_seconds("what is due")) > 0:
                    await sleep_until(stop, pause_seconds)
                else:
                    await self._sleep(stop)

    async def _sleep(self, stop: asyncio.Event) -> None:
        """Until the next thing is due, something happened, or ``stop``."""
        due = self.rules.next_due(self._clock.monotonic()) if self._leading else None
        waiting = [asyncio.ensure_future(event.wait()) for event in (stop, self._wake)]
        try:
            timeout = None if due is None else max(0.0, due - self._clock.monotonic())
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def _settle(self, command: Command, done: Callable[[], None]) -> None:
        sequence = 0
        try:
            sequence = await self._do(command)
            outcome = Outcome.DONE
        except NotFound:
            outcome = Outcome.GONE
        except (ClusterError, BusError) as exc:
            outcome = Outcome.RETRY
            log.warning("could not be written, trying again", command=type(command).__name__, error=str(exc))
        except Exception as exc:  # noqa: BLE001 - written again, later than its node's other commands
            outcome = Outcome.RETRY
            self._isolation.failed(_item(command), exc)
        finally:
            done()
        self._writes.add(1, {"kind": type(command).__name__, "outcome": outcome.value})
        with self._isolation.item(_item(command)):
            self.rules.settle(command, outcome, self._clock.monotonic(), sequence=sequence)
        if outcome is not Outcome.DONE:
            self._wake.set()

    async def _do(self, command: Command) -> int:
        match command:
            case PatchNode(key=key, annotations=annotations):
                await self._cluster.patch(NODES, key.node, {"metadata": {"annotations": annotations}})
                if command.word is None:
                    log.info("node record written", node=key.node, device_type=key.device_type, keys=sorted(annotations))
            case Publish(key=key, event=event, event_id=event_id):
                time = self._clock.utc().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
                sequence = await self._bus.publish(envelope.seal(event, event_id=event_id, source=self._source, time=time))
                if isinstance(event, LivenessChanged):
                    log.info("verdict published", node=key.node, device_type=key.device_type, alive=event.alive, reason=event.reason)
                return sequence
            case PurgeNode(node=node, device_types=device_types):
                for device_type in device_types:
                    for subject in (subjects.devices(node, device_type), subjects.liveness(node, device_type)):
                        await self._bus.purge(subjects.DEVICES, subject)
                log.info("node purged", node=node, device_types=device_types)
            case RaiseAlarm(node=node, reason=reason, message=message):
                self._alarms.add(1)
                self._events.record(node, "Warning", reason, message)
                log.error("node record cannot be read", node=node, reason=message)
        return 0


def _item(command: Command) -> str:
    node = command.key.node if isinstance(command, (PatchNode, Publish)) else command.node
    return f"{type(command).__name__} of node {node}"


def _any_allocatable(node: Node, resource: str) -> bool:
    value = (node.status.allocatable or {}).get(resource)
    if value is None:
        return False
    try:
        return quantities.exact(value) > 0
    except QuantityError:
        return False

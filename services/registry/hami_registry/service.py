"""The registry's core, built from ports: its parts, and what runs on every replica and what on the leader. No HTTP here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby

import msgspec
import structlog

from hami_devices.catalog import Catalog
from hami_protocol import subjects
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_registry.devices import DeviceMirror
from hami_registry.outcomes import OutcomeFollower
from hami_registry.reports import ReportGate
from hami_registry.web.feed import Feed
from hami_runtime.bursts import Bursts
from hami_runtime.bus.port import Bus, BusError
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import NODES, Cluster
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.informer import Informer
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.lifecycle import run_until, sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
LEASE_NAME = "hami-registry"
BURST_PER_SECOND = 10
"""More grants than that are a burst: what nobody waits for gives way (docs/decisions/0012)."""
_RETRY_SECONDS = 1.0
_SILENCE_SECONDS = 2.0


class Registry:
    """One replica."""

    def __init__(
        self,
        bus: Bus,
        cluster: Cluster,
        clock: Clock,
        catalog: Catalog,
        *,
        identity: str,
        namespace: str,
        legacy_handshake: bool = False,
        outcomes_anew: bool = False,
        telemetry: Telemetry = OFF,
    ) -> None:
        """Make a replica called ``identity``, whose Lease is in ``namespace``."""
        self._bus = bus
        self._clock = clock
        self._vendors = catalog.vendors
        self._telemetry = telemetry
        self._nodes = Informer(cluster, NODES, clock=clock, telemetry=telemetry)
        self._events = EventRecorder(cluster, clock, "hami-registry", telemetry=telemetry)
        placing = Bursts(BURST_PER_SECOND)
        self.mirror = DeviceMirror(
            bus,
            cluster,
            clock,
            catalog.vendors,
            self._nodes,
            self._events,
            source=f"/hami/registry/{identity}",
            legacy_handshake=legacy_handshake,
            placing=placing,
            telemetry=telemetry,
        )
        self._outcomes = OutcomeFollower(
            bus, cluster, clock, catalog, node_of=self._nodes.get, placing=placing, anew=outcomes_anew, telemetry=telemetry
        )
        self._reports = ReportGate(bus, cluster, clock, telemetry=telemetry)
        self.elector = LeaderElector(cluster, clock, name=LEASE_NAME, namespace=namespace, identity=identity, telemetry=telemetry)
        self.elector.on_change(self._lead)
        self._leads = asyncio.Event()
        self._follows = asyncio.Event()
        self._follows.set()

    @property
    def lacking(self) -> str | None:
        """What keeps this replica from its work; None where nothing does. A follower that keeps warm lacks nothing."""
        if not self._nodes.synced.is_set():
            return "nodes not seen yet"
        return None if self._bus.connected else "not connected to the bus"

    def inventory(self) -> Inventory:
        """All nodes with their devices, as this replica knows them."""
        utc = self._clock.utc()
        views = self.mirror.rules.inventory(self._clock.monotonic(), utc)
        return Inventory(
            time=utc.isoformat(timespec="seconds").replace("+00:00", "Z"),
            nodes=tuple(
                InventoryNode(
                    name=name,
                    device_groups=tuple(
                        DeviceGroup(
                            device_type=view.device_type,
                            alive=view.alive,
                            since=view.since.isoformat(timespec="seconds").replace("+00:00", "Z"),
                            devices=view.devices,
                            generation=view.generation,
                            third_party=view.third_party,
                        )
                        for view in group
                    ),
                )
                for name, group in groupby(views, key=lambda view: view.node)
            ),
        )

    def page(self) -> Feed:
        """What the web page shows, to be run beside this replica; another one each time."""
        return Feed(
            self._bus,
            self._clock,
            self._vendors,
            devices=lambda: self.mirror.rules.inventory(self._clock.monotonic(), self._clock.utc()),
            find_node=self._nodes.get,
            telemetry=self._telemetry,
        )

    def _lead(self, leading: bool) -> None:
        self.mirror.lead(leading)
        begins, ends = (self._leads, self._follows) if leading else (self._follows, self._leads)
        ends.clear()
        begins.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop``."""
        async with asyncio.TaskGroup() as group:
            for loop in (
                self._make_streams,
                self._nodes.run,
                self._events.run,
                self.mirror.follow_bus,
                self.mirror.watch_sources,
                self.mirror.carry_out,
                self._stand,
                self._lead_on,
            ):
                group.create_task(loop(stop))

    async def _make_streams(self, stop: asyncio.Event) -> None:
        """The streams that we read must be there, whoever starts first."""
        while not stop.is_set():
            try:
                await self._bus.ensure_streams((subjects.DEVICES, subjects.ALLOCATIONS, subjects.REPORTS))
                return
            except BusError as exc:  # not there, or a cluster that is not whole yet
                log.warning("streams cannot be made yet", error=str(exc))
                await sleep_until(stop, _RETRY_SECONDS)

    async def _stand(self, stop: asyncio.Event) -> None:
        """Stand for election once it is known what there is: a leader must not take for deleted, or for alive, what it has not read yet."""
        await run_until(stop, self._know())
        if not stop.is_set():
            await self.elector.run(stop)

    async def _know(self) -> None:
        await self._nodes.synced.wait()
        await self._bus.wait_connected()
        with suppress(TimeoutError):  # a bus that has nothing for us says nothing
            async with asyncio.timeout(_SILENCE_SECONDS):
                await self.mirror.caught_up.wait()

    async def _lead_on(self, stop: asyncio.Event) -> None:
        """What only the leader does, whenever this replica is it."""
        while not stop.is_set():
            await run_until(stop, _wait(self._leads))
            if stop.is_set():
                return
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outcomes.follow(over))
                group.create_task(self._reports.run(over))
                group.create_task(self._answer(over))
                await run_until(stop, _wait(self._follows))
                over.set()

    async def _answer(self, stop: asyncio.Event) -> None:
        async def inventory(_question: bytes) -> bytes:
            return msgspec.json.encode(self.inventory())

        async with self._bus.answer(subjects.ASK_INVENTORY, inventory):
            await stop.wait()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()

"""The node's devices as they are now: what the driver says, what went wrong, how they are shared. One writer; a bell rings at every change.

A hardware that cannot be asked at all keeps its last inventory with every card out: running pods stay charged, none is placed.
"""

from __future__ import annotations

import asyncio

import structlog

from hami_node_agent import discovery
from hami_node_agent.bell import Bell
from hami_node_agent.discovery import AdvertisedDevice
from hami_node_agent.hardware import DeviceFault, Hardware, HardwareError, HardwareEvent, Inventory
from hami_node_agent.health import HealthBook, HealthRules, Incident
from hami_node_agent.journal import Journal
from hami_node_agent.sharing import Sharing
from hami_node_agent.xid_catalog import RECOVERY_ACTION_CHANGED
from hami_protocol.devices import RegisteredDevice
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()


class NodeDevices:
    """Devices, health and sharing of this node."""

    def __init__(
        self,
        hardware: Hardware,
        clock: Clock,
        journal: Journal,
        *,
        sharing: Sharing,
        rules: HealthRules,
        probe_seconds: float = 10.0,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._isolation = Isolation("devices", clock, telemetry)
        self._hardware = hardware
        self._clock = clock
        self._journal = journal
        self._sharing = sharing
        self._rules = rules
        self._book = HealthBook(rules, journal.health)
        self._probe_seconds = probe_seconds
        self._inventory = Inventory(devices=())
        self._lost = ""
        self.changed = Bell()
        self.scanned = asyncio.Event()
        """Set once the hardware has been asked."""

    @property
    def sharing(self) -> Sharing:
        """How the cards are shared now."""
        return self._hardware.sharing(self._sharing)

    @property
    def configured(self) -> Sharing:
        """How the cards are to be shared, by the configuration."""
        return self._sharing

    def configure(self, sharing: Sharing) -> None:
        """Share the cards so from now on; what pods hold stays as it is."""
        self._sharing = sharing
        self.changed.ring()

    @property
    def inventory(self) -> Inventory:
        """As of the last scan that succeeded."""
        return self._inventory

    @property
    def lost(self) -> str:
        """Why the hardware cannot be asked; empty where it can."""
        return self._lost

    @property
    def unhealthy(self) -> dict[str, str]:
        """Why each card that is out is out, by UUID."""
        if self._lost:
            return {device.uuid: self._lost for device in self._inventory.devices}
        faults = {device.uuid: device.fault for device in self._inventory.devices if device.fault}
        known = {device.uuid for device in self._inventory.devices}
        return {uuid: reason for uuid, reason in (self._book.out | faults).items() if uuid in known}

    @property
    def registered(self) -> tuple[RegisteredDevice, ...]:
        """What the scheduler is told."""
        return discovery.registered(self._inventory, self.sharing, self.unhealthy)

    @property
    def advertised(self) -> tuple[AdvertisedDevice, ...]:
        """What kubelet is told."""
        return discovery.advertised(self._inventory, self.sharing, self.unhealthy)

    @property
    def whole_mib(self) -> dict[str, int]:
        """Memory of each card by UUID, where a grant of it all is the whole card."""
        if self.sharing.memory_scaling != 1:
            return {}
        return {device.uuid: device.memory_mib for device in self.registered}

    def recall(self) -> None:
        """Take which cards are out from the journal, as another agent may have left it."""
        self._book = HealthBook(self._rules, self._journal.health)
        self.changed.ring()

    async def wait_scanned(self) -> None:
        """Return once the hardware has been asked."""
        await self.scanned.wait()

    def history(self, uuid: str = "") -> tuple[Incident, ...]:
        """What happened to the cards, oldest first."""
        return self._book.history(uuid)

    async def scan(self) -> None:
        """Ask the hardware for everything."""
        before = (self._inventory, self.unhealthy, self.sharing)
        try:
            self._inventory, self._lost = await self._hardware.scan(), ""
        except HardwareError as exc:
            self._lost = str(exc)
            log.error("hardware cannot be asked", reason=self._lost)
        self.scanned.set()
        if (self._inventory, self.unhealthy, self.sharing) != before:
            log.info("devices changed", devices=len(self._inventory.devices), unhealthy=self.unhealthy)
            for device in discovery.uncut(self._inventory, self.sharing):
                log.error("card left out: mode mig, and it offers no MIG profile that is allowed", device=device.uuid, type=device.type)
            self.changed.ring()

    async def watch(self, stop: asyncio.Event) -> None:
        """Follow what the hardware reports."""
        with self._isolation.item("scan"):
            await self.scan()
        while not stop.is_set():
            with self._isolation.item("hardware events"):
                async for event in until(stop, self._hardware.events()):
                    with self._isolation.item(f"hardware event {event}"):
                        await self._take(event)
            await sleep_until(stop, max(1.0, self._isolation.pause_seconds("hardware events")))

    async def _take(self, event: HardwareEvent) -> None:
        match event:
            case DeviceFault(uuid=uuid, xid=xid) if uuid:
                await self._fault(uuid, xid)
            case _:
                await self.scan()

    async def rescan(self, stop: asyncio.Event, *, seconds: float = 30.0) -> None:
        """Scan again now and then: not everything is reported."""
        while not await sleep_until(stop, seconds):
            with self._isolation.item("scan"):
                await self.scan()

    async def recover(self, stop: asyncio.Event) -> None:
        """Probe the cards that are out."""
        while not await sleep_until(stop, self._probe_seconds):
            for uuid in self._book.out:
                with self._isolation.item(f"device {uuid}"):
                    failure = await self._hardware.probe(uuid)
                    if self._book.probed(uuid, failure, now=self._clock.monotonic(), time=self._time()):
                        log.info("device is back", device=uuid)
                        self._kept()

    async def _fault(self, uuid: str, xid: int) -> None:
        failure = await self._hardware.probe(uuid) if xid == RECOVERY_ACTION_CHANGED else ""
        taken_out = self._book.fault(uuid, xid, now=self._clock.monotonic(), time=self._time(), failure=failure)
        log.warning("device fault", device=uuid, xid=xid, taken_out=taken_out)
        self._kept(ring=taken_out)

    def _kept(self, *, ring: bool = True) -> None:
        if ring:
            self.changed.ring()
        self._journal.keep_health(self._book.record())  # last: a full disk does not keep a fault from the scheduler

    def _time(self) -> str:
        return f"{self._clock.utc():%Y-%m-%dT%H:%M:%SZ}"

"""The monitor: every few seconds reads what each container uses, says so, and gives each its turn on the cards. Decides nothing itself.

``region`` reads, ``usage`` compares with the driver's own count, ``feedback`` decides about priority. What follows is written into the grant's live
words; use goes to the bus (``HAMI_USAGE``), and ``metrics`` shows it. An error costs one container one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from hami_node_agent import fairness, feedback, grant_file, usage
from hami_node_agent import region as regions
from hami_node_agent.feedback import Contender
from hami_node_agent.grant_file import Grant, GrantError, Live
from hami_node_agent.hardware import DeviceReading, Hardware, HardwareError
from hami_node_agent.host_processes import HostProcesses
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.needs import HostPaths, folder_name
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_node_agent.region import Owner, Region, RegionError
from hami_node_agent.usage import Counted, Measured
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.errors import ProtocolError
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, pod_ref
from hami_runtime.bus import Bus, BusError
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.events import EventRecorder
from hami_runtime.lifecycle import run_until, sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
LOOK_SECONDS: Final = 5.0
SAY_AGAIN_SECONDS: Final = 60.0
"""Unchanged use is said again so often."""
_MIB: Final = 2**20
_WHOLE_PERCENT: Final = 100


@dataclass(kw_only=True, slots=True)
class Watched:
    """One container and what the last looks at it found."""

    pod: PodRef
    container: str
    container_id: str
    readings: list[Measured] = field(default_factory=list)
    launches: dict[Owner, int] = field(default_factory=dict)
    active: bool = False
    active_at: float | None = None
    busy_ns: dict[str, int] = field(default_factory=dict)
    sm_percent: dict[str, int] = field(default_factory=dict)
    charged_percent: dict[str, float] = field(default_factory=dict)
    """By card, of its time since the last look."""
    charge_permille: dict[str, int] = field(default_factory=dict)
    """By card, how much of a kernel's least time is charged beside others (``fairness``)."""
    shared: bool = False
    """That holds since the last look."""
    looked_at: float = 0.0
    unenforced: str = ""
    exceeded: str = ""

    @property
    def last(self) -> Measured:
        """The newest look."""
        return self.readings[-1]


class Monitor:
    """Looks at one node's containers."""

    def __init__(
        self,
        *,
        node: str,
        pods: NodePods,
        devices: NodeDevices,
        hardware: Hardware,
        processes: HostProcesses,
        files: HostFiles,
        paths: HostPaths,
        bus: Bus,
        clock: Clock,
        recorder: EventRecorder,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._node = node
        self._pods = pods
        self._devices = devices
        self._hardware = hardware
        self._processes = processes
        self._files = files
        self._paths = paths
        self._bus = bus
        self._clock = clock
        self._recorder = recorder
        self._isolation = Isolation("monitor", clock, telemetry)
        self._watched: dict[str, Watched] = {}
        self._unreadable: dict[str, Watched] = {}
        """Containers whose grant cannot be read."""
        self._cards: dict[str, DeviceReading] = {}
        self._said: tuple[NodeUsage, float] | None = None
        self._looks = 0
        self._measure(telemetry)

    @property
    def containers(self) -> Mapping[str, Watched]:
        """What the last look found, by the name of a container's files."""
        return self._watched

    @property
    def cards(self) -> Mapping[str, DeviceReading]:
        """How busy each card was at the last look."""
        return self._cards

    async def run(self, stop: asyncio.Event) -> None:
        """Look every few seconds."""
        await run_until(stop, self._pods.wait_synced())
        while not stop.is_set():
            with self._isolation.item("look"):
                await self.look()
            await sleep_until(stop, LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and do what follows."""
        self._cards = await self._read_cards()
        counted = self._counted()
        found: list[tuple[str, Watched, Grant]] = []
        unreadable: dict[str, Watched] = {}
        for pod in self._pods.live.values():
            with self._isolation.item(f"pod {pod_ref(pod)}"):
                for name, watched in self._containers_of(pod):
                    grant = self._grant(name)
                    if isinstance(grant, Grant):
                        found.append((name, watched, grant))
                    elif grant is not None:
                        unreadable[name] = watched
                        self._flag(watched, f"its grant cannot be read: {grant}")
        gone = self._gone((name, grant) for name, _, grant in found)
        looked_at: dict[str, Watched] = {}
        for name, watched, grant in found:
            with self._isolation.item(f"container {watched.container} of pod {watched.pod}"):
                self._look_at(watched, self._measured(name, grant, gone, counted.get((watched.pod.uid, watched.container_id), {})))
                looked_at[name] = watched
        self._watched, self._unreadable = looked_at, unreadable
        self._take_turns()
        await self._say()

    def measured(self, uid: str, container: str) -> Measured | None:
        """The newest look at one container, taken now; None where it has no grant file."""
        name = folder_name(uid, container)
        watched, grant = self._watched.get(name), self._grant(name)
        if not isinstance(grant, Grant):
            return None
        counted = self._counted().get((uid, watched.container_id if watched else ""), {})
        return self._measured(name, grant, self._gone([(name, grant)]), counted)

    # Reading

    async def _read_cards(self) -> dict[str, DeviceReading]:
        found: dict[str, DeviceReading] = {}
        for device in self._devices.inventory.devices:
            try:
                reading = await self._hardware.reading(device.uuid)
            except HardwareError as exc:
                log.warning("card not read", device=device.uuid, reason=str(exc))
                continue
            if reading is not None:
                found[device.uuid] = reading
        return found

    def _counted(self) -> dict[tuple[str, str], dict[str, Counted]]:
        """What the driver counts, by pod and container id, then by card."""
        found: dict[tuple[str, str], dict[str, Counted]] = {}
        for uuid, reading in self._cards.items():
            for process in reading.processes:
                owner = self._processes.belongs_to(process.pid)
                if not owner[0]:
                    continue
                before = found.setdefault(owner, {}).get(uuid, Counted(used_bytes=0, processes=0, ran_percent=0))
                unknown = before.ran_percent is None or process.sm_percent is None
                found[owner][uuid] = Counted(
                    used_bytes=before.used_bytes + process.memory_mib * _MIB,
                    processes=before.processes + 1,
                    ran_percent=None if unknown else (before.ran_percent or 0) + (process.sm_percent or 0),
                )
        return found

    def _containers_of(self, pod: Pod) -> Iterator[tuple[str, Watched]]:
        ref = pod_ref(pod)
        statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
        ids = {status.name: status.container_id.rpartition("/")[2] for status in statuses}
        for placed in containers_in_order(pod):
            try:
                name = folder_name(ref.uid, placed.container.name)
            except ProtocolError:
                continue  # served nothing
            watched = (
                self._watched.get(name) or self._unreadable.get(name) or Watched(pod=ref, container=placed.container.name, container_id="")
            )
            watched.container_id = ids.get(placed.container.name, "")
            yield name, watched

    def _look_at(self, watched: Watched, measured: Measured) -> None:
        self._follow_activity(watched, measured, self._clock.monotonic())
        watched.readings = [*watched.readings, measured][-usage.OVERHEAD_READINGS :]
        self._flag(watched, usage.unenforced(measured))

    def _flag(self, watched: Watched, reason: str) -> None:
        """Note why the container is not held to its share, and report that it is not any more."""
        if reason and not watched.unenforced:
            log.warning("container is not held to its share", pod=str(watched.pod), container=watched.container, reason=reason)
            self._recorder.record(watched.pod, "Warning", "ShareUnenforced", f"container {watched.container}: {reason}")
        watched.unenforced = reason
        more = usage.exceeded(watched.readings)
        if more and not watched.exceeded:
            log.warning("share exceeded", pod=str(watched.pod), container=watched.container, reason=more)
            self._recorder.record(watched.pod, "Warning", "ShareExceeded", f"container {watched.container}: {more}")
        watched.exceeded = more

    def _grant(self, name: str) -> Grant | GrantError | None:
        """What the container is held to, or why that cannot be read; None where there is no grant file."""
        content = self._files.read(self._paths.grant(name))
        if content is None:
            return None
        try:
            return grant_file.decode(content, torn=True)  # mended by whoever changes it next
        except GrantError as exc:
            return exc

    def _gone(self, containers: Iterable[tuple[str, Grant]]) -> frozenset[Owner]:
        """Which processes that hold a slot have ended: asked once for all containers, since the answer is a walk through ``/proc``."""
        return self._processes.gone({owner for name, grant in containers for owner in regions.owners(self._region(name, grant) or b"")})

    def _region(self, name: str, grant: Grant) -> bytes | None:
        return self._files.peek(self._paths.region(name, grant.region_path), limit_bytes=regions.READ_BYTES)

    def _measured(self, name: str, grant: Grant, gone: frozenset[Owner], counted: dict[str, Counted]) -> Measured:
        data, damage = self._region(name, grant), ""
        region: Region | None = None
        try:
            region = regions.decode(data, gone=gone) if data is not None else None
        except RegionError as exc:
            damage = f"its region cannot be read: {exc}"
        return Measured(grant=grant, region=region, damage=damage, counted=counted)

    @staticmethod
    def _follow_activity(watched: Watched, measured: Measured, now: float) -> None:
        first, region = not watched.readings, measured.region or Region(devices=())
        watched.active = not first and any(count > watched.launches.get(owner, 0) for owner, count in region.launches.items())
        watched.launches = region.launches
        if watched.active:
            watched.active_at = now
        seconds = now - watched.looked_at
        granted = {device.uuid for device in measured.grant.devices}  # a region may name any others, and others at each look
        for device in region.devices:
            if device.uuid not in granted:
                continue
            before = watched.busy_ns.get(device.uuid, device.busy_ns)
            share = (device.busy_ns - before) / (seconds * 1e9) if seconds > 0 and not first else 0.0
            charged = 100 * min(max(share, 0.0), 1.0)
            watched.charged_percent[device.uuid] = charged
            watched.sm_percent[device.uuid] = round(charged) if device.sm_percent is None else device.sm_percent
            watched.busy_ns[device.uuid] = device.busy_ns
        watched.looked_at = now

    # What follows

    def _take_turns(self) -> None:
        now = self._clock.monotonic()
        contenders = [
            Contender(
                name=name,
                priority=watched.last.grant.priority,
                devices=tuple(device.uuid for device in watched.last.grant.devices),
                active=watched.active,
            )
            for name, watched in self._watched.items()
        ]
        for name, turn in feedback.turns(contenders).items():
            watched = self._watched[name]
            shared = self._follow_charge(watched, turn.shared)
            live = Live(
                blocked_until_ns=feedback.lease_until_ns(turn.blocked, now_seconds=now),
                limited=turn.limited,
                overhead_bytes=usage.overhead_bytes(watched.readings),
                shared_until_ns=feedback.lease_until_ns(shared, now_seconds=now),
                charge_permille=tuple(
                    watched.charge_permille.get(device.uuid, fairness.UNCHANGED) for device in watched.last.grant.devices
                ),
            )
            with self._isolation.item(f"grant {name}"):
                self._write(self._paths.grant(name), live)

    @staticmethod
    def _follow_charge(watched: Watched, shared: bool) -> bool:
        """Compare what the driver counts with what was charged; whether the charge is to be corrected until the next look."""
        last, before = watched.last, watched.shared
        ran = {uuid: counted.ran_percent for uuid, counted in last.counted.items()}
        for device in last.grant.devices:
            percent = ran.get(device.uuid)
            if not before or percent is None or not 0 < device.sm_percent < _WHOLE_PERCENT:
                continue
            watched.charge_permille[device.uuid] = fairness.charge_permille(
                watched.charge_permille.get(device.uuid, fairness.UNCHANGED),
                ran_percent=percent,
                charged_percent=watched.charged_percent.get(device.uuid, 0.0),
                share_percent=device.sm_percent,
            )
        watched.shared = shared and bool(ran) and None not in ran.values()
        return watched.shared

    def _write(self, path: str, live: Live) -> None:
        content = self._files.read(path)
        if content is not None and (words := grant_file.live_words(content, live)):
            self._files.store(path, words)

    async def _say(self) -> None:
        readable = tuple(self._usage_of(self._watched[name]) for name in sorted(self._watched))
        unreadable = tuple(
            ContainerUsage(pod=watched.pod, container=watched.container, devices=(), enforced=False)
            for _, watched in sorted(self._unreadable.items())
        )
        event = NodeUsage(node=self._node, containers=(*readable, *unreadable))
        now = self._clock.monotonic()
        if self._said is not None and self._said[0] == event and now - self._said[1] < SAY_AGAIN_SECONDS:
            return
        self._looks += 1
        utc = self._clock.utc()
        message = seal(
            event,
            event_id=f"{self._node}/usage/{int(utc.timestamp() * 1000)}-{self._looks}",
            source=subjects.agent_source(self._node),
            time=utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        try:
            await self._bus.publish(message)
        except BusError:
            return  # the next look says it
        self._said = (event, now)

    @staticmethod
    def _usage_of(watched: Watched) -> ContainerUsage:
        measured = watched.last
        return ContainerUsage(
            pod=watched.pod,
            container=watched.container,
            devices=tuple(
                DeviceUsage(
                    uuid=device.uuid,
                    memory_used_mib=measured.used_mib(device),
                    memory_limit_mib=device.memory_limit_mib,
                    sm_percent=watched.sm_percent.get(device.uuid, 0),
                )
                for device in measured.grant.devices
            ),
            enforced=not watched.unenforced,
        )

    def _measure(self, telemetry: Telemetry) -> None:
        telemetry.gauge(
            "hami_agent_unenforced_containers",
            "containers that are not held to their share: processes without the shim, or an unreadable grant",
            lambda: sum(bool(watched.unenforced) for watched in self._watched.values()) + len(self._unreadable),
        )
        telemetry.gauge(
            "hami_agent_exceeded_containers",
            "containers of which the driver counts more memory than was granted",
            lambda: sum(bool(watched.exceeded) for watched in self._watched.values()),
        )
        telemetry.gauge(
            "hami_agent_unreadable_regions",
            "containers whose region cannot be read",
            lambda: sum(bool(watched.last.damage) for watched in self._watched.values()),
        )

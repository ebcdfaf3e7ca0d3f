"""The node-agent, put together from its ports: bus, cluster, clock, hardware, kubelet's records, the host's files. No gRPC, no HTTP.

The gRPC shell calls ``allocate``, ``pre_start`` and ``preferred``, and sends ``devices.advertised`` to kubelet; the simulation calls them too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from hami_devices.catalog import Catalog
from hami_node_agent.answers import Answer, PluginOptions
from hami_node_agent.cdi import DriverEdits
from hami_node_agent.cdi_mode import CdiMode
from hami_node_agent.cleanup import Cleanup
from hami_node_agent.envvar_mode import EnvvarMode
from hami_node_agent.granting import Granting, GrantPolicy
from hami_node_agent.grants_view import GrantsView
from hami_node_agent.hardware import Hardware
from hami_node_agent.health import HealthRules
from hami_node_agent.host_processes import HostProcesses, NoProcesses
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.journal import Journal
from hami_node_agent.kubelet_records import KubeletRecords
from hami_node_agent.metrics import UsageMetrics
from hami_node_agent.mig_hardware import MigHardware
from hami_node_agent.mig_instances import MigInstances
from hami_node_agent.monitor import Monitor
from hami_node_agent.needs import HostPaths, Shim
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods, annotated
from hami_node_agent.outcomes import patience_seconds
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_node_agent.region_size import RegionSize
from hami_node_agent.registration import Registration
from hami_node_agent.republishing import Republishing
from hami_node_agent.resize import Resizer
from hami_node_agent.serving import Serving, unadmitted
from hami_node_agent.sharing import Sharing
from hami_node_agent.starting import Starting
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode, PodRef, RegisterFormat, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_runtime.bus import Bus
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import Cluster
from hami_runtime.kube.events import EventRecorder
from hami_runtime.lifecycle import Loop, run_until, until
from hami_runtime.outbox import Outbox
from hami_runtime.telemetry import OFF, Attributes, Telemetry

log = structlog.get_logger()
OUTBOX_CAPACITY = 10_000
LEAVE_SECONDS = 10.0
"""The longest that pods that were bound before are waited for, when the agent is to stop."""
SETTLE_SECONDS = 0.5
"""How long a Binding that was sent before the scheduler had the word may take to be seen here."""
HAND_OVER_SECONDS = 9.0
"""Longer than a call waits for its pod and its grant."""
LOOK_SECONDS = 0.1
SYNC_SECONDS = 10.0
"""How long to wait for the API server before devices are reported all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentOptions:
    """What one agent is told."""

    node: str
    mode: AllocationMode
    device_type: str = "nvidia"
    register_format: RegisterFormat = RegisterFormat.TEXT
    sharing: Sharing = field(default_factory=Sharing)
    rules: HealthRules = field(default_factory=HealthRules)
    probe_seconds: float = 10.0
    policy: GrantPolicy = field(default_factory=GrantPolicy)
    paths: HostPaths = field(default_factory=HostPaths)
    cdi_folder: str = "/var/run/cdi"
    shim_required: bool = False
    """Not ready, and serves nobody, without the shim."""
    monitor: bool = True
    """Read what containers use, say it, and give priority its turn."""
    legacy_metrics: bool = False
    """Show what containers use under the earlier names of the reference too."""
    pass_device_nodes: bool = False
    """``envvar``: also name the cards' device nodes in the answer, for runtimes that do not read ``NVIDIA_VISIBLE_DEVICES``."""


class NodeAgent:
    """One node's agent."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        bus: Bus,
        cluster: Cluster,
        clock: Clock,
        hardware: Hardware,
        kubelet: KubeletRecords,
        files: HostFiles,
        catalog: Catalog,
        driver: Callable[[], DriverEdits] = DriverEdits,
        shim: Callable[[], Shim] = Shim,
        processes: HostProcesses | None = None,
        new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
        mig: MigHardware | None = None,
        telemetry: Telemetry = OFF,
    ) -> None:
        vendor = catalog.by_device_type(options.device_type)
        if vendor is None:
            raise ValueError(f"device type {options.device_type!r} is not known")
        self.options = options
        self.vendor = vendor
        self.journal = Journal(files, options.paths.journal)
        self.devices = NodeDevices(
            hardware,
            clock,
            self.journal,
            sharing=options.sharing,
            rules=options.rules,
            probe_seconds=options.probe_seconds,
            telemetry=telemetry,
        )
        self.pods = NodePods(cluster, clock, node=options.node, telemetry=telemetry)
        self.view = GrantsView(
            bus, clock, node=options.node, pods=self._pods_with_grants, pods_known=self.pods.wait_synced, telemetry=telemetry
        )
        self.outbox = Outbox(
            bus,
            clock,
            source=subjects.agent_source(options.node),
            capacity=OUTBOX_CAPACITY,
            key=self.journal.key,
            patience=lambda event: patience_seconds(
                event,
                told=self.view.told,
                lives=self.pods.lives,
                grants_expected=options.policy.require_event,
            ),
            telemetry=telemetry,
        )
        self.view.changed.subscribe(self.outbox.look_again)
        self.pods.changed.subscribe(self.outbox.look_again)
        self.recorder = EventRecorder(cluster, clock, "hami-node-agent", telemetry=telemetry)
        self._clock = clock
        self._shim = shim
        self.acting = asyncio.Event()
        """While it is not set, another agent acts on this node, and kubelet's calls wait."""
        self.acting.set()
        self._calls_under_way = 0
        self._telemetry = telemetry
        self._instances = MigInstances(mig, pods=self.pods, journal=self.journal, isolation=Isolation("mig instances", clock, telemetry))
        granting = Granting(
            node=options.node,
            vendor=vendor,
            catalog=catalog,
            view=self.view,
            devices=self.devices,
            files=files,
            journal=self.journal,
            outbox=self.outbox,
            recorder=self.recorder,
            paths=options.paths,
            shim=shim,
            policy=options.policy,
            instances=self._instances,
            telemetry=telemetry,
        )
        self._mode: CdiMode | EnvvarMode
        if options.mode is AllocationMode.CDI:
            self._mode = CdiMode(node=options.node, vendor=vendor, pods=self.pods, kubelet=kubelet, journal=self.journal, new_name=new_name)
        else:
            self._mode = EnvvarMode(granting, pods=self.pods, journal=self.journal, new_name=new_name, device_nodes=self._device_nodes)
        self._starting = Starting(
            granting,
            pods=self.pods,
            kubelet=kubelet,
            files=files,
            journal=self.journal,
            cdi_folder=options.cdi_folder,
            driver=driver,
            answers_complete=options.mode is AllocationMode.ENVVAR,
        )
        self._cleanup = Cleanup(
            node=options.node,
            vendor=vendor,
            clock=clock,
            pods=self.pods,
            kubelet=kubelet,
            files=files,
            journal=self.journal,
            outbox=self.outbox,
            view=self.view,
            paths=options.paths,
            cdi_folder=options.cdi_folder,
            forget=self._starting.ended,
            catch_up=lambda: granting.say_again(self.pods),
            telemetry=telemetry,
        )
        self.monitor = Monitor(
            node=options.node,
            pods=self.pods,
            devices=self.devices,
            hardware=hardware,
            processes=processes or NoProcesses(),
            files=files,
            paths=options.paths,
            bus=bus,
            clock=clock,
            recorder=self.recorder,
            telemetry=telemetry,
        )
        self._region_size = RegionSize(
            files=files, paths=options.paths, pods=self.pods, clock=clock, recorder=self.recorder, telemetry=telemetry
        )
        UsageMetrics(self.monitor, node=options.node, devices=self.devices, pods=self.pods, clock=clock).export(
            telemetry, legacy=options.legacy_metrics
        )
        self.resizer = Resizer(
            granting,
            view=self.view,
            pods=self.pods,
            monitor=self.monitor,
            devices=self.devices,
            journal=self.journal,
            outbox=self.outbox,
            isolation=Isolation("resize", clock, telemetry),
        )
        self.republishing = Republishing(
            granting,
            self.resizer,
            pods=self.pods,
            journal=self.journal,
            isolation=Isolation("republishing", clock, telemetry),
        )
        self._kubelet = kubelet
        self.serving = Serving(self.not_ready)
        self.registration = Registration(
            bus=bus,
            clock=clock,
            journal=self.journal,
            devices=self.devices,
            pods=self.pods,
            node=options.node,
            vendor=vendor,
            mode=options.mode,
            register_format=options.register_format,
            shim_version=lambda: shim().version,
            serving=self.serving,
            rejected=granting.rejected,
            boot=new_name(),
            isolation=Isolation("registration", clock, telemetry),
        )
        self._allocations = telemetry.counter("hami_agent_allocations", "Allocate and PreStartContainer calls, by outcome")
        self._seconds = telemetry.histogram("hami_agent_allocation_seconds", "How long Allocate and PreStartContainer took")
        telemetry.gauge("hami_agent_devices", "cards of this node, by health", self._device_counts)
        telemetry.gauge("hami_agent_undecodable_messages", "grants that could not be read", lambda: self.view.undecodable)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """What runs as long as the agent does."""
        return (
            self.pods.run_pods,
            self.pods.run_node,
            self.view.follow,
            self.outbox.run,
            self.recorder.run,
            self.devices.watch,
            self.devices.rescan,
            self.devices.recover,
            self.flag_running_pods,
            self.report_devices,
            self.registration.answer,
            self._cleanup.run,
            self.republishing.run,
            *((self.resizer.run, self._region_size.run) if self.vendor.shim else ()),
            *((self.monitor.run,) if self.vendor.shim and self.options.monitor else ()),
            self._instances.run,
        )

    @property
    def plugin_options(self) -> PluginOptions:
        """What kubelet may call."""
        return self._mode.options

    def not_ready(self) -> str | None:
        """Why the agent cannot do its job now; None where it can."""
        if not self.devices.scanned.is_set():
            return "the hardware has not been asked yet"
        if self.devices.lost:
            return f"the hardware cannot be asked: {self.devices.lost}"
        if not self.pods.synced:
            return "this node's pods have not been listed yet"
        if self._misses_shim():
            return f"the shim is not installed below {self.options.paths.vgpu}"
        return None

    def _misses_shim(self) -> bool:
        return self.options.shim_required and self.vendor.shim and not self._shim().host_path

    def stand_by(self) -> None:
        """Let kubelet's calls wait: another agent acts, or may."""
        self.acting.clear()

    def take_over(self) -> None:
        """Act from now on, and know what the agent before has done. Call it before the loops run."""
        self.journal.reload()
        self.devices.recall()
        self.acting.set()

    async def hand_over(self) -> None:
        """Take no further calls, and return when those under way are answered, or have taken too long."""
        self.acting.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                while self._calls_under_way:  # noqa: ASYNC110 - a number
                    await asyncio.sleep(LOOK_SECONDS)

    async def allocate(self, device_ids: Sequence[str]) -> Answer:
        """Kubelet's Allocate for one container.

        Raises:
            Refused: with the reason.
        """
        await self.acting.wait()
        with self._measured("allocate"):
            return await self._mode.allocate(device_ids)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Kubelet's PreStartContainer.

        Raises:
            Refused: the container must not start, with the reason.
        """
        await self.acting.wait()
        with self._measured("pre_start"):
            await self._starting.pre_start(device_ids)

    async def preferred(self, available: Sequence[str], required: Sequence[str], size: int) -> tuple[str, ...]:
        """Kubelet's GetPreferredAllocation; empty for no preference."""
        await self.acting.wait()
        return await self._mode.preferred(available, required, size)

    async def sweep(self) -> None:
        """Clean up now instead of at the next round; for tests and simulations."""
        await self._cleanup.sweep()

    async def report_devices(self, stop: asyncio.Event) -> None:
        """Report devices, once the node's object has said what was reported before, or does not answer."""
        await run_until(stop, self._synced_or_not())
        await self.registration.run(stop)

    async def _synced_or_not(self) -> None:
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                await self.pods.wait_synced()
        except TimeoutError:
            log.warning("devices are reported without having seen the node's object")

    async def leave(self) -> None:
        """Say on the bus that no more pods are served, then serve on until kubelet has admitted those that are bound. Bounded in time."""
        self.serving.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.registration.announce()
                await asyncio.sleep(SETTLE_SECONDS)
                while unadmitted(self.pods, self.vendor, self.options.node, self._kubelet.checkpoint()):  # noqa: ASYNC110 - a file
                    await asyncio.sleep(LOOK_SECONDS)

    async def flag_running_pods(self, stop: asyncio.Event) -> None:
        """Tell the pods of a card that goes out."""
        flagged: frozenset[str] = frozenset()
        isolation = Isolation("flag running pods", self._clock, self._telemetry)
        async for _ in until(stop, self.devices.changed.each()):
            sick = self.devices.unhealthy
            for device in sorted(sick.keys() - flagged):
                with isolation.item(f"device {device}"):
                    for pod in self._holders(device):
                        self.recorder.record(pod, "Warning", "DeviceUnhealthy", f"device {device} is out: {sick[device]}")
            flagged = frozenset(sick)

    def _holders(self, device: str) -> Iterator[PodRef]:
        for uid, pod in sorted(self.pods.live.items()):
            held = self.view.get(uid, self.vendor.name) or self._annotated(pod)
            if held and any(share.uuid == device for container in held.containers for share in container.shares):
                yield pod_ref(pod)

    def _annotated(self, pod: Pod) -> VendorAssignment | None:
        try:
            return annotated(pod, self.vendor)
        except RecordError:
            return None  # refused when it is asked for

    def _pods_with_grants(self) -> list[PodRef]:
        """Pods of this node that hold devices, or did when they were served."""
        keys_of = {key for key in (self.vendor.allocated_key, self.vendor.to_allocate_key) if key}
        live = [pod_ref(pod) for pod in self.pods.live.values() if keys_of & pod.metadata.annotations.keys()]
        known = {ref.uid for ref in live}
        return [*live, *(served.pod for uid, served in self.journal.pods.items() if uid not in known and not served.released)]

    def _device_nodes(self, uuids: Sequence[str]) -> tuple[str, ...]:
        if not self.options.pass_device_nodes:
            return ()
        paths = {device.uuid: device.paths for device in self.devices.inventory.devices}
        return tuple(path for uuid_ in uuids for path in paths.get(uuid_, ()))

    def _device_counts(self) -> list[tuple[float, Attributes]]:
        devices = self.devices.registered
        healthy = sum(device.healthy for device in devices)
        return [(healthy, {"healthy": "true"}), (len(devices) - healthy, {"healthy": "false"})]

    @contextmanager
    def _measured(self, call: str) -> Iterator[None]:
        started = self._clock.monotonic()
        outcome = "failed"
        self._calls_under_way += 1
        try:
            if self._misses_shim():
                raise Refused(Refusal(kind=RefusalKind.NOT_READY, reason=self.not_ready() or ""))
            with self._telemetry.span(call, node=self.options.node):
                yield
            outcome = "served"
        except Refused as refused:
            outcome = str(refused.refusal.kind)
            raise
        finally:
            self._calls_under_way -= 1
            self._allocations.add(1, {"call": call, "outcome": outcome})
            self._seconds.record(self._clock.monotonic() - started, {"call": call})

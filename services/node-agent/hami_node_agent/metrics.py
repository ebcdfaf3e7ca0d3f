"""What the node-agent shows of cards and containers: the gauges of the reference's monitor by name and label, their earlier names on request.

``zone`` is ``vGPU`` on all of them. The monitor's last look is shown; nothing is read when somebody scrapes. The earlier names are off unless asked
for: one of them has figures in its labels, so that each change of a container's use makes another series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hami_node_agent.hardware import DeviceReading, PhysicalDevice
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.node_pods import NodePods
from hami_node_agent.region import DeviceUse
from hami_node_agent.usage import Measured
from hami_protocol import keys, mig
from hami_protocol.devices import PodRef
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.mig import MigAllocation
from hami_protocol.pods import containers_in_order, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.telemetry import Telemetry

ZONE: Final = "vGPU"
CONTAINER: Final = ("node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
OLD_CONTAINER: Final = ("", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
CARD: Final = ("node", "device_index", "device_uuid", "device_type")
OLD_CARD: Final = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_MIB: Final = 2**20


class Seen(Protocol):
    """What the last look at one container found."""

    pod: PodRef
    container: str
    active_at: float | None
    """On the monotonic clock, when it was last seen to start kernels."""
    sm_percent: dict[str, int]
    """By card."""

    @property
    def last(self) -> Measured:
        """Its use."""
        ...


class Sight(Protocol):
    """The monitor, as far as it is shown."""

    @property
    def containers(self) -> Mapping[str, Seen]:
        """By the name of their files."""
        ...

    @property
    def cards(self) -> Mapping[str, DeviceReading]:
        """By UUID."""
        ...


Series = tuple[float, dict[str, str]]
ContainerValue = Callable[[Seen, int], float | None]
CardValue = Callable[[DeviceReading], float]


class UsageMetrics:
    """The gauges of one node."""

    def __init__(self, sight: Sight, *, node: str, devices: NodeDevices, pods: NodePods, clock: Clock) -> None:
        self._sight = sight
        self._node = node
        self._devices = devices
        self._pods = pods
        self._clock = clock

    def export(self, telemetry: Telemetry, *, legacy: bool) -> None:
        """Show them; with ``legacy`` under their earlier names too."""
        self._export_containers(telemetry)
        self._export_cards(telemetry)
        telemetry.gauge(
            "hami_mig_device_info", "1 for each MIG instance of a container", lambda: list(self.instances(CONTAINER, full=True))
        )
        if legacy:
            telemetry.registry.register(EarlierNames(self))

    def _export_containers(self, telemetry: Telemetry) -> None:
        def gauge(name: str, description: str, value: ContainerValue) -> None:
            telemetry.gauge(name, description, lambda: list(self.by_container(value, CONTAINER)))

        gauge("hami_vgpu_memory_used_bytes", "memory that a container uses of a device", _used)
        gauge("hami_container_device_memory_bytes", "memory that a container uses of a device", _used)
        gauge("hami_vgpu_memory_limit_bytes", "memory that it may use", _limit)
        gauge("hami_vgpu_memory_context_bytes", "of the used memory, contexts", lambda seen, place: _use(seen, place).context_bytes)
        gauge("hami_vgpu_memory_module_bytes", "of the used memory, modules", lambda seen, place: _use(seen, place).module_bytes)
        gauge("hami_vgpu_memory_buffer_bytes", "of the used memory, data", lambda seen, place: _use(seen, place).buffer_bytes)
        gauge("hami_container_device_utilization_ratio", "percent of a device's time that a container uses", _busy)
        gauge("hami_container_last_kernel_elapsed_seconds", "since a container was last seen to start kernels", self.since_kernel)

    def _export_cards(self, telemetry: Telemetry) -> None:
        def gauge(name: str, description: str, value: CardValue, labels: tuple[str, ...] = CARD) -> None:
            telemetry.gauge(name, description, lambda: list(self.by_card(value, labels)))

        gauge("hami_host_gpu_memory_used_bytes", "memory in use of a card", _card_memory)
        gauge("hami_host_gpu_utilization_ratio", "percent of a card's time in use", lambda reading: reading.sm_percent)
        gauge(
            "hami_host_gpu_memory_controller_utilization_ratio",
            "percent of the time in which a card's memory is read or written",
            lambda reading: reading.memory_percent,
            ("", *CARD[1:]),
        )

    # Of what the monitor saw

    def since_kernel(self, seen: Seen, _place: int) -> float | None:
        """Seconds since a container was last seen to start kernels; None where it never was."""
        return None if seen.active_at is None else max(self._clock.monotonic() - seen.active_at, 0.0)

    def by_container(
        self, value: ContainerValue, names: tuple[str, ...], *, more: Callable[[Seen, int], dict[str, str]] | None = None
    ) -> Iterator[Series]:
        """A value of each container and device, under labels with these names, and whatever ``more`` adds."""
        for seen in self._sight.containers.values():
            for place, device in enumerate(seen.last.grant.devices):
                if (found := value(seen, place)) is not None:
                    labels = _labels(names, self._node, seen.pod.namespace, seen.pod.name, seen.container, str(place), device.uuid)
                    yield found, labels if more is None else labels | more(seen, place)

    def by_card(self, value: CardValue, names: tuple[str, ...]) -> Iterator[Series]:
        """A value of each card that the driver answers for."""
        cards = self._sight.cards
        for device in self._devices.inventory.devices:
            if device.uuid in cards:
                yield value(cards[device.uuid]), _labels(names, self._node, *_of_card(device))

    # Of what pods hold

    def instances(self, names: tuple[str, ...], *, full: bool) -> Iterator[Series]:
        """1 for each MIG instance that a container holds and that has been made; ``full`` says all of its identity."""
        for pod in self._pods.live.values():
            containers = [placed.container.name for placed in containers_in_order(pod)]
            ref = pod_ref(pod)
            for each in _allocations(pod):
                if each.identity is None or each.container >= len(containers):
                    continue
                labels = _labels(names, self._node, ref.namespace, ref.name, containers[each.container], str(each.device), each.gpu)
                if full:
                    labels |= {
                        "mig_uuid": each.identity.uuid,
                        "profile": each.instance.profile,
                        "gpu_instance_id": str(each.identity.gpu_instance),
                        "compute_instance_id": str(each.identity.compute_instance),
                    }
                else:
                    labels["instanceid"] = str(each.identity.gpu_instance)
                yield 1.0, labels


class EarlierNames(Collector):
    """The reference's earlier names. OpenTelemetry would make them lower case."""

    def __init__(self, usage: UsageMetrics) -> None:
        self._usage = usage

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All of them."""
        yield from self._containers()
        card = ("zone", "nodeid", "deviceidx", "deviceuuid", "devicetype")
        yield _filled(
            GaugeMetricFamily("HostGPUMemoryUsage", "earlier name of `hami_host_gpu_memory_used_bytes`", labels=card),
            self._usage.by_card(_card_memory, OLD_CARD),
        )
        yield _filled(
            GaugeMetricFamily("HostCoreUtilization", "earlier name of `hami_host_gpu_utilization_ratio`", labels=card),
            self._usage.by_card(lambda reading: reading.sm_percent, OLD_CARD),
        )
        instance = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "instanceid")
        yield _filled(
            GaugeMetricFamily("MigInfo", "earlier name of `hami_mig_device_info`", labels=instance),
            self._usage.instances(OLD_CONTAINER, full=False),
        )

    def _containers(self) -> Iterator[GaugeMetricFamily]:
        labels = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
        shown = (
            (GaugeMetricFamily("vGPU_device_memory_usage_in_bytes", "earlier name of `hami_vgpu_memory_used_bytes`", labels=labels), _used),
            (
                GaugeMetricFamily("vGPU_device_memory_limit_in_bytes", "earlier name of `hami_vgpu_memory_limit_bytes`", labels=labels),
                _limit,
            ),
            (
                GaugeMetricFamily(
                    "Device_utilization_desc_of_container", "earlier name of `hami_container_device_utilization_ratio`", labels=labels
                ),
                _busy,
            ),
            (
                GaugeMetricFamily(
                    "Device_last_kernel_of_container", "earlier name of `hami_container_last_kernel_elapsed_seconds`", labels=labels
                ),
                self._usage.since_kernel,
            ),
        )
        for family, value in shown:
            yield _filled(family, self._usage.by_container(value, OLD_CONTAINER))
        parts = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "context", "module", "data", "offset")
        yield _filled(
            GaugeMetricFamily(
                "Device_memory_desc_of_container", "earlier name of `hami_container_device_memory_bytes`, with its parts", labels=parts
            ),
            self._usage.by_container(_used, OLD_CONTAINER, more=_parts),
        )


def _filled(family: GaugeMetricFamily, series: Iterator[Series]) -> GaugeMetricFamily:
    for value, labels in series:
        family.add_metric(list(labels.values()), value)
    return family


def _parts(seen: Seen, place: int) -> dict[str, str]:
    use = _use(seen, place)
    rest = max(int(_used(seen, place)) - use.context_bytes - use.module_bytes - use.buffer_bytes, 0)
    return {"context": str(use.context_bytes), "module": str(use.module_bytes), "data": str(use.buffer_bytes), "offset": str(rest)}


def _labels(names: tuple[str, ...], *values: str) -> dict[str, str]:
    """The labels; one without a name is left out."""
    return {"zone": ZONE, **{name: value for name, value in zip(names, values, strict=True) if name}}


def _allocations(pod: Pod) -> tuple[MigAllocation, ...]:
    try:
        return mig.decode(pod.metadata.annotations.get(keys.MIG_ALLOCATIONS, ""))
    except RecordError:
        return ()


def _of_card(device: PhysicalDevice) -> tuple[str, str, str]:
    return str(device.index), device.uuid, device.type


def _use(seen: Seen, place: int) -> DeviceUse:
    return seen.last.use(seen.last.grant.devices[place])


def _used(seen: Seen, place: int) -> float:
    return seen.last.used_bytes(seen.last.grant.devices[place])


def _limit(seen: Seen, place: int) -> float:
    return seen.last.grant.devices[place].memory_limit_mib * _MIB


def _busy(seen: Seen, place: int) -> float:
    return seen.sm_percent.get(seen.last.grant.devices[place].uuid, 0)


def _card_memory(reading: DeviceReading) -> float:
    return reading.memory_used_mib * _MIB

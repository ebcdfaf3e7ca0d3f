"""What a pod asks and what a device has left: the values that every decision here takes and gives. No rules.

A request is per device: ``count`` devices, each with ``memory_mib`` (or ``memory_percent`` of its total) and ``cores`` percent of its compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hami_devices.quota_scopes import ORDINARY, PodTraits
from hami_devices.rules import PLAIN, Rules
from hami_protocol.devices import ContainerKind, MigInstance, RegisteredDevice


class Reason(StrEnum):
    """Why a device or a node is passed over. The texts are the protocol's: they reach FailedNodes, events and dashboards."""

    DEVICE_COUNT = "NodeInsufficientDevice"
    UNREGISTERED = "node unregistered"
    UNAVAILABLE = "node not reporting"
    AGENT = "node agent not serving"
    ALLOCATABLE = "NodeInsufficientAllocatable"
    FENCED = "node has an unreadable record"
    HEALTH = "CardNotHealth"
    CORDON = "CardCordoned"
    TYPE = "CardTypeMismatch"
    NUMA = "NumaNotFit"
    UUID = "CardUuidMismatch"
    SLOTS = "CardTimeSlicingExhausted"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    QUOTA = "ResourceQuotaNotFit"
    MEMORY = "CardInsufficientMemory"
    CORES = "CardInsufficientCore"
    CORES_EXHAUSTED = "CardComputeUnitsExhausted"
    MIG = "CardMigTopologyInfeasible"
    MODE = "ModeNotFit"
    CUSTOM = "CardNotFoundCustomFilterRule"
    UNHEALTHY = "CardUnhealthy"
    QOS = "CardQosPolicyMismatch"
    APP_CLASS = "CardAppClassMismatch"
    PARTIAL = "AllocatedCardsInsufficientRequest"


UNRESOLVABLE = frozenset({Reason.DEVICE_COUNT, Reason.UNREGISTERED, Reason.TYPE, Reason.UUID})
"""No release of other pods helps against these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRequest:
    """What one container asks of one vendor. Never empty: what asks for nothing is no request."""

    vendor: str
    """The vendor's common word, as ``NVIDIA``."""
    count: int
    memory_mib: int = 0
    """Per device; 0 where ``memory_percent`` says it."""
    memory_percent: int = 0
    """Of each device's total, 1 to 100; 0 where ``memory_mib`` says it."""
    cores: int = 0
    """Percent of each device's compute; 0 books none and limits nothing."""
    parts: int = 0
    """How many of a device's equal parts, where its vendor cuts in parts; 0 where the other fields say it."""
    mode: str = ""
    """How the shares are to be used, in the vendor's own words."""
    device_mode: str = ""
    """The mode that devices must be in; empty where any will do."""
    rules: Rules = field(default=PLAIN, compare=False, repr=False)
    """The vendor's."""

    @property
    def whole(self) -> bool:
        """Whether each device is asked for with all of its memory."""
        return self.memory_percent == 100

    def memory_on(self, total_mib: int) -> int:
        """MiB booked on a device of ``total_mib``: a percentage rounded down, but never to zero."""
        return self.memory_mib or max(total_mib * self.memory_percent // 100, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerRequest:
    """One container of a pod, in the order of the protocol's annotations: init containers first."""

    name: str
    kind: ContainerKind
    requests: tuple[DeviceRequest, ...] = ()
    """At most one per vendor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selectors:
    """Which devices a pod accepts. Empty tuples constrain nothing. Types match by whole token, or by glob where one is written (HAMi#1485)."""

    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    numa_bind: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """How much each dimension counts in a device's score."""

    slots: int = 1
    cores: int = 1
    memory: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRequest:
    """What a pod asks, read once and strictly."""

    containers: tuple[ContainerRequest, ...]
    selectors: dict[str, Selectors] = field(default_factory=dict)
    """By vendor."""
    node_policy: str = "binpack"
    device_policy: str = "spread"
    weights: Weights = Weights()
    priority: int = 0
    traits: PodTraits = ORDINARY
    """Which quotas are about the pod; nothing else depends on them."""

    @property
    def asks(self) -> bool:
        """Whether any container asks for a device at all."""
        return any(container.requests for container in self.containers)

    def device_ids(self, vendor: str) -> int:
        """How many device ids of ``vendor`` kubelet allocates to the pod: ids of an init container go to later containers too."""
        running = peak = 0
        for container in self.containers:
            asked = sum(request.count for request in container.requests if request.vendor == vendor)
            if container.kind is ContainerKind.INIT:
                peak = max(peak, running + asked)
            else:
                running += asked
        return max(peak, running)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceState:
    """One device with what is charged on it now."""

    device: RegisteredDevice
    vendor: str
    used_shares: int = 0
    used_memory_mib: int = 0
    used_cores: int = 0
    cordoned: bool = False
    marks: tuple[tuple[str, int], ...] = ()
    """Of the slots in use that are marked: how they are used, and how many; sorted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What one pod is charged on one device: slots, memory and cores, effective over its containers (design: accounting)."""

    uuid: str
    vendor: str
    shares: int
    memory_mib: int
    cores: int
    mark: str = ""
    """How the pod uses it, in the vendor's own words."""
    instances: tuple[MigInstance, ...] = ()
    """The MIG instances that it holds there, for as long as it lives: also those of init containers that are over."""

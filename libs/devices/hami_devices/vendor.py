"""What a vendor is: data. No other code asks which vendor it has; what differs between vendors is a field here, what is odd one function.

A spec is pure, for webhook and scheduler; what talks to the hardware is the node-agent's. To add a vendor: a module with its ``Vendor``, a
section in ``config_sections`` that can rename its resources, a line in ``catalog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hami_devices.rules import PLAIN, Rules
from hami_protocol.devices import DeviceShare, RegisteredDevice, VendorAssignment
from hami_protocol.kubernetes import Container, Node, Pod

if TYPE_CHECKING:
    from hami_devices.admission import Mutation
    from hami_devices.model import DeviceRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorKeys:
    """Annotations of a pod that say which devices it accepts; an empty key is one that the vendor does not have."""

    use_types: str = ""
    avoid_types: str = ""
    use_uuids: str = ""
    avoid_uuids: str = ""
    modes: str = ""
    numa_bind: str = ""
    use_uuids_too: str = ""
    avoid_uuids_too: str = ""
    """Older names of the same; both must accept a device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """One container, as one vendor's reader sees it."""

    vendor: Vendor
    container: Container
    path: str
    """As ``spec.containers[0]``."""
    annotations: Mapping[str, str]
    """The pod's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Granted:
    """What a pod is given of one vendor, when its Binding is composed."""

    pod: Pod
    node: str
    assignment: VendorAssignment
    devices: Mapping[str, RegisteredDevice]
    """The node's devices of that vendor, by UUID."""
    time_ns: int
    """Unix nanoseconds."""

    def index(self, share: DeviceShare) -> int:
        """The index of a share's device; 0 for one that the node lists no more."""
        device = self.devices.get(share.uuid)
        return device.index if device is not None else 0

    @property
    def shares(self) -> tuple[DeviceShare, ...]:
        """The shares of all containers, in order."""
        return tuple(share for container in self.assignment.containers for share in container.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLock:
    """A lock on a node that one vendor's device plugin keeps beside the protocol's: the bare time, which names nobody. The plugin may remove it."""

    key: str
    """The node annotation."""
    expiry_seconds: float
    """After so long the plugin has no claim to it any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vendor:
    """One kind of device that pods can share. Every oddity has a default that does nothing."""

    name: str
    """The common word: in assignment texts and in events, as ``NVIDIA``."""
    device_type: str
    """The ``<type>`` of the node's annotation keys, as ``nvidia``."""

    count_resource: str
    memory_resource: str = ""
    memory_percent_resource: str = ""
    cores_resource: str = ""
    priority_resource: str = ""

    register_key: str
    """Node annotation that lists the devices in one of the protocol's forms."""
    registers_json: bool = False
    """Whether that is the JSON form in any case."""
    own_key: str = ""
    """Node annotation in which the vendor's own plugin lists them in its own form, which ``read_own`` reads."""
    read_own: Callable[[str, str], tuple[RegisteredDevice, ...]] | None = None
    """The devices in the text of ``own_key``, of the node named. Raises ``RecordError``."""
    read_capacity: Callable[[Node], tuple[RegisteredDevice, ...]] | None = None
    """The devices that a node's capacity counts, where nothing lists them. Raises ``RecordError``."""
    registered_cores: int = 0
    """What each device has, whatever its registration says; 0 takes the registration's word."""
    on_node: Callable[[RegisteredDevice, Mapping[str, str], Mapping[str, str]], RegisteredDevice] | None = None
    """A device with what the node's annotations and labels say of it."""
    handshake_key: str = ""
    pair_scores_key: str = ""
    """Node annotation with how well two devices are linked."""
    allocated_key: str
    """Pod annotation: what the pod holds, for good."""
    to_allocate_key: str = ""
    """Pod annotation: what is still to be handed out. Empty where the vendor has none."""
    selector_keys: SelectorKeys = SelectorKeys()

    memory_unit_mib: int = 1
    """What a bare number in the memory resource counts."""
    default_count: int = 0
    """Devices for a container that names memory or cores but no count; 0 refuses such a container."""
    default_memory_mib: int = 0
    """Per device, where the container says nothing; 0 is the whole device."""
    default_cores: int = 0
    """Percent, where a container that shares says nothing."""
    whole_device_cores: int = 0
    """Percent, where a container asks for whole devices and says nothing of cores."""

    sets_default_cores: bool = False
    """Whether the webhook writes ``whole_device_cores`` into the limits."""
    least_cores: int = 0
    """The smallest number of cores that may be asked for."""
    read: Callable[[Asking], DeviceRequest | None] | None = None
    """Reads what a container asks, where ``requests.read_plainly`` does not do. Raises ``RequestError``."""
    mutate: Callable[[Asking, DeviceRequest], Iterable[Mutation]] | None = None
    """What the webhook changes on a container that asks for devices, where that is more than to add a count that is missing."""
    cores_are_bits: bool = False
    """Which cores of a device a share takes, a bit each, rather than how much of them."""
    books_own_units: bool = False
    """Cores are asked in percent, as quotas count them, and booked in units of which each card has its own number."""
    rules: Rules = PLAIN
    """How its devices are fitted."""
    written_keys: tuple[str, ...] = ()
    """Pod annotations that ``written`` makes."""
    written: Callable[[Granted], Mapping[str, str]] | None = None
    """What its device plugin reads on a pod besides the assignment."""
    recall: Callable[[DeviceShare, Container, Mapping[str, str]], DeviceShare] | None = None
    """A share as it stands in the assignment's text, with what its container and the pod's annotations say of it besides."""
    locks_nodes: bool = True
    """Whether its device plugin finds its pod by the node's lock."""
    own_lock: OwnLock | None = None
    """What its device plugin keeps in place of that lock."""
    shim: bool = False
    """Whether our shim holds containers to their shares."""
    environment: Callable[[Sequence[DeviceShare], Mapping[str, RegisteredDevice]], dict[str, str]] | None = None
    """What the agent gives a container with these shares; None where the vendor's own plugin does everything."""

    runtime_class: str = ""
    """Set on pods that ask for devices and name none."""
    priority_env: str = ""
    """Environment variable that carries the priority resource's value."""
    device_env: tuple[tuple[str, str], ...] = ()
    """What the webhook adds to each container that asks for devices."""
    visible_env: str = ""
    """The environment variable by which an image, or its plugin, opens devices."""
    disable_env: str = ""
    """Environment variable by which a container switches its limits off, and is booked whole devices; empty: none is honoured."""
    idle_env: tuple[tuple[str, str], ...] = ()
    """What the webhook adds to each container that asks for none, so that an image's own environment does not open a device."""

    resources: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The names of all its resources, the count first."""

    def __post_init__(self) -> None:
        names = (
            self.count_resource,
            self.memory_resource,
            self.cores_resource,
            self.memory_percent_resource,
            self.priority_resource,
        )
        object.__setattr__(self, "resources", tuple(name for name in names if name))  # frozen, and asked for every container

    @property
    def assignment_keys(self) -> tuple[str, ...]:
        """The pod annotations that hold its assignment."""
        return tuple(key for key in (self.allocated_key, self.to_allocate_key) if key)

    @property
    def system_keys(self) -> tuple[str, ...]:
        """The pod annotations that only our services and its own device plugin write."""
        return (*self.assignment_keys, *self.written_keys)

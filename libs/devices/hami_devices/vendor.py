"""What a vendor is: data. No other code asks which vendor it has; what differs between vendors is a field here, what is odd one function.

A spec is pure, for webhook and scheduler; what talks to the hardware is the node-agent's. To add a vendor: a module with its ``Vendor``, a
section in ``config`` that can rename its resources, a line in ``catalog``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorKeys:
    """Annotations of a pod that say which devices it accepts; an empty key is one that the vendor does not have."""

    use_types: str = ""
    avoid_types: str = ""
    use_uuids: str = ""
    avoid_uuids: str = ""
    modes: str = ""
    numa_bind: str = ""


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
    """Node annotation that lists the devices."""
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

    runtime_class: str = ""
    """Set on pods that ask for devices and name none."""
    priority_env: str = ""
    """Environment variable that carries the priority resource's value."""
    device_env: tuple[tuple[str, str], ...] = ()
    """What the webhook adds to each container that asks for devices."""
    idle_env: tuple[tuple[str, str], ...] = ()
    """What the webhook adds to each container that asks for none, so that an image's own environment does not open a device."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all its resources, the count first."""
        names = (
            self.count_resource,
            self.memory_resource,
            self.cores_resource,
            self.memory_percent_resource,
            self.priority_resource,
        )
        return tuple(name for name in names if name)

    @property
    def assignment_keys(self) -> tuple[str, ...]:
        """The pod annotations that only the scheduler and the registry write."""
        return tuple(key for key in (self.allocated_key, self.to_allocate_key) if key)

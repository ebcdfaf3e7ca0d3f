"""The parts of Kubernetes objects that this project reads, as typed Structs (Kubernetes API reference, core/v1 and friends).

Unknown fields are skipped when decoding. Objects that are only patched stay dicts inside their adapter. Every Struct has a default for
every field that the API server may leave out, so that decoding fails only on a wrong type.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field


class _Object(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all of these share: read-only, camelCase on the wire, defaults left out when written."""


class OwnerReference(_Object):
    """Who made an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(_Object):
    """metadata of any object."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


Quantity = str | int | float
"""A quantity as JSON may carry it; ``hami_protocol.quantities`` is the only reader."""


class ResourceRequirements(_Object):
    """resources of one container."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class EnvVar(_Object):
    """One environment variable of a container; ``value_from`` is only looked at for presence."""

    name: str
    value: str = ""
    value_from: msgspec.Raw | None = None


class SecurityContext(_Object):
    """securityContext of one container."""

    privileged: bool | None = None


class Container(_Object):
    """One container; ``restart_policy`` ``Always`` on an init container makes it a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    security_context: SecurityContext | None = None
    restart_policy: str | None = None


class Toleration(_Object):
    """A taint that a pod puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSchedulingGroup(_Object):
    """spec.schedulingGroup."""

    pod_group_name: str = ""


class PodSpec(_Object):
    """spec of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    runtime_class_name: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    scheduling_group: PodSchedulingGroup | None = None
    scheduling_gates: tuple[dict[str, str], ...] | None = None


class ContainerStateTerminated(_Object):
    """A container that has ended."""

    exit_code: int = 0
    reason: str | None = None
    finished_at: str | None = None


class ContainerState(_Object):
    """At most one of the three is set."""

    running: dict[str, Any] | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(_Object):
    """status of one container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class Condition(_Object):
    """A condition of a pod or a node."""

    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodStatus(_Object):
    """status of a pod."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    nominated_node_name: str | None = None


class Pod(_Object):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(_Object):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Object):
    """spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(_Object):
    """status of a node."""

    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(_Object):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(_Object):
    """spec of a lease (coordination.k8s.io/v1). Times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(_Object):
    """A lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ResourceQuotaSpec(_Object):
    """spec of a quota."""

    hard: dict[str, Quantity] | None = None


class ResourceQuota(_Object):
    """A quota of one namespace."""

    metadata: ObjectMeta
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class Namespace(_Object):
    """A namespace."""

    metadata: ObjectMeta

"""The parts of Kubernetes objects that this project reads, as typed Structs (Kubernetes API reference, core/v1 and friends).

Unknown fields are skipped when decoding. Objects that are only patched stay dicts inside their adapter. Every Struct has a default for
every field that the API server may leave out, so that decoding fails only on a wrong type.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from hami_protocol.selectors import LabelSelector


class _Object(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What all of these share: read-only, camelCase on the wire, defaults left out when written. Decoded JSON has no cycles to collect."""


class ObjectMeta(_Object, frozen=True, kw_only=True):
    """metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()


Quantity = str | int | float
"""A quantity as JSON may carry it; ``hami_protocol.quantities`` is the only reader."""


class ResourceRequirements(_Object, frozen=True, kw_only=True):
    """resources of one container."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class EnvVar(_Object, frozen=True, kw_only=True):
    """One environment variable of a container; ``value_from`` is only looked at for presence."""

    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class SeccompProfile(_Object, frozen=True, kw_only=True):
    """seccompProfile of a pod or a container."""

    type: str = ""


class SecurityContext(_Object, frozen=True, kw_only=True):
    """securityContext of one container."""

    privileged: bool | None = None
    seccomp_profile: SeccompProfile | None = None


class PodSecurityContext(_Object, frozen=True, kw_only=True):
    """securityContext of a pod, which its containers inherit."""

    seccomp_profile: SeccompProfile | None = None


class Container(_Object, frozen=True, kw_only=True):
    """One container; ``restart_policy`` ``Always`` on an init container makes it a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    security_context: SecurityContext | None = None
    restart_policy: str | None = None


class Toleration(_Object, frozen=True, kw_only=True):
    """A taint that a pod puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSchedulingGroup(_Object, frozen=True, kw_only=True):
    """spec.schedulingGroup."""

    pod_group_name: str = ""


class PodAffinityTerm(_Object, frozen=True, kw_only=True):
    """Pods beside which a pod is to run, or not; only where they are is read."""

    namespaces: tuple[str, ...] | None = None
    namespace_selector: dict[str, Any] | None = None


class WeightedPodAffinityTerm(_Object, frozen=True, kw_only=True):
    """The same as a preference."""

    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(_Object, frozen=True, kw_only=True):
    """podAffinity or podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] | None = None


class Affinity(_Object, frozen=True, kw_only=True):
    """spec.affinity, as far as other pods are concerned."""

    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodSpec(_Object, frozen=True, kw_only=True):
    """spec of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    ephemeral_containers: tuple[Container, ...] | None = None
    security_context: PodSecurityContext | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    active_deadline_seconds: int | None = None
    affinity: Affinity | None = None
    resources: ResourceRequirements | None = None
    """Of the pod as a whole."""
    preemption_policy: str | None = None
    runtime_class_name: str | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    scheduling_group: PodSchedulingGroup | None = None
    scheduling_gates: tuple[dict[str, str], ...] | None = None


class ContainerStateTerminated(_Object, frozen=True, kw_only=True):
    """A container that has ended."""

    exit_code: int = 0
    reason: str | None = None
    finished_at: str | None = None


class ContainerState(_Object, frozen=True, kw_only=True):
    """At most one of the three is set."""

    running: dict[str, Any] | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(_Object, frozen=True, kw_only=True):
    """status of one container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    container_id: str = field(default="", name="containerID")
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class Condition(_Object, frozen=True, kw_only=True):
    """A condition of a pod or a node."""

    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    """status of a pod."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    nominated_node_name: str | None = None
    qos_class: str = field(default="", name="qosClass")


class Pod(_Object, frozen=True, kw_only=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(_Object, frozen=True, kw_only=True):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Object, frozen=True, kw_only=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeSystemInfo(_Object, frozen=True, kw_only=True):
    """status.nodeInfo, as far as it says what the node's kubelet and runtime can do."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(_Object, frozen=True, kw_only=True):
    """status of a node."""

    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    node_info: NodeSystemInfo | None = None
    conditions: tuple[Condition, ...] | None = None


class Node(_Object, frozen=True, kw_only=True):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(_Object, frozen=True, kw_only=True):
    """spec of a lease (coordination.k8s.io/v1). Times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(_Object, frozen=True, kw_only=True):
    """A lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ScopeExpression(_Object, frozen=True, kw_only=True):
    """One expression of a scope selector; all must hold."""

    scope_name: str
    operator: str = "Exists"
    values: tuple[str, ...] | None = None


class ScopeSelector(_Object, frozen=True, kw_only=True):
    """scopeSelector of a quota."""

    match_expressions: tuple[ScopeExpression, ...] | None = None


class ResourceQuotaSpec(_Object, frozen=True, kw_only=True):
    """spec of a quota."""

    hard: dict[str, Quantity] | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuota(_Object, frozen=True, kw_only=True):
    """A quota of one namespace."""

    metadata: ObjectMeta
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class PodDisruptionBudgetSpec(_Object, frozen=True, kw_only=True):
    """spec of a budget."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(_Object, frozen=True, kw_only=True):
    """status of a budget: how many of its pods may go now."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(_Object, frozen=True, kw_only=True):
    """How many pods of a kind may be disrupted at once."""

    metadata: ObjectMeta
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class PodGroupSpec(_Object, frozen=True, kw_only=True):
    """spec of a PodGroup, coscheduling's or Volcano's."""

    min_member: int = 1


class PodGroup(_Object, frozen=True, kw_only=True):
    """Pods that are of use only together."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()


class Namespace(_Object, frozen=True, kw_only=True):
    """A namespace."""

    metadata: ObjectMeta

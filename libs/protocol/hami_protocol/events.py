"""The events on the bus: who says what happened, as tagged unions. Seeing an event twice changes nothing; phases only move forward.

A new field has a default; a field never changes its type or meaning (recorded messages in ``tests/contract/wire`` must decode for ever).
The id, time, source and trace of an event are in its headers: see ``envelope``. Subjects are made in ``subjects``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hami_protocol.devices import AllocationMode, PodRef, RegisteredDevice, RegisterFormat, VendorAssignment


class _Event(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """What all events share: read-only, camelCase, told apart by ``type``."""


# HAMI_DEVICES


class DevicesReported(_Event, frozen=True, kw_only=True, tag="devices_reported"):
    """A node's devices of one type as they are now; published every 30 s and at once on change. The whole list, never a difference."""

    node: str
    device_type: str
    """The ``<type>`` of the annotation keys, as ``nvidia``."""
    generation: Annotated[int, Meta(ge=0)]
    """Rises whenever what follows changes; of two copies the higher is newer. 0 for a third-party plugin, which has none."""
    devices: tuple[RegisteredDevice, ...]
    allocation_mode: AllocationMode = AllocationMode.ENVVAR
    register_format: RegisterFormat = RegisterFormat.TEXT
    pair_scores: dict[str, dict[str, int]] | None = None
    third_party: bool = False
    """Read by the registry from annotations that a vendor's own plugin wrote."""
    shim_version: str = ""
    not_serving: Annotated[str, Meta(max_length=256)] = ""
    """Why the agent serves no new pods now, as before it stops or while kubelet does not watch its devices; empty where it serves them."""
    answers: bool = False
    """The agent answers on ``subjects.ask_agent``: while it does not, it is gone."""


class LivenessChanged(_Event, frozen=True, kw_only=True, tag="liveness_changed"):
    """The registry's verdict on whether a node still registers."""

    node: str
    device_type: str
    alive: bool
    reason: str


# HAMI_ALLOCATIONS: grants, by the scheduler alone


class PodAssigned(_Event, frozen=True, kw_only=True, tag="pod_assigned"):
    """Filter has reserved room for the pod; nothing is bound yet."""

    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]


class AssignmentLapsed(_Event, frozen=True, kw_only=True, tag="assignment_lapsed"):
    """A reservation came to nothing."""

    pod: PodRef
    node: str
    reason: str


class PodAllocating(_Event, frozen=True, kw_only=True, tag="pod_allocating"):
    """The Binding has succeeded: this is the grant that the node's agent serves, and nothing else."""

    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]
    bind_time_seconds: int
    """Unix time, as in the annotation ``hami.io/bind-time``."""
    unwritten: bool = False
    """Another scheduler has bound the pod, without the assignment: the registry is to write it."""


class ShareResized(_Event, frozen=True, kw_only=True, tag="share_resized"):
    """A running pod's shares have new sizes; the agent rewrites the grant file."""

    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]
    generation: Annotated[int, Meta(ge=1)]


class PodReleased(_Event, frozen=True, kw_only=True, tag="pod_released"):
    """The pod has ended and holds nothing any more; by the agent, or by the scheduler where the agent has not said so."""

    pod: PodRef
    node: str
    reason: str = ""


# HAMI_ALLOCATIONS: outcomes, by the node's own agent


class ContainerServed(_Event, frozen=True, kw_only=True, tag="container_served"):
    """``envvar`` mode: one container has its devices; the annotation of what is left to allocate is now this text."""

    pod: PodRef
    node: str
    container: str
    vendor: str
    to_allocate: str


class AllocationSucceeded(_Event, frozen=True, kw_only=True, tag="allocation_succeeded"):
    """All containers of the pod have what they were granted."""

    pod: PodRef
    node: str
    mig_allocations: str = ""
    """The annotation ``hami.io/vgpu-mig-allocations`` with what the instances are on their cards; empty where the pod holds none."""


class AllocationFailed(_Event, frozen=True, kw_only=True, tag="allocation_failed"):
    """The pod could not be given what it was granted."""

    pod: PodRef
    node: str
    reason: str


class ShareResizeApplied(_Event, frozen=True, kw_only=True, tag="share_resize_applied"):
    """The grant files say the new sizes: the limits that hold from now on."""

    pod: PodRef
    node: str
    assignments: tuple[VendorAssignment, ...]
    generation: Annotated[int, Meta(ge=1)]
    """Of the ``ShareResized`` that was carried out."""


class ShareResizeRefused(_Event, frozen=True, kw_only=True, tag="share_resize_refused"):
    """The sizes stay as they were."""

    pod: PodRef
    node: str
    generation: Annotated[int, Meta(ge=1)]
    """Of the ``ShareResized`` that was not carried out."""
    reason: str
    """With figures: what is in use, and what would be accepted."""


# HAMI_VERDICTS


class NodeShortfall(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why one node, and its nearest card, does not do."""

    node: str
    reason: str
    """The short stable text of FailedNodes, as ``2/2 CardInsufficientMemory``."""
    detail: str = ""
    """Figures: asked, has, nearest fit, and what would fit."""


class PodRefused(_Event, frozen=True, kw_only=True, tag="pod_refused"):
    """No node takes the pod now."""

    pod: PodRef
    summary: str
    """One sentence with figures: what was asked, what there is, what would fit."""
    node_count: int
    reasons: dict[str, int]
    """Short reason to number of nodes."""
    nearest: tuple[NodeShortfall, ...] = ()


class PodPlaced(_Event, frozen=True, kw_only=True, tag="pod_placed"):
    """A node was found; why this one."""

    pod: PodRef
    node: str
    fitting_node_count: int
    node_count: int
    score: float = 0.0


# HAMI_USAGE


class DeviceUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one container uses of one device, measured."""

    uuid: str
    memory_used_mib: int
    memory_limit_mib: int
    sm_percent: int = 0


class ContainerUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one container uses, measured."""

    pod: PodRef
    container: str
    devices: tuple[DeviceUsage, ...]
    enforced: bool = True


class NodeUsage(_Event, frozen=True, kw_only=True, tag="node_usage"):
    """What a node's containers use, measured by its agent's monitor."""

    node: str
    containers: tuple[ContainerUsage, ...]


DeviceEvent = DevicesReported | LivenessChanged
GrantEvent = PodAssigned | AssignmentLapsed | PodAllocating | ShareResized | PodReleased
OutcomeEvent = ContainerServed | AllocationSucceeded | AllocationFailed | ShareResizeApplied | ShareResizeRefused | PodReleased
AllocationEvent = GrantEvent | OutcomeEvent
VerdictEvent = PodRefused | PodPlaced
UsageEvent = NodeUsage
Event = DeviceEvent | AllocationEvent | VerdictEvent | UsageEvent

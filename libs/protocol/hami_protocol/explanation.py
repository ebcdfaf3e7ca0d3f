"""What ``GET /v1/explain/{namespace}/{pod}`` and ``hami.v1.ask.explain`` answer: why a pod is where it is, or is nowhere."""

from __future__ import annotations

from msgspec import Struct

from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.events import PodPlaced, PodRefused


class DeviceExplanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device, judged for the container that did not fit, or for the first one where all fit."""

    uuid: str
    type: str
    reason: str
    """Empty where the device fits."""
    free_shares: int
    free_memory_mib: int
    free_cores: int


class NodeExplanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """One node, judged now."""

    node: str
    fits: bool
    score: float
    reason: str = ""
    detail: str = ""
    """Figures: requested, free, the nearest fit, and what would fit."""
    unresolvable: bool = False
    """No release of other pods would help."""
    devices: tuple[DeviceExplanation, ...] = ()


class Reservation(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the scheduler's ledger has reserved for the pod."""

    node: str
    phase: str
    assignments: tuple[VendorAssignment, ...]


class LastVerdict(Struct, frozen=True, kw_only=True, rename="camel"):
    """The last result of filter for the pod."""

    verdict: PodPlaced | PodRefused
    time: str
    """RFC 3339, UTC."""


class Explanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """Why the pod is where it is, or is nowhere."""

    pod: PodRef
    phase: str
    """Of the pod, as Kubernetes has it."""
    node: str
    """Where it is bound; empty while it is not."""
    bind_phase: str
    summary: str
    """One sentence with figures."""
    holding: Reservation | None = None
    verdict: LastVerdict | None = None
    reasons: dict[str, int] = {}
    """Short reason to number of nodes, judged now; empty for a bound pod."""
    causes: tuple[str, ...] = ()
    """``reasons`` grouped in words, as ``22 nodes: no card with 90,000 MiB free``; the most frequent first."""
    nodes: tuple[NodeExplanation, ...] = ()
    """The best or the nearest nodes, judged now; empty for a bound pod."""
    nodes_left_out: int = 0
    """How many more nodes were judged."""
    warnings: tuple[str, ...] = ()
    """Names in the pod that no component reads: unknown resources and policies."""

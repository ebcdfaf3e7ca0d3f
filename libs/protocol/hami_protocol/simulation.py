"""What ``POST /v1/simulate`` and ``hami.v1.ask.simulate`` ask and answer: where these pods would go, with these nodes added.

Pods come one after the other, each beside those before it. They are judged by their devices alone, as filter judges them: what kube-scheduler
looks at besides (CPU, taints, affinity) is not part of it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hami_protocol.devices import SHARED_MODE, VendorAssignment
from hami_protocol.events import NodeShortfall
from hami_protocol.kubernetes import Node, Pod

MOST_PODS = 1000
MOST_NODES = 1000


class ProfileDevice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card of a profile, in the keys of the rig's profiles."""

    memory_mib: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    model: str
    cores: Annotated[int, Meta(ge=0, le=100)] = 100
    numa: int = 0


class NodeProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes of equal cards; they are named ``<name>-0``, ``<name>-1`` and so on."""

    name: Annotated[str, Meta(min_length=1, max_length=240)]
    device: ProfileDevice
    nodes: Annotated[int, Meta(ge=1, le=MOST_NODES)] = 1
    vendor: str = "nvidia"
    """The ``<type>`` of the vendor's annotation keys."""
    count: Annotated[int, Meta(ge=1, le=64)] = 1
    """Cards on each node."""
    split_count: Annotated[int, Meta(ge=1, le=1000)] = 10
    """How many pods may share a card."""
    mode: str = SHARED_MODE


class SimulationQuestion(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where would these pods go?"""

    pods: Annotated[tuple[Pod, ...], Meta(min_length=1, max_length=MOST_PODS)]
    copies: Annotated[int, Meta(ge=1, le=MOST_PODS)] = 1
    """So many of each pod, one list after the other; at most 1,000 pods in all."""
    nodes: Annotated[tuple[Node, ...], Meta(max_length=MOST_NODES)] = ()
    """To be added, with their registration annotations; one of a name that is known takes its place."""
    profiles: Annotated[tuple[NodeProfile, ...], Meta(max_length=64)] = ()
    """Likewise, without having to write a registration."""
    only_added: bool = False
    """Without the cluster's own nodes."""


class SimulatedPod(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where one pod would go."""

    namespace: str
    name: str
    node: str
    """Empty for nowhere."""
    summary: str
    """One sentence with figures."""
    score: float = 0.0
    assignments: tuple[VendorAssignment, ...] = ()
    reasons: dict[str, int] = {}
    """Short reason to number of nodes, where it would go nowhere."""
    nearest: tuple[NodeShortfall, ...] = ()


class Simulation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer, pod by pod in the order of the question."""

    node_count: int
    """Nodes that were looked at."""
    placed_count: int
    pods: tuple[SimulatedPod, ...]

"""What the placement core answers: a node and its shares, or why there is none. Values; no rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hami_devices.model import Charge
from hami_devices.quota_scopes import ORDINARY, PodTraits
from hami_protocol.devices import VendorAssignment
from hami_protocol.events import NodeShortfall
from hami_protocol.explanation import NodeExplanation


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A node on which the pod fits, and what it gets there."""

    node: str
    assignments: tuple[VendorAssignment, ...]
    charges: tuple[Charge, ...]
    """While its init containers may run."""
    running_charges: tuple[Charge, ...]
    """When they are over."""
    score: float
    """How full the node was, 0 to 30; whether high or low is better is the policy's."""
    traits: PodTraits = ORDINARY
    """Of the pod: which quotas count what it gets."""
    fitting_count: int = 1
    """On how many of the candidates it fits."""
    fitting: tuple[tuple[str, float], ...] = ()
    """All of those with their scores, best first; only where they were asked for (placement ``ranked``)."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why not, for each candidate where a release may help."""
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    """Why not, for each candidate where none helps."""


class Figures(NamedTuple):
    """What a refusal says in figures."""

    summary: str
    """One sentence, for an Event."""
    nearest: tuple[NodeShortfall, ...] = ()
    """The nodes that come nearest."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The pod fits on none of the candidates. Its figures are made when somebody asks for them, so that filter does not wait for them."""

    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    reasons: Mapping[str, int]
    """Short text to number of nodes."""
    reckon: Callable[[], Figures] = field(compare=False)
    """Makes the figures, from the state at the moment of asking; asked at most once."""

    @cached_property
    def figures(self) -> Figures:
        """The sentence, and the nodes that come nearest."""
        return self.reckon()

    @property
    def summary(self) -> str:
        """One sentence with figures, for an Event."""
        return self.figures.summary

    @property
    def nearest(self) -> tuple[NodeShortfall, ...]:
        """The nodes that come nearest, with figures."""
        return self.figures.nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementExplanation:
    """Why a pod would be where it would be, or why nowhere, from the state at the moment of asking."""

    node: str
    """Where it would be placed; empty for nowhere."""
    summary: str
    reasons: Mapping[str, int]
    nodes: tuple[NodeExplanation, ...]
    """The nodes asked about; where none were named, the best or the nearest ones."""

"""Deciding which node and devices a pod gets. Pure and synchronous: no I/O, no clock, no logging; ``now`` is an argument.

``state`` holds the cluster in columns and is the way in; ``columns`` judges all nodes at once; ``hami_devices.fit`` is the specification for
one node, which the two are tested against; ``ledger`` says who holds what; ``explain`` says why. Reading, judging and reserving are plain
calls: a caller that does not await in between can never give the same room twice.
"""

from hami_scheduler.placement.ledger import Entry, LedgerError, Phase
from hami_scheduler.placement.outcomes import Figures, Placement, PlacementExplanation, Refusal
from hami_scheduler.placement.state import ClusterState

__all__ = [
    "ClusterState",
    "Entry",
    "Figures",
    "LedgerError",
    "Phase",
    "Placement",
    "PlacementExplanation",
    "Refusal",
]

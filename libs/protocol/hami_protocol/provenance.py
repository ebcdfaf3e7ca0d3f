"""Whether an outcome counts: only the agent of the node on which a pod was granted answers for that pod. For readers of the log of grants. Pure.

Where agents have an account of their own on the bus, the registry refuses other outcomes before they reach the log. Elsewhere each reader does.
"""

from __future__ import annotations

from collections import OrderedDict

from hami_protocol.events import (
    AllocationFailed,
    AllocationSucceeded,
    ContainerServed,
    Event,
    PodAllocating,
    PodReleased,
    ShareResizeApplied,
    ShareResized,
    ShareResizeRefused,
)

REMEMBERED_PODS = 50_000
_Outcome = ContainerServed | AllocationSucceeded | AllocationFailed | ShareResizeApplied | ShareResizeRefused | PodReleased


class Provenance:
    """By UID, the node on which the log says that a pod was granted."""

    def __init__(self, capacity: int = REMEMBERED_PODS) -> None:
        self._nodes: OrderedDict[str, str] = OrderedDict()
        self._capacity = capacity

    def counts(self, event: Event) -> bool:
        """Take one event of the log, in its order; whether it counts. An outcome whose grant was not seen counts: the grant may be older."""
        match event:
            case PodAllocating() | ShareResized():
                self._nodes[event.pod.uid] = event.node
                self._nodes.move_to_end(event.pod.uid)
                if len(self._nodes) > self._capacity:
                    self._nodes.popitem(last=False)
            case _ if isinstance(event, _Outcome):
                return self._nodes.get(event.pod.uid, event.node) == event.node
        return True

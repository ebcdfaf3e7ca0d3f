"""What ``hami.v1.ask.holdings`` asks and answers: which pods hold what now, and which wait. In pages of whole nodes, since a message is bounded.

Ask with an empty ``after``, then with each answer's ``next`` until that is empty. Pages are of different moments: who wants every change follows
the log of allocations besides.
"""

from __future__ import annotations

from msgspec import Struct

from hami_protocol.devices import PodRef

PAGE_BYTES = 250_000
"""A page ends with the node that reaches this."""
MOST_WAITING = 500
"""So many waiting pods are told of; ``waiting_count`` counts all."""


class HoldingsQuestion(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Who holds what?"""

    after: str = ""
    """Nodes whose name sorts behind this one; empty for all."""


class CardCharge(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pod is charged on one card."""

    uuid: str
    memory_mib: int
    cores: int
    shares: int = 1


class PodHolding(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one pod is charged on its node."""

    pod: PodRef
    node: str
    phase: str
    """``reserved``, ``assumed``, ``bound``, or ``shrunk`` where its init containers are over."""
    charges: tuple[CardCharge, ...]


class WaitingPod(Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod that fits nowhere yet."""

    pod: PodRef
    since: str
    """When it was made: RFC 3339, UTC."""
    summary: str
    """One sentence with figures."""
    reasons: dict[str, int] = {}
    """Short reason to number of nodes."""


class Holdings(Struct, frozen=True, kw_only=True, rename="camel"):
    """One page."""

    holdings: tuple[PodHolding, ...]
    next: str = ""
    """What to ask for next; empty where this was the last page."""
    waiting: tuple[WaitingPod, ...] = ()
    """On the last page alone."""
    waiting_count: int = 0

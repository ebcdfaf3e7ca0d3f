"""Which devices each node had when, as far as this process has seen: a day of changes, bounded. Pure; times are given.

A node's *look* is its device groups with whether they are alive, and what is cordoned there. A look holds from when it was first seen until the next
one. Before ``since`` nobody remembers: a node is told of as it was seen first, for it may have been so for long. Whoever looks rarely sees late:
times are as exact as the looks are frequent.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from hami_registry.web.facts import Group, NodeAnnotations
from hami_registry.web.history import KEPT_SECONDS

MOST_LOOKS: Final = 100
"""Of one node; beyond it the oldest is forgotten, and what is exact begins later."""
SWEEP_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Look:
    """How a node looked."""

    groups: tuple[Group, ...]
    annotations: NodeAnnotations = field(default_factory=NodeAnnotations)


GONE: Final = Look(groups=())
"""Of a node that is no more, or has no devices any more."""


@dataclass(slots=True)
class _Node:
    begins: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)


class PastDevices:
    """The looks of all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._since: float | None = None
        self._swept_at = 0.0

    def since(self, now: float) -> float:
        """From when on it is exact, in Unix seconds; ``now`` where nobody has looked yet."""
        return now if self._since is None else max(self._since, now - KEPT_SECONDS)

    def see(self, name: str, look: Look, now: float) -> None:
        """A node looks so from ``now`` on."""
        self._since = now if self._since is None else self._since
        node = self._nodes.setdefault(name, _Node())
        if node.looks and node.looks[-1] == look:
            return
        node.begins.append(now)
        node.looks.append(look)
        if len(node.looks) > MOST_LOOKS:
            del node.begins[0], node.looks[0]
            self._since = max(self._since, node.begins[0])

    def of(self, name: str, time: float) -> Look | None:
        """How a node looked at ``time``; None where it was not there, or nobody has heard of it."""
        node = self._nodes.get(name)
        if node is None:
            return None
        place = bisect_right(node.begins, time) - 1
        if place < 0 and self._since is not None and node.begins[0] > self._since:
            return None  # it came later, while we looked
        found = node.looks[max(place, 0)]
        return None if found == GONE else found

    def at(self, time: float) -> dict[str, Look]:
        """All nodes at ``time``."""
        return {name: look for name in self._nodes if (look := self.of(name, time)) is not None}

    def forget(self, now: float) -> None:
        """Drop what was over more than a day ago, every now and then; each node keeps how it looks now, unless it is gone for so long."""
        if now - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = now
        begin = now - KEPT_SECONDS
        for name, node in list(self._nodes.items()):
            over = max(bisect_right(node.begins, begin) - 1, 0)
            del node.begins[:over], node.looks[:over]
            if node.looks == [GONE] and node.begins[0] <= begin:
                del self._nodes[name]

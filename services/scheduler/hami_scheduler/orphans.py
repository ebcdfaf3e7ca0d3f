"""Pods that hold a share of a card which their node no longer registers. Decides which they are; writes nothing.

The charge stays in the ledger and counts again when the card returns, and in its namespace's quota all the while; the card itself is in no node's
sums. A node that is not known, or that registers nothing at all of the vendor yet, says nothing about its cards.
"""

from __future__ import annotations

from typing import NamedTuple

from hami_protocol.devices import PodRef
from hami_scheduler.placement import ClusterState, Entry, Phase

_RUNS = frozenset({Phase.BOUND, Phase.SHRUNK})


class Orphan(NamedTuple):
    """One pod, and what it holds of cards that are gone."""

    pod: PodRef
    node: str
    uuids: tuple[str, ...]
    memory_mib: int

    def __str__(self) -> str:
        return f"holds {self.memory_mib} MiB of {', '.join(self.uuids)} on node {self.node}, which registers no such card any more"


class Orphans:
    """The orphans of all nodes, kept up to date node by node."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._by_node: dict[str, dict[str, Orphan]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def look(self, node: str) -> tuple[Orphan, ...]:
        """Judge the pods of ``node`` anew; those that were no orphans before."""
        known = {(held.vendor, held.device.uuid) for held in self._state.devices(node)}
        vendors = {vendor for vendor, _ in known}
        before = self._by_node.pop(node, {})
        now = {entry.pod.uid: orphan for entry in self._state.entries_on(node) if (orphan := _orphan(entry, known, vendors))}
        if now:
            self._by_node[node] = now
        return tuple(orphan for uid, orphan in now.items() if before.get(uid) != orphan)

    def all(self) -> tuple[Orphan, ...]:
        """All of them."""
        return tuple(orphan for by_uid in self._by_node.values() for orphan in by_uid.values())


def _orphan(entry: Entry, known: set[tuple[str, str]], vendors: set[str]) -> Orphan | None:
    if entry.phase not in _RUNS:
        return None
    gone = [charge for charge in entry.held if charge.vendor in vendors and (charge.vendor, charge.uuid) not in known]
    return Orphan(entry.pod, entry.node, tuple(each.uuid for each in gone), sum(each.memory_mib for each in gone)) if gone else None

"""Cards on which pods hold more than there is, as after a card was replaced by a smaller one or the split count was lowered. No I/O.

Nothing is taken from those pods, and the card takes no new ones by itself. Only nodes that have changed since the last look are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hami_devices.model import DeviceState
from hami_scheduler.placement import ClusterState


class Overbooked(NamedTuple):
    """One card of one node."""

    node: str
    uuid: str
    detail: str
    """What is held and what there is."""


class Overbooking:
    """Which cards are overbooked now."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._seen = 0
        self._cards: dict[int, dict[str, Overbooked]] = {}
        """By the node's number and the card's UUID."""

    @property
    def count(self) -> int:
        """How many cards there are."""
        return sum(map(len, self._cards.values()))

    def look(self) -> list[Overbooked]:
        """The cards that were not overbooked at the last look."""
        changed, self._seen = self._state.changes.since(self._seen), self._state.changes.count
        found: list[Overbooked] = []
        for number in changed:
            before, now = self._cards.pop(number, {}), {each.uuid: each for each in self._on(number)}
            if now:
                self._cards[number] = now
            found += [each for uuid, each in now.items() if uuid not in before]
        return found

    def _on(self, number: int) -> Iterator[Overbooked]:
        name = str(self._state.names[number])
        for held in self._state.devices(name) if name else ():
            if told := _excess(held):
                yield Overbooked(node=name, uuid=held.device.uuid, detail=told)


def _excess(held: DeviceState) -> str:
    """What is held of the card beyond what there is; empty where nothing is."""
    device = held.device
    parts = (
        (held.used_memory_mib, device.memory_mib, "MiB"),
        (held.used_cores, device.cores, "percent of its cores"),
        (held.used_shares, device.shares, "shares"),
    )
    return ", ".join(f"{used} of {total} {unit}" for used, total, unit in parts if used > total)

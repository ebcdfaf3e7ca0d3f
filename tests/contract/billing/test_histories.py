"""Seeded histories of pods on cards, with resizes, doubles, crashes, lost tails and agents that lie: the bill is the one of what happened."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_billing.core.bill import Window, divide
from hami_billing.follower import MICROSECONDS
from hami_billing.store import Store
from hami_protocol.events import Event, PodReleased
from tests.contract.billing.conftest import MIB, a_pod, granted, reported, resized, shares

HORIZON = 10_000
Log = list[tuple[Event, int]]


class History:
    """What happened on two nodes with two cards each, second by second: never more on a card than it has."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log: Log = []
        self.expected: dict[str, int] = defaultdict(int)
        """By pod, MiB-seconds."""
        self._free = dict.fromkeys(("GPU-0", "GPU-1", "GPU-2", "GPU-3"), MIB)
        self._held: dict[str, tuple[str, int, int]] = {}
        """By pod: card, MiB, and since when."""
        self._resizes: dict[str, int] = defaultdict(int)
        now = 0
        for number in range(40):
            now += self.chance.randrange(1, 200)
            self._step(f"p{number}", now)
        for pod, (_, mib, since) in self._held.items():
            self.expected[pod] += mib * (HORIZON - since)

    def _step(self, fresh: str, now: int) -> None:
        match self.chance.random():
            case draw if draw < 0.5:
                card, mib = self.chance.choice(list(self._free)), self.chance.randrange(1, MIB // 2)
                if self._free[card] >= mib:
                    self._free[card] -= mib
                    self._held[fresh] = (card, mib, now)
                    self.log.append((granted(a_pod(fresh), shares(card, mib, 0), node_of(card)), now))
            case draw if self._held and draw < 0.75:
                pod = self.chance.choice(list(self._held))
                card, mib, since = self._held[pod]
                wanted = self.chance.randrange(1, self._free[card] + mib + 1)
                self._resizes[pod] += 1
                self.expected[pod] += mib * (now - since)
                self._free[card] += mib - wanted
                self._held[pod] = (card, wanted, now)
                self.log.append((resized(a_pod(pod), shares(card, wanted, 0), self._resizes[pod], node_of(card)), now))
            case _ if self._held:
                pod = self.chance.choice(list(self._held))
                card, mib, since = self._held.pop(pod)
                self._free[card] += mib
                self.expected[pod] += mib * (now - since)
                self.log.append((PodReleased(pod=a_pod(pod), node=node_of(card)), now))

    def disturbed(self) -> Log:
        """The log with doubles, and with what the agent of the other node says of the same pods."""
        found: Log = []
        for event, when in self.log:
            found.append((event, when))
            if self.chance.random() < 0.3:
                found.append((event, when + self.chance.randrange(3)))
            if self.chance.random() < 0.3:
                pod, other = event.pod, "n1" if event.node == "n2" else "n2"  # type: ignore[union-attr]
                lie = self.chance.choice([PodReleased(pod=pod, node=other), resized(pod, shares(memory_mib=1), 9, node=other)])
                found.append((lie, when))
        return found


class CrashError(Exception):
    pass


def crashing(events: list[tuple[int, Event, int]]) -> Iterator[tuple[int, Event, int]]:
    yield from events
    raise CrashError


def node_of(card: str) -> str:
    return "n1" if card in {"GPU-0", "GPU-1"} else "n2"


def micro(seconds: int) -> int:
    return seconds * MICROSECONDS


@pytest.mark.parametrize("seed", range(40))
def test_the_bill_is_that_of_what_happened(seed: int, tmp_path: Path) -> None:
    history = History(seed)
    log, chance = history.disturbed(), history.chance
    window = Window(0, micro(HORIZON))
    with Store(f"sqlite:///{tmp_path / 'billing.db'}") as store:
        for node, cards in (("n1", ("GPU-0", "GPU-1")), ("n2", ("GPU-2", "GPU-3"))):
            store.take("HAMI_DEVICES", [(1, reported(*cards, node=node), 0)])
        place = 0
        while place < len(log):
            batch = log[place : place + chance.randrange(1, 6)]
            numbered = [(place + number + 1, event, micro(when)) for number, (event, when) in enumerate(batch)]
            if chance.random() < 0.2:  # a crash in the middle of a batch: nothing of it is kept
                before = store.position("HAMI_ALLOCATIONS")
                with pytest.raises(CrashError):
                    store.take("HAMI_ALLOCATIONS", crashing(numbered))
                assert store.position("HAMI_ALLOCATIONS") == before
            store.take("HAMI_ALLOCATIONS", numbered)
            place += len(batch)
            if chance.random() < 0.1:  # the stream came back without its last messages, which are published again
                place -= chance.randrange(min(place, 5) + 1)
                store.begin_anew("HAMI_ALLOCATIONS")
        division = divide(*store.read(window), window)
    assert sum(piece.units for piece in division.pieces) == 4 * micro(HORIZON)
    used: dict[str, int] = defaultdict(int)
    for piece in division.pieces:
        if piece.hold is not None:
            used[piece.hold.pod] += piece.units
    assert used.keys() == {pod for pod, amount in history.expected.items() if amount}
    for pod, amount in used.items():
        exact = history.expected[pod] * MICROSECONDS / MIB
        assert abs(amount - exact) <= len(division.pieces), pod

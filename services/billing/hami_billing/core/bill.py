"""Who pays for the time that cards existed. All arithmetic is in whole card-microseconds, so that sums are exact.

Each moment of each card is divided among the pods that hold a part of it and a remainder:

- A pod's part is, by the rule ``max``, the larger of its fractions of the card's memory and cores; the rules ``memory`` and
  ``cores`` take one of them.
- Where the parts are more than the card (one pod with all memory beside one with all cores), each is reduced in proportion.
- What is left is *idle* where a pod could still get a part of it, and *unallocatable* where none can: the card's slots, memory or
  cores are all taken, it is not healthy, or its node does not register.

So the rows of a card sum to the time for which it existed. Microseconds that a division leaves go to the remainder, or, where
there is none, to the largest parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from hami_billing.core.values import Card, Hold


class Rule(StrEnum):
    """By what a pod's part of a card is measured."""

    MAX = "max"
    MEMORY = "memory"
    CORES = "cores"


class Remainder(StrEnum):
    """What becomes of the part of a card that no pod holds."""

    IDLE = "idle"
    UNALLOCATABLE = "unallocatable"


class Window(NamedTuple):
    """From when to when a bill is made."""

    begin: int
    end: int


class Piece(NamedTuple):
    """A part of a card for a time in which nothing about the card changed."""

    begin: int
    end: int
    card: Card
    hold: Hold | None
    """Whose it is; None for a remainder."""
    remainder: Remainder | None
    units: int
    """Card-microseconds."""


class Division(NamedTuple):
    """How the time of the cards was divided."""

    pieces: list[Piece]
    uncounted: dict[str, int]
    """By card, microseconds for which it was held without being registered: how large it was then is not known."""


def divide(cards: Iterable[Card], holds: Iterable[Hold], window: Window, *, rule: Rule = Rule.MAX) -> Division:
    """Divide the time for which ``cards`` existed in ``window``.

    A card that was held before the ledger first saw it registered existed from that hold on, as it was registered first.
    """
    rows: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        rows[card.card].append(card)
    held: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        held[hold.card].append(hold)
    found = Division([], {})
    for uuid in sorted(rows.keys() | held.keys()):
        _divide_card(sorted(rows.get(uuid, ()), key=_began), held.get(uuid, []), window, rule, found)
    return found


def _divide_card(rows: list[Card], holds: list[Hold], window: Window, rule: Rule, into: Division) -> None:
    if rows and holds:
        rows[0] = replace(rows[0], began=min(rows[0].began, min(map(_began, holds))))
    counted = 0
    for card in rows:
        for begin, end, present in _moments(card, holds, window):
            into.pieces.extend(_pieces(card, begin, end, present, rule))
            counted += (end - begin) * len(present)
    total = sum(max(0, end - begin) for begin, end in (_within(hold, window) for hold in holds))
    if total > counted:
        into.uncounted[holds[0].card] = total - counted


def _moments(card: Card, holds: Iterable[Hold], window: Window) -> Iterator[tuple[int, int, list[Hold]]]:
    """The times of ``card`` in which nothing changed, with who held it then."""
    begin, end = _within(card, window)
    if begin >= end:
        return
    changes: dict[int, list[tuple[Hold, bool]]] = defaultdict(list)
    for hold in holds:
        since, until = max(hold.began, begin), min(end if hold.ended is None else hold.ended, end)
        if since < until:
            changes[since].append((hold, True))
            changes[until].append((hold, False))
    present: dict[Hold, None] = {}
    for since, until in pairwise(sorted({begin, end, *changes})):
        for hold, comes in changes[since]:
            if comes:
                present[hold] = None
            else:
                del present[hold]
        yield since, until, list(present)


def _pieces(card: Card, begin: int, end: int, present: Sequence[Hold], rule: Rule) -> Iterator[Piece]:
    duration, whole = end - begin, max(1, card.memory_mib) * max(1, card.cores)
    parts = [min(whole, _part(hold, card, rule)) for hold in present]
    over = sum(parts)
    units = [duration * part // max(whole, over) for part in parts]
    left = duration - sum(units)
    if over >= whole:  # what the division leaves, less than one microsecond each
        for place in sorted(range(len(parts)), key=lambda place: -parts[place])[:left]:
            units[place] += 1
        left = 0
    for hold, amount in zip(present, units, strict=True):
        yield Piece(begin, end, card, hold, None, amount)
    if left:
        remainder = Remainder.IDLE if card.usable and _has_room(card, present) else Remainder.UNALLOCATABLE
        yield Piece(begin, end, card, None, remainder, left)


def _has_room(card: Card, present: Sequence[Hold]) -> bool:
    return (
        sum(hold.slots for hold in present) < card.slots
        and sum(hold.memory_mib for hold in present) < card.memory_mib
        and sum(hold.cores for hold in present) < card.cores
    )


def _part(hold: Hold, card: Card, rule: Rule) -> int:
    """A hold's part of ``card``, where the whole card is its memory times its cores."""
    memory = hold.memory_mib * max(1, card.cores)
    cores = hold.cores * max(1, card.memory_mib)
    return {Rule.MAX: max(memory, cores), Rule.MEMORY: memory, Rule.CORES: cores}[rule]


def _began(row: Card | Hold) -> int:
    return row.began


def _within(row: Card | Hold, window: Window) -> tuple[int, int]:
    return max(row.began, window.begin), window.end if row.ended is None else min(row.ended, window.end)

"""Adds up the pieces of a bill by what was asked for, and prices them. Sums stay exact until they are printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hami_billing.core.bill import Piece, Remainder
from hami_billing.core.prices import Prices
from hami_billing.core.values import HOUR

DAY: Final = 24 * HOUR
USED: Final = "used"
KINDS: Final = (USED, *Remainder)


class Row(Struct, frozen=True, kw_only=True):
    """One line of a bill."""

    group: dict[str, str]
    """What the pieces have in common, by the names that were asked for."""
    kind: str
    """``used``, ``idle`` or ``unallocatable``."""
    card_us: int
    """Card-microseconds."""
    memory_mib_us: int
    """MiB-microseconds that pods held; 0 for a remainder."""
    cost: Decimal | None
    """None where a card's model has no price."""


def _time(unit: int) -> Callable[[Piece], str]:
    def text(piece: Piece) -> str:
        return datetime.fromtimestamp(piece.begin // unit * unit / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%MZ")

    return text


GROUPS: Final[dict[str, Callable[[Piece], str]]] = {
    "namespace": lambda piece: piece.hold.namespace if piece.hold else "",
    "pod": lambda piece: piece.hold.pod if piece.hold else "",
    "model": lambda piece: piece.card.model,
    "node": lambda piece: piece.card.node,
    "card": lambda piece: piece.card.card,
    "hour": _time(HOUR),
    "day": _time(DAY),
}
"""By what a bill can be grouped."""


def grouped(pieces: Iterable[Piece], by: Sequence[str], prices: Prices) -> list[Row]:
    """Add up ``pieces`` by the names ``by`` of ``GROUPS``; rows of pods first, then remainders, each by their group."""
    unit = HOUR if "hour" in by else DAY if "day" in by else 0
    sums: dict[tuple[str, tuple[str, ...], str], list[int]] = defaultdict(lambda: [0, 0])
    for piece in _split(pieces, unit) if unit else pieces:
        kind = piece.remainder.value if piece.remainder else USED
        entry = sums[kind, tuple(GROUPS[name](piece) for name in by), piece.card.model]
        entry[0] += piece.units
        entry[1] += piece.hold.memory_mib * (piece.end - piece.begin) if piece.hold else 0
    rows: dict[tuple[str, tuple[str, ...]], Row] = {}
    for (kind, group, model), (units, memory) in sorted(sums.items(), key=lambda item: (KINDS.index(item[0][0]), *item[0][1:])):
        price = prices.of(model)
        cost = None if price is None else price * Decimal(units) / HOUR
        row = Row(group=dict(zip(by, group, strict=True)), kind=str(kind), card_us=units, memory_mib_us=memory, cost=cost)
        before = rows.get((kind, group))
        rows[kind, group] = row if before is None else _sum(before, row)
    return list(rows.values())


def _sum(one: Row, other: Row) -> Row:
    return replace(
        one,
        card_us=one.card_us + other.card_us,
        memory_mib_us=one.memory_mib_us + other.memory_mib_us,
        cost=None if one.cost is None or other.cost is None else one.cost + other.cost,
    )


def _split(pieces: Iterable[Piece], unit: int) -> Iterator[Piece]:
    """Cut pieces at the boundaries of hours or days; the parts sum to the whole."""
    for piece in pieces:
        begin, given, duration = piece.begin, 0, piece.end - piece.begin
        while begin < piece.end:
            end = min(piece.end, (begin // unit + 1) * unit)
            until = piece.units * (end - piece.begin) // duration
            yield piece._replace(begin=begin, end=end, units=until - given)
            begin, given = end, until

"""The answer of ``GET /v1/bill``: who used the time for which cards existed. Plain values; times in RFC 3339, UTC."""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct


class BillRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """One line."""

    group: dict[str, str]
    """What its time has in common, by the names in ``Bill.by``; empty text where that does not apply, as the namespace of idle time."""
    kind: str
    """``used``, ``idle`` or ``unallocatable``."""
    card_microseconds: int
    """Of whole cards. The rows sum to the time for which the cards existed."""
    memory_mib_microseconds: int
    """Memory that pods held; 0 for time that no pod used."""
    cost: Decimal | None = None
    """Without rounding; None where some of it has no price."""


class Bill(Struct, frozen=True, kw_only=True, rename="camel"):
    """Who used which part of the cards."""

    begin: str
    end: str
    by: tuple[str, ...]
    rule: str
    """By what a share is measured: ``max``, ``memory`` or ``cores``."""
    currency: str
    rows: tuple[BillRow, ...]
    uncounted_microseconds: dict[str, int] = {}
    """By card, how long it was held without being registered, so that its size is not known."""

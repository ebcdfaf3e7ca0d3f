"""What an hour of a card costs, by model, from a file.

currency: EUR
cards:                        # per hour of a whole card; the first pattern that fits the model counts
"NVIDIA A100*": 2.40
"*": 0.80
"""

from __future__ import annotations

from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Meta, Struct


class PricesError(ValueError):
    """The file is none that can be used; the message names the field, what was given and what is accepted."""


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """A price list."""

    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    cards: dict[str, Decimal] = {}

    def of(self, model: str) -> Decimal | None:
        """The price of an hour of a whole card of ``model``; None where the list has none."""
        return next((price for pattern, price in self.cards.items() if fnmatchcase(model, pattern)), None)


def read(text: str | bytes) -> Prices:
    """Read a price list from YAML.

    Raises:
        PricesError: it is no price list.
    """
    try:
        prices = msgspec.yaml.decode(text, type=Prices)
    except (msgspec.MsgspecError, ArithmeticError) as exc:
        raise PricesError(f"prices: {exc}; accepted: currency (three letters) and cards (a price for each model pattern)") from exc
    for model, price in prices.cards.items():
        if not price.is_finite() or price < 0:
            raise PricesError(f"prices: cards: {model!r}: {price}; accepted: a number from 0 on")
    return prices

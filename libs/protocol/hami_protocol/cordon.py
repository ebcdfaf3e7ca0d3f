"""The node annotation ``hami.io/device-cordon``: UUIDs of cards that take no new shares, with commas between."""

from __future__ import annotations


def cordoned(text: str) -> tuple[str, ...]:
    """The UUIDs that the annotation names, in its order; spaces and empty items are put up with."""
    return tuple(dict.fromkeys(uuid for item in text.split(",") if (uuid := item.strip())))

"""The node annotation ``hami.io/device-cordon``: UUIDs of cards that take no new shares, with commas between, or as a JSON list."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from hami_protocol._text import shown

_NO_UUID: Final = re.compile(r"""[\s,;:"'\[\]{}]""")


def cordoned(text: str) -> tuple[str, ...]:
    """The UUIDs that the annotation names, in its order; spaces and empty items are ignored. None of a text that ``problem`` refuses."""
    return () if problem(text) else _items(text)


def problem(text: str) -> str:
    """Why the annotation cannot be read, so that nobody knows which cards are meant; empty where it can."""
    bad = next((item for item in _items(text) if _NO_UUID.search(item)), None)
    return "" if bad is None else f"{shown(bad)} is no UUID; accepted: UUIDs with commas between, or a JSON list of them"


def _items(text: str) -> tuple[str, ...]:
    items = text.split(",")
    if text.lstrip().startswith("["):
        try:
            items = msgspec.json.decode(text, type=list[str])
        except (msgspec.DecodeError, RecursionError):
            return (text,)
    return tuple(dict.fromkeys(uuid for item in items if (uuid := item.strip())))

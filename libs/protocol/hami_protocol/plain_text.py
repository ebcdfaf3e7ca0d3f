"""Text that a tenant may have written, made safe to show: in Events, logs, messages of the bus and terminals. Pure."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` in one line, with a space for each control, direction or format character, and for half a character."""
    return text if text.isprintable() else "".join(character if character.isprintable() else " " for character in text)

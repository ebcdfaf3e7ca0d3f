"""Reading fields of the protocol's text records: each error names the record, the place and what is accepted there."""

from __future__ import annotations

import functools
import re

from hami_protocol.errors import RecordError

_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_SHOWN_CHARACTERS = 80


@functools.lru_cache(maxsize=1024)
def _number(text: str) -> int:
    """The same object for the same text: many records have few different numbers."""
    return int(text)


def shown(text: str) -> str:
    """``text`` as an error shows it: quoted, and cut where a tenant could make it long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def whole(record: str, field: str, text: str, position: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """The whole number in ``text``.

    Raises:
        RecordError: it is none, or not between ``least`` and ``most``.
    """
    if not _WHOLE.fullmatch(text) or not least <= (number := _number(text)) <= most:
        raise RecordError(record, position, f"{field} is {shown(text)}; accepted: a whole number from {least} to {most}")
    return number

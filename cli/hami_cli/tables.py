"""Tables that fit into the terminal's width: names are cut in the middle, then columns of little weight are left out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

GAP: Final = "   "
ELLIPSIS: Final = "…"
LEAST_NAME: Final = 16
"""A name is cut to less than this only where no column can be left out."""
LEAST: Final = 6


def cut_middle(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters; where it is longer, its beginning and its end, which tells names apart."""
    if len(text) <= width:
        return text
    if width <= len(ELLIPSIS):
        return text[:width]
    tail = (width - len(ELLIPSIS)) // 2
    head = width - len(ELLIPSIS) - tail
    return text[:head] + ELLIPSIS + (text[-tail:] if tail else "")


def fit(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, cuttable: Sequence[str], optional: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """The headers and rows that fit into ``width``.

    Args:
        headers: of all columns.
        rows: a cell for each.
        width: of the terminal, in characters.
        cuttable: headers of columns with names, which may be cut.
        optional: headers of columns that may be left out, the first first.
    """
    for left_out in range(len(optional) + 1):
        places = [place for place, header in enumerate(headers) if header not in optional[:left_out]]
        widths = {place: max(len(line[place]) for line in (headers, *rows)) for place in places}
        least = LEAST if left_out == len(optional) else LEAST_NAME
        if _shrink(widths, [place for place in places if headers[place] in cuttable], width - len(GAP) * (len(places) - 1), least):
            break
    return [headers[place] for place in places], [[cut_middle(row[place], widths[place]) for place in places] for row in rows]


def _shrink(widths: dict[int, int], cuttable: Sequence[int], available: int, least: int) -> bool:
    """Make the widest of ``cuttable`` narrower, by turns, until all fit; whether they do."""
    while (excess := sum(widths.values()) - available) > 0:
        widest = max(cuttable, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= least:
            return False
        others = [widths[place] for place in cuttable if widths[place] < widths[widest]]
        equal = sum(widths[place] == widths[widest] for place in cuttable)
        step = max(1, min(excess // equal, widths[widest] - max(least, *others) if others else widths[widest] - least))
        for place in [place for place in cuttable if widths[place] == widths[widest]]:
            widths[place] -= step
    return True

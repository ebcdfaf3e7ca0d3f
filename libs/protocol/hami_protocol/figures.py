"""How figures are rounded: one rule for the command line, the report and, in JavaScript's ``Math.round``, the page. Pure."""

from __future__ import annotations

import math


def rounded(figure: float) -> int:
    """``figure`` to the nearest whole number, a half upwards."""
    return math.floor(figure + 0.5)


def percent(part: float, whole: float) -> str:
    """``part`` of ``whole`` as ``13 %``; a dash where there is no whole."""
    return f"{rounded(100 * part / whole)} %" if whole else "-"

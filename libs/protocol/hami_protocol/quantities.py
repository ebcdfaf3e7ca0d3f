"""Kubernetes quantities, read once and strictly for every caller. Exact: no floating point, nothing rounded, nothing clamped.

Grammar and canonical form: Kubernetes API, ``resource.Quantity``. The API server hands quantities on in canonical form, so that a limit
written ``"3000"`` arrives as ``"3k"``: a decimal suffix therefore multiplies the resource's own unit. A binary suffix names bytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from hami_protocol.errors import QuantityError

MAX_VALUE: Final = 2**31 - 1
"""The protocol's fields hold 32 bits, signed."""
MIB: Final = 2**20

_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_SHAPE: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_MAX_CHARACTERS: Final = 64

ACCEPTED: Final = "a Kubernetes quantity, as 3000, 3k or 16Gi"
ACCEPTED_COUNT: Final = f"a whole number from 0 to {MAX_VALUE}"
ACCEPTED_PERCENT: Final = "a whole number from 0 to 100"


def _split(value: str | float, field: str) -> tuple[Fraction, bool]:
    """Return the exact value, and whether it has a binary suffix."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(field, value, ACCEPTED)
    text = value if isinstance(value, str) else repr(value)
    found = _read(text) if len(text) <= _MAX_CHARACTERS else None
    if found is None:
        raise QuantityError(field, text[:_MAX_CHARACTERS], ACCEPTED)
    return found


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Fraction, bool] | None:
    """What ``_split`` returns; None where ``text`` has not the shape. A cluster's pods ask for the same few amounts over and over."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"]), False
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix], True
    return number * _DECIMAL[suffix], False


def exact(value: str | float, *, field: str = "") -> Fraction:
    """The value that ``value`` stands for; ``16Gi`` is 17179869184.

    Raises:
        QuantityError: it is no quantity: naming ``field``, what was given, and what is accepted.
    """
    return _split(value, field)[0]


def parse_count(value: str | float, *, field: str) -> int:
    """A number of devices: whole, not negative, in the resource's own unit.

    Raises:
        QuantityError: fractional, negative, over 32 bits, or no quantity at all.
    """
    number, binary = _split(value, field)
    if binary or number.denominator != 1 or not 0 <= number.numerator <= MAX_VALUE:
        raise QuantityError(field, value, ACCEPTED_COUNT)
    return number.numerator


def parse_percent(value: str | float, *, field: str) -> int:
    """A percentage: whole, 0 to 100. What 0 means (unset) is the caller's to say.

    Raises:
        QuantityError: fractional, out of range, or no quantity at all.
    """
    number, binary = _split(value, field)
    if binary or number.denominator != 1 or not 0 <= number.numerator <= 100:
        raise QuantityError(field, value, ACCEPTED_PERCENT)
    return number.numerator


def parse_memory_mib(value: str | float, *, field: str, unit_mib: int = 1) -> int:
    """An amount of device memory in MiB.

    Args:
        value: with a binary suffix an amount of bytes that is a whole number of MiB (``16Gi`` is 16384); else a whole number of units.
        field: path of the field, for the error.
        unit_mib: what one unit is, in MiB (256 for Cambricon).

    Raises:
        QuantityError: fractional, negative, over 32 bits of MiB, or no quantity at all.
    """
    number, binary = _split(value, field)
    mib, rest = divmod(number.numerator, MIB) if binary else (number.numerator * unit_mib, 0)
    if number.denominator != 1 or rest or not 0 <= mib <= MAX_VALUE:
        unit = "MiB" if unit_mib == 1 else f"units of {unit_mib} MiB"
        raise QuantityError(field, value, f"a whole number of {unit}, or one with Ki, Mi, Gi or Ti; at most {MAX_VALUE} MiB")
    return mib

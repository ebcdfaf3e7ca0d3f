"""How the API server writes a quantity back: ``3000`` as ``3k``, ``16384Mi`` as ``16Gi``, ``0.5`` as ``500m``. Pure.

A quantity keeps its family (decimal, binary, exponent), has no fraction and the largest suffix that allows that. What is finer than a
nano-unit is rounded up, what is larger than 2^63-1 becomes that. Anything else is refused, in the server's words.
"""

import re
from fractions import Fraction
from functools import lru_cache

__all__ = ["amount", "canonical"]

_FORMAT = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
REFUSAL = f"quantities must match the regular expression '{_FORMAT}'"
_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]{1,4})")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIXES = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_LARGEST = 2**63 - 1
_LONGEST = 64


@lru_cache(maxsize=4096)
def amount(text: str) -> Fraction:
    """Return the value of a quantity.

    Raises:
        ValueError: it is none.
    """
    return _parsed(text)[0]


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the quantity as the API server stores it.

    Raises:
        ValueError: it is none.
    """
    value, family = _parsed(text)
    if family == "binary" and (abs(value) < 1024 or value.denominator != 1):
        family = "decimal"
    if family == "binary":
        number, power = int(value), 0
        while number and number % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY_SUFFIXES[power]}"
    scaled = value * 10**9
    number = -(-scaled.numerator // scaled.denominator) if scaled > 0 else scaled.numerator // scaled.denominator
    exponent = -9
    while number and number % 1000 == 0 and exponent < 18:
        number, exponent = number // 1000, exponent + 3
    if not number:
        return "0"
    if family == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_SUFFIXES[exponent]}"


def _parsed(text: str) -> tuple[Fraction, str]:
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(REFUSAL)
    sign, digits, suffix = found.groups()
    number = Fraction(digits if not digits.endswith(".") else digits[:-1])
    if suffix.endswith("i"):
        family, value = "binary", number * 1024 ** _BINARY_SUFFIXES.index(suffix)
    elif suffix[:1] in {"e", "E"} and len(suffix) > 1:
        exponent = max(-30, min(30, int(suffix[1:])))
        family, value = "exponent", number * Fraction(10) ** exponent
    else:
        family, value = "decimal", number * Fraction(10) ** _DECIMAL[suffix]
    value = min(value, Fraction(_LARGEST))
    return (-value if sign == "-" else value), family

"""How the API server writes a quantity back: ``3000`` as ``3k``, ``16384Mi`` as ``16Gi``, ``0.5`` as ``500m``. Pure.

A quantity keeps its family (decimal, binary, exponent), has no fraction and the largest suffix that allows that; what is finer than a
thousandth is rounded up to one. A text that is already nearly so (``+5``, ``12E6``, ``01``) stays as it is: the server looks at the digits only.
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
_LARGEST_EXPONENT = 18
_LARGEST_POWER = 30
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
    value, family, scale, digits = _parsed(text)
    thousandths = value * 1000
    if thousandths.denominator != 1:
        thousandths = Fraction(-(-thousandths.numerator // thousandths.denominator) if value > 0 else int(thousandths))
    elif _is_kept(family, scale, digits):
        return text
    if family == "binary" and thousandths % 1000 == 0 and abs(thousandths) >= 1024 * 1000:
        number, power = int(thousandths) // 1000, 0
        while number % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY_SUFFIXES[power]}"
    number, exponent = int(thousandths), -3
    while number and number % 1000 == 0 and exponent < _LARGEST_EXPONENT:
        number, exponent = number // 1000, exponent + 3
    if not number:
        return "0"
    if family == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_SUFFIXES[exponent]}"


def _is_kept(family: str, scale: int, digits: str) -> bool:
    """Whether the server takes the text for canonical; ``digits`` have no leading zeros before the point."""
    if family == "binary":
        return scale == 0 and int(digits) % 8 != 0
    return scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"


def _parsed(text: str) -> tuple[Fraction, str, int, str]:
    """The value, its family, the power of ten (decimal) or the number of fractional digits (binary), and the digits."""
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(REFUSAL)
    sign, number, suffix = found.groups()
    whole, _, fraction = number.partition(".")
    digits = ((whole.lstrip("0") or ("0" if not fraction or whole else "")) + fraction) or "0"
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction))
    if suffix.endswith("i"):
        family, scale = "binary", -len(fraction)
        value *= 1024 ** _BINARY_SUFFIXES.index(suffix)
    elif suffix[:1] in {"e", "E"} and len(suffix) > 1:
        exponent = max(-_LARGEST_POWER, min(_LARGEST_POWER, int(suffix[1:])))
        family, scale = "exponent", exponent - len(fraction)
        value *= Fraction(10) ** exponent
    else:
        family, scale = "decimal", _DECIMAL[suffix] - len(fraction)
        value *= Fraction(10) ** _DECIMAL[suffix]
    return (-value if sign == "-" else value), family, scale, digits

"""Inputs made from valid ones by damage, from a seed: bits, pieces, numbers, and the values of JSON documents. The same seed gives the same inputs.

An input that a decoder answered in a new way is damaged further: ``Pool`` keeps it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

MOST_BYTES: Final = 64 * 1024
MOST_KEPT: Final = 256
TOKENS: Final = (
    *(b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x8e\xae", b"\xe2\x80\xae", b"\n", b"\r\n", b" ", b"\t"),
    *(b",", b":", b";", b"-", b"+", b".", b"/", b"%", b"=", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"null", b"true", b"false"),
    *(b"0", b"-0", b"-1", b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity", b"0x10", b"1_000", b"08", b"1.5", b"1e3", b"\xd9\xa3"),
    *(b"127", b"128", b"255", b"256", b"32767", b"65536", b"2147483647", b"2147483648", b"4294967296", b"4294967298"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"1" * 400, b"9" * 5000),
    *(b"16Gi", b"16.0Gi", b"20k", b"500m", b"1n", b"1Ei", b"E", b"Ki", b"i", b"[" * 2000, b'{"a":' * 1000),
    *(b"&a [*a,*a]", b"!!python/object:os.system", b"<<: *a", b"---\n", b"Requesting_", b"Reported ", b"2024-13-45", b"GPU-"),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308, 10**400),
    *("", " ", "0", "-1", "16Gi", "1e400", "NaN", "\x00", "\u202e", "🎮", "a" * 300, "a" * 70_000, "../../etc/passwd", "x,y:z;"),
    *([], {}, [[]], {"": None}, [None], {"a": {"a": {"a": {}}}}),
)


class Pool:
    """The inputs that others are made from: the valid ones, and those that were answered in a new way."""

    def __init__(self, seeds: Sequence[bytes]) -> None:
        self._seeds = list(seeds)
        self._found: list[bytes] = []

    def keep(self, data: bytes, rng: random.Random) -> None:
        """Damage ``data`` further; where there are many already, in place of another one."""
        if len(self._found) < MOST_KEPT:
            self._found.append(data)
        else:
            self._found[rng.randrange(MOST_KEPT)] = data

    def draw(self, rng: random.Random) -> bytes:
        """One of them, a valid one half the time."""
        return rng.choice(self._found if self._found and rng.random() < 0.5 else self._seeds)


def damaged(pool: Pool, rng: random.Random) -> bytes:
    """One input: a few kinds of damage to one of ``pool``, one after the other."""
    data = pool.draw(rng)
    if rng.random() < 0.4 and (changed := _json_damaged(data, rng)) is not None:
        data = changed
        if rng.random() < 0.7:
            return data[:MOST_BYTES]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 16))):
        data = rng.choice(_KINDS)(data, pool, rng)[:MOST_BYTES]
    return data


def _flipped(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    if not data:
        return b"\x80"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _other_byte(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _cut(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _without(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    first, last = _piece(data, rng)
    return data[:first] + data[last:]


def _doubled(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    first, last = _piece(data, rng)
    return data[:last] + data[first:last] * rng.choice((1, 1, 2, 20)) + data[last:]


def _moved(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    first, last = _piece(data, rng)
    rest = data[:first] + data[last:]
    place = rng.randrange(len(rest) + 1)
    return rest[:place] + data[first:last] + rest[place:]


def _with_token(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(TOKENS) + data[place + rng.choice((0, 0, 1, 4)) :]


def _other_number(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    """A run of digits becomes another one."""
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not places:
        return _with_token(data, pool, rng)
    first = last = rng.choice(places)
    while first and 48 <= data[first - 1] <= 57:
        first -= 1
    while last < len(data) and 48 <= data[last] <= 57:
        last += 1
    return data[:first] + rng.choice(TOKENS) + data[last:]


def _spliced(data: bytes, pool: Pool, rng: random.Random) -> bytes:
    other = pool.draw(rng)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


_KINDS: Final = (_flipped, _other_byte, _cut, _without, _doubled, _moved, _with_token, _with_token, _other_number, _other_number, _spliced)


def _piece(data: bytes, rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.choice((1, 1, 2, 4, 8, 32, 256)))


def _json_damaged(data: bytes, rng: random.Random) -> bytes | None:
    """``data`` with one value of its document changed, taken out or doubled; None where it is no document."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(document))
    if not places:
        return None
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.6:
        holder[key] = rng.choice(VALUES)
    elif kind < 0.75:
        del holder[key]
    elif kind < 0.85 and isinstance(holder, list):
        holder.append(holder[key])
    elif isinstance(holder, dict):
        holder[rng.choice((str(key).upper(), str(key) + "x", "", "a" * 300))] = holder.pop(key)
    else:
        holder[key] = [holder[key]]
    try:
        return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [document]
    while left and len(found) < 5000:
        holder = left.pop()
        keys = range(len(holder)) if isinstance(holder, list) else list(holder)
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                left.append(holder[key])
    return found

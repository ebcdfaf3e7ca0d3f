"""Which subjects a filter matches: ``*`` stands for one token, a final ``>`` for one or more. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable


@functools.lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))


def matches(pattern: str, subject: str) -> bool:
    """Whether ``subject`` is one that ``pattern`` stands for."""
    wanted, found = _tokens(pattern), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(found) > index
        if index >= len(found) or part not in ("*", found[index]):
            return False
    return len(found) == len(wanted)


def matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """A test for any of ``patterns``; none at all means every subject."""
    wanted = tuple(patterns)
    if not wanted:
        return lambda _subject: True
    return lambda subject: any(matches(pattern, subject) for pattern in wanted)

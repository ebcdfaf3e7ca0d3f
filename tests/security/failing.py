"""Makes the handler of one item fail: what every test of a loop's isolation needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

ERRORS = (
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    ValueError("x" * 1_000_000),
    OSError(28, "No space left on device"),
)
"""Deep input, oversized input, an oversized message, a full disk."""


def fail(
    owner: Any, name: str, when: Callable[..., bool] = lambda *_: True, *, error: Exception = ERRORS[0], times: int = 1_000_000
) -> list[Any]:
    """Make ``owner.name`` raise ``error``, at most ``times``, where ``when`` is true of its arguments; the list has the other calls."""
    inner = getattr(owner, name)
    passed: list[Any] = []
    left = times

    def failing(*args: Any, **kwargs: Any) -> bool:
        nonlocal left
        if left > 0 and when(*args):
            left -= 1
            return True
        passed.append(args)
        return False

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        if failing(*args, **kwargs):
            raise error
        return await inner(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        if failing(*args, **kwargs):
            raise error
        return inner(*args, **kwargs)

    setattr(owner, name, awaited if inspect.iscoroutinefunction(inner) else called)
    return passed

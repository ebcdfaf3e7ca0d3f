"""How much of a container's kernel time is charged while other containers use its card too. Pure.

A container's processes measure their kernels with events. Beside other containers such a measurement includes the time that
a kernel waited for theirs, so the shim charges the least that it measured of a kernel of late, times a factor: the grant's
``charge_permille``. This module adjusts the factor at each look, from the driver's own count of device time.

Neither figure that a tenant can write moves a container beyond its share: what it says it was charged counts up to its share,
so the factor rests only where the driver's count equals the share, or where the container wants less.
"""

from __future__ import annotations

from typing import Final

UNCHANGED: Final = 1000
"""The factor in thousandths that charges the least measurement as it is."""
LEAST: Final = 250
MOST: Final = 65535
"""A kernel that varies costs up to so much more than its least."""
SATURATED: Final = 0.9
"""Of its share: a container that was charged less is not held back by it."""
STEP: Final = 4.0
"""The factor changes by no more than this at a look."""


def charge_permille(before: int, *, ran_percent: int, charged_percent: float, share_percent: int) -> int:
    """The factor from now on, in thousandths.

    Args:
        before: the factor since the last look.
        ran_percent: of the card's time, what the driver counted for the container; rounded down, as NVML does.
        charged_percent: of the card's time, what its processes were charged since the last look.
        share_percent: what was granted, 1 to 99.
    """
    saturated = charged_percent >= SATURATED * share_percent
    ran = ran_percent + 0.5
    if not saturated and ran <= share_percent + 2:
        return before
    charged = max(min(charged_percent, share_percent), 1.0)
    if -2 < ran - charged < 1:
        return before
    return round(min(max(before * min(max(ran / charged, 1 / STEP), STEP), LEAST), MOST))

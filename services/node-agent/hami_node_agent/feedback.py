"""Who must wait for whom on a card, and who is held to a compute share now: the reference's feedback loop. Pure.

- A container of a higher priority (a lower number) that starts kernels on a card blocks those of lower priority there.
- Under the ``default`` policy a compute share holds only where another of the same priority is active on a card, or the container is blocked.

Priorities come from the grants, which no tenant writes, and a block is a lease: the shim goes on by itself at its end, so that an agent that has
died blocks nobody for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 12.0
"""Of a block, and of a card being shared; two rounds of the monitor, and a little."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One container on its cards."""

    name: str
    priority: int
    """0 is the highest."""
    devices: tuple[str, ...]
    active: bool
    """It has started kernels since the last look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What follows for one container."""

    blocked: bool
    limited: bool
    """Its compute share holds now, under the ``default`` policy."""
    shared: bool = False
    """Another container is active on one of its cards."""


def turns(contenders: Sequence[Contender]) -> Mapping[str, Turn]:
    """What follows for each, by name."""
    active = Counter((device, one.priority) for one in contenders if one.active for device in one.devices)
    users = Counter(device for one in contenders if one.active for device in one.devices)
    highest: dict[str, int] = {}
    for device, priority in active:
        highest[device] = min(priority, highest.get(device, priority))
    found: dict[str, Turn] = {}
    for one in contenders:
        blocked = any(highest.get(device, one.priority) < one.priority for device in one.devices)
        crowded = any(active[device, one.priority] > 1 for device in one.devices)
        shared = any(users[device] > one.active for device in one.devices)
        found[one.name] = Turn(blocked=blocked, limited=blocked or crowded, shared=shared)
    return found


def lease_until_ns(holds: bool, *, now_seconds: float) -> int:
    """``blocked_until_ns`` or ``shared_until_ns`` for the grant file, on ``CLOCK_MONOTONIC``; 0 where it does not hold."""
    return int((now_seconds + LEASE_SECONDS) * 1e9) if holds else 0

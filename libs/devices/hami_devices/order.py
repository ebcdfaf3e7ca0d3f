"""In which order devices are tried: a policy as a list of keys, most important first. Data, for one node here and for the columns.

NUMA decides first only where it is asked for (policy ``numa``, or annotation ``numa-bind``); else it parts devices of equal load (HAMi#1806).
The last word is the index, then the UUID, the higher first, which is where the reference's list ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from hami_devices.model import DeviceState


class Key(Enum):
    """What is compared, and which end is tried first."""

    FULLEST = "score, highest first"
    EMPTIEST = "score, lowest first"
    LEAST_SHARED = "shares in use, fewest first"
    HIGH_NUMA = "NUMA node, highest first"
    LOW_NUMA = "NUMA node, lowest first"


DEVICE_POLICIES: Final = ("binpack", "spread", "mutex", "numa", "topology-aware")
"""The names that ``read_order`` knows."""
_CHAINED: Final = {"binpack": Key.FULLEST, "spread": Key.EMPTIEST, "numa": Key.HIGH_NUMA}


@dataclass(frozen=True, slots=True)
class Order:
    """A device policy, read."""

    keys: tuple[Key, ...]
    exclusive: bool = False
    """``mutex``: only devices that nobody uses."""
    linked: bool = False
    """``topology-aware``: of the devices that fit, those that are linked best."""


@lru_cache(maxsize=1024)
def read_order(policy: str, numa_bind: bool) -> Order:
    """The order that ``policy`` means: a name, or a chain of names with commas. An unknown one is ``spread``."""
    names = tuple(name.strip() for name in policy.split(","))
    exclusive, linked = "mutex" in names, "topology-aware" in names
    if len(names) > 1 or names == ("numa",):
        keys = tuple(dict.fromkeys(_CHAINED[name] for name in names if name in _CHAINED)) or (Key.EMPTIEST,)
        if numa_bind:
            keys = (Key.HIGH_NUMA, *(key for key in keys if key is not Key.HIGH_NUMA))
    elif names == ("binpack",):
        keys = (Key.LOW_NUMA, Key.FULLEST) if numa_bind else (Key.FULLEST, Key.HIGH_NUMA)
    elif names == ("mutex",):
        keys = (Key.HIGH_NUMA, Key.LEAST_SHARED) if numa_bind else (Key.LEAST_SHARED, Key.HIGH_NUMA)
    else:
        keys = (Key.HIGH_NUMA, Key.EMPTIEST) if numa_bind else (Key.EMPTIEST, Key.HIGH_NUMA)
    return Order(keys, exclusive=exclusive, linked=linked)


def sort_key(order: Order, state: DeviceState, score: float) -> tuple[float, ...]:
    """Where a device with this score stands: the lowest is tried first, ties by ``tie_key``, descending."""
    values: list[float] = []
    for key in order.keys:
        match key:
            case Key.FULLEST:
                values.append(-score)
            case Key.EMPTIEST:
                values.append(score)
            case Key.LEAST_SHARED:
                values.append(state.used_shares)
            case Key.HIGH_NUMA:
                values.append(-state.device.numa)
            case Key.LOW_NUMA:
                values.append(state.device.numa)
    return tuple(values)


def tie_key(state: DeviceState) -> tuple[int, str]:
    """What parts devices that a policy finds equal; the higher is tried first."""
    return state.device.index, state.device.uuid


def in_order(order: Order, scored: Iterable[tuple[DeviceState, float]]) -> list[DeviceState]:
    """The devices, first to be tried first."""
    ranked = sorted(scored, key=lambda item: tie_key(item[0]), reverse=True)
    ranked.sort(key=lambda item: sort_key(order, *item))
    return [state for state, _ in ranked]

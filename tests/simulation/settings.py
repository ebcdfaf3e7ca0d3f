"""How one run's cluster is configured, drawn from its seed. Pure."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

from hami_scheduler.settings import PlacementMode

ROUGH = os.environ.get("HAMI_TEST_ROUGH") == "1"
"""Whether agents lie about other nodes' pods and streams lose their tail: about one seed in a hundred finds a fault so that is not mended yet."""
QUOTA = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
"""Keys of a ResourceQuota, in the order of a pod's amounts: shares, MiB, percent of compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What differs from run to run besides nodes, pods and faults."""

    placement: PlacementMode
    preemption: bool
    priorities: tuple[int, ...]
    """Priorities that pods are drawn from."""
    hold_seconds: float
    monitor: bool
    """Whether agents measure what containers use."""
    lies: bool
    """Whether agents publish of pods that are on other nodes."""
    loses_tails: bool
    """Whether streams come back shorter than they were."""
    quota: dict[str, int]
    """By key of a ResourceQuota, what the namespace may have; empty for no quota."""


def settings(chance: random.Random) -> Settings:
    """The settings of one run."""
    return Settings(
        placement=chance.choice([PlacementMode.PINNED, PlacementMode.PINNED, PlacementMode.RANKED]),
        preemption=chance.random() < 0.7,
        priorities=chance.choice([(0,), (0,), (0, 0, 0, 1000), (0, 10, 1000)]),
        hold_seconds=chance.choice([30.0, 600.0, 600.0]),
        monitor=chance.random() < 0.5,
        lies=ROUGH,
        loses_tails=ROUGH and chance.random() < 0.3,
        quota=_quota(chance) if chance.random() < 0.3 else {},
    )


def _quota(chance: random.Random) -> dict[str, int]:
    hard = {QUOTA[0]: chance.choice([2, 5, 12]), QUOTA[1]: chance.choice([5000, 20000, 60000]), QUOTA[2]: chance.choice([50, 150])}
    return {key: hard[key] for key in chance.sample(QUOTA, chance.choice([1, 1, 2]))}

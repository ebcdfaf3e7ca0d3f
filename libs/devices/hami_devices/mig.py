"""MIG: which instance of a card a share becomes, and where on the card it lies. Pure.

The smallest profile with memory enough that has a free placement. Instances of one and of three slices are laid from the end of the card, others
from its start, so that what is free stays in one piece. Invariant: no two instances overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from hami_protocol.devices import MigInstance, MigProfile, Placement

MODE: Final = "mig"
_FROM_THE_END: Final = ("1g.", "3g.")


def choose(profiles: Sequence[MigProfile], taken: Iterable[MigInstance], memory_mib: int) -> tuple[MigProfile, MigInstance] | None:
    """The instance for a share of ``memory_mib``; None where none fits.

    Args:
        profiles: what the card offers.
        taken: instances that are on it, or are promised.
        memory_mib: what is asked.
    """
    return _choose(tuple(profiles), frozenset(instance.placement for instance in taken), memory_mib)


@lru_cache(maxsize=8192)
def _choose(profiles: tuple[MigProfile, ...], taken: frozenset[Placement], memory_mib: int) -> tuple[MigProfile, MigInstance] | None:
    for profile in sorted(profiles, key=lambda each: (each.memory_mib, each.slice_count)):
        if profile.memory_mib < memory_mib:
            continue
        from_the_end = profile.name.startswith(_FROM_THE_END)
        for placement in sorted(profile.placements, key=lambda each: each.start, reverse=from_the_end):
            if not any(overlap(placement, other) for other in taken):
                return profile, MigInstance(profile=profile.name, placement=placement)
    return None


def mark(instance: MigInstance) -> str:
    """How a device is marked on which a pod holds ``instance``."""
    return f"{instance.profile}@{instance.placement.start}+{instance.placement.size}"


@lru_cache(maxsize=8192)
def marked(marks: tuple[tuple[str, int], ...]) -> tuple[MigInstance, ...]:
    """The instances that pods hold on a device with ``marks``."""
    return tuple(_unmarked(text) for text, count in marks for _ in range(count))


def _unmarked(text: str) -> MigInstance:
    profile, _, placement = text.rpartition("@")
    start, _, size = placement.partition("+")
    return MigInstance(profile=profile, placement=Placement(start=int(start), size=int(size)))


def overlap(one: Placement, other: Placement) -> bool:
    """Whether two placements share a slice."""
    return one.start < other.start + other.size and other.start < one.start + one.size

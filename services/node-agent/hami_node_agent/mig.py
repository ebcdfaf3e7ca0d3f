"""MIG instances as this node's pods want them and as its cards have them: which to make, which to take away. Pure.

The scheduler says where each instance lies; nothing else is ever tried. Taken away is only what this agent has made (its journal says so) and
what no pod that is still there wants: a pod that is being deleted still runs. Where a record cannot be read, nothing on its card is taken away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hami_protocol import keys, mig
from hami_protocol.devices import MigInstance, MigProfile, VendorAssignment
from hami_protocol.errors import RecordError
from hami_protocol.kubernetes import Pod
from hami_protocol.mig import MigAllocation, MigIdentity


class Spot(NamedTuple):
    """A part of a card."""

    gpu: str
    instance: MigInstance


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeInstance:
    """An instance that is there."""

    spot: Spot
    identity: MigIdentity
    paths: tuple[str, ...] = ()
    """Device nodes that it takes besides its card's, on the host."""

    @property
    def complete(self) -> bool:
        """Whether a program can run on it; where not, whoever made it was stopped half way."""
        return bool(self.identity.uuid)


def by_names(offered: Sequence[MigProfile], names: Iterable[str]) -> dict[str, MigProfile]:
    """Which of a card's profiles is meant by each name; a name that none is meant by is left out.

    Tables and drivers round sizes differently (the largest of an A100 with 80 GB is called ``7g.79gb`` and ``7g.80gb``): where no profile has the
    name, the plain one with as many slices is meant.
    """
    found: dict[str, MigProfile] = {}
    for name in names:
        slices, _, variant = name.partition(".")
        like = next((each for each in offered if each.name == name), None)
        if like is None and "+" not in variant:
            like = next((each for each in offered if each.name.partition(".")[0] == slices and "+" not in each.name), None)
        if like is not None:
            found[name] = like
    return found


def wanted(held: VendorAssignment) -> dict[tuple[int, int], Spot]:
    """The instances of a pod, by the places of container and device."""
    return {
        (place, number): Spot(share.uuid, share.instance)
        for place, container in enumerate(held.containers)
        for number, share in enumerate(container.shares)
        if share.instance is not None
    }


def unneeded(ours: Iterable[Spot], pods: Iterable[Pod]) -> tuple[Spot, ...]:
    """Which of the instances that this agent has made nobody wants any more.

    Args:
        ours: by the journal.
        pods: all that are on the node and have not ended.
    """
    spots: set[Spot] = set()
    for pod in pods:
        text = pod.metadata.annotations.get(keys.MIG_ALLOCATIONS, "")
        try:
            spots.update(Spot(each.gpu, each.instance) for each in mig.decode(text))
        except RecordError:
            return ()  # nobody knows what it holds
    return tuple(spot for spot in ours if spot not in spots)


def identified(held: VendorAssignment, made: Mapping[Spot, MadeInstance]) -> str:
    """The pod's annotation with what its instances are on their cards; empty where it has none."""
    return mig.encode(
        tuple(
            MigAllocation(container=place, device=number, gpu=spot.gpu, instance=spot.instance, identity=made[spot].identity)
            for (place, number), spot in sorted(wanted(held).items())
        )
    )

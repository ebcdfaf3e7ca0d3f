"""What the agent needs of cards that are cut into MIG instances, as a port, and cards that exist only in memory with the drivers' own rules.

The fake's tables are those of the drivers' documentation: which profiles a model offers, how much memory (in eighths of the card) and compute (in
sevenths) each takes, and where it may lie. Amounts of memory are about what a driver says, in MiB.
"""

from __future__ import annotations

import uuid as uuids
from dataclasses import dataclass
from typing import Final, Protocol

from hami_devices.mig import overlap
from hami_node_agent.mig import MadeInstance, Spot
from hami_protocol.devices import MigProfile, Placement
from hami_protocol.mig import MigIdentity


class MigError(Exception):
    """The driver refused; the message says why."""


class MigHardware(Protocol):
    """The MIG side of a node's cards."""

    async def instances(self) -> tuple[MadeInstance, ...]:
        """All that are there, whoever made them; those that were made half with no UUID.

        Raises:
            MigError: the driver cannot be asked.
        """
        ...

    async def make(self, spot: Spot) -> MadeInstance:
        """Make one instance with all of its compute, exactly there.

        Raises:
            MigError: it cannot be made; nothing is left of the attempt.
        """
        ...

    async def unmake(self, made: MadeInstance) -> None:
        """Take one instance away. One that is gone, or has become another, is no error.

        Raises:
            MigError: it is in use.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cut:
    """One profile of a model."""

    name: str
    memory_mib: int
    slices: int
    """Of compute, out of seven."""
    size: int
    """Of memory, out of eight."""
    starts: tuple[int, ...]
    processors: int


def _model(sizes_gb: tuple[str, str, str, str, str], slice_mib: int, processors: tuple[int, int, int, int, int]) -> tuple[_Cut, ...]:
    """The profiles of a model with seven slices, from their names' sizes, the memory of an eighth, and their multiprocessors."""
    one, two, three, four, seven = sizes_gb
    rows = (
        (f"1g.{one}", 1, 1, tuple(range(7))),
        (f"2g.{two}", 2, 2, (0, 2, 4)),
        (f"3g.{three}", 3, 4, (0, 4)),
        (f"4g.{four}", 4, 4, (0,)),
        (f"7g.{seven}", 7, 8, (0,)),
    )
    return tuple(
        _Cut(name=name, memory_mib=slice_mib * size, slices=slices, size=size, starts=starts, processors=count)
        for (name, slices, size, starts), count in zip(rows, processors, strict=True)
    )


MODELS: Final[dict[str, tuple[_Cut, ...]]] = {
    "A100-SXM4-40GB": _model(("5gb", "10gb", "20gb", "20gb", "40gb"), 4992, (14, 28, 42, 56, 98)),
    "A100-SXM4-80GB": _model(("10gb", "20gb", "40gb", "40gb", "79gb"), 10048, (14, 28, 42, 56, 98)),
    "H100-SXM5-80GB": _model(("10gb", "20gb", "40gb", "40gb", "80gb"), 10048, (16, 32, 60, 64, 132)),
    "H200-SXM5": _model(("18gb", "35gb", "71gb", "71gb", "141gb"), 17792, (16, 32, 60, 64, 132)),
    "B200": _model(("23gb", "45gb", "90gb", "90gb", "180gb"), 22784, (18, 36, 70, 74, 148)),
}
"""By a part of the card's type text, as the device configuration has it."""


def profiles_of(type_text: str) -> tuple[MigProfile, ...]:
    """What a card of this type offers; nothing where it cannot be cut."""
    cuts = next((cuts for model, cuts in MODELS.items() if model in type_text), ())
    most = max((cut.processors for cut in cuts), default=1)
    return tuple(
        MigProfile(
            name=cut.name,
            memory_mib=cut.memory_mib,
            cores=-(-100 * cut.processors // most),
            slice_count=cut.slices,
            placements=tuple(Placement(start=start, size=cut.size) for start in cut.starts),
        )
        for cut in cuts
    )


class FakeMig:
    """Cards in memory that can be cut. ``busy`` is what a test turns: UUIDs of instances that somebody uses."""

    def __init__(self, types: dict[str, str]) -> None:
        """``types``: of each card, by UUID."""
        self._types = types
        self._made: dict[Spot, MadeInstance] = {}
        self._next = 0
        self.busy: set[str] = set()
        self.calls: list[str] = []

    async def instances(self) -> tuple[MadeInstance, ...]:
        """All that are there."""
        return tuple(self._made.values())

    async def make(self, spot: Spot) -> MadeInstance:
        """As the driver would."""
        self.calls.append(f"make {spot.gpu} {spot.instance.profile}@{spot.instance.placement.start}")
        offered = {each.name: each for each in profiles_of(self._types.get(spot.gpu, ""))}
        profile = offered.get(spot.instance.profile)
        if profile is None:
            raise MigError(f"{spot.gpu} offers no profile {spot.instance.profile}; it offers {', '.join(offered) or 'none'}")
        if spot.instance.placement not in profile.placements:
            raise MigError(f"profile {profile.name} cannot lie at {spot.instance.placement.start} on {spot.gpu}")
        there = [other.instance for other in self._made if other.gpu == spot.gpu]
        if any(overlap(spot.instance.placement, other.placement) for other in there):
            raise MigError(f"no room for {profile.name} at {spot.instance.placement.start} on {spot.gpu}: insufficient resources")
        if sum(offered[other.profile].slice_count for other in there) + profile.slice_count > 7:
            raise MigError(f"no compute left for {profile.name} on {spot.gpu}: insufficient resources")
        self._next += 1
        name = f"MIG-{uuids.uuid5(uuids.NAMESPACE_OID, f'{spot}/{self._next}')}"
        made = MadeInstance(spot=spot, identity=MigIdentity(uuid=name, gpu_instance=self._next, compute_instance=0))
        self._made[spot] = made
        return made

    def leave_half(self, spot: Spot) -> None:
        """As if whoever makes an instance had been killed before its compute was there."""
        self._next += 1
        self._made[spot] = MadeInstance(spot=spot, identity=MigIdentity(uuid="", gpu_instance=self._next, compute_instance=0))

    async def unmake(self, made: MadeInstance) -> None:
        """As the driver would."""
        self.calls.append(f"unmake {made.spot.gpu} {made.spot.instance.profile}@{made.spot.instance.placement.start}")
        if made.identity.uuid in self.busy:
            raise MigError(f"{made.identity.uuid} is in use by another client")
        if self._made.get(made.spot) == made:
            del self._made[made.spot]

"""What a pod is charged on each device: for slots, memory and cores, the largest of all the moments of its life.

Ordinary init containers run one at a time, each beside the sidecars started before it; then application containers run beside all sidecars.
So: effective = max(sidecars before + init, for each init container; all sidecars + applications), per device and dimension. When the init
containers are over, what is left is the last term. The same figures are used at admission, at fit, in the ledger and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hami_devices.model import Charge
from hami_protocol.devices import ContainerKind, DeviceShare, MigInstance, VendorAssignment

Slot = tuple[str, str]
"""Vendor and UUID."""
Amount = tuple[int, int, int, str]
"""Slots, MiB, cores, and how they are used."""
NOTHING: Amount = (0, 0, 0, "")


class Account:
    """Adds up one pod's containers, in their order (init containers first)."""

    __slots__ = ("_instances", "_peak", "running")

    def __init__(self) -> None:
        self.running: dict[Slot, Amount] = {}
        """What sidecars and applications so far hold at once."""
        self._peak: dict[Slot, Amount] = {}
        self._instances: dict[Slot, tuple[MigInstance, ...]] = {}

    def add(self, kind: ContainerKind, vendor: str, shares: Iterable[DeviceShare]) -> None:
        """Charge one container with its shares of one vendor."""
        held: dict[Slot, Amount] = self.running if kind is not ContainerKind.INIT else dict(self.running)
        for share in shares:
            slot = (vendor, share.uuid)
            slots, memory_mib, cores, mark = held.get(slot, NOTHING)
            if share.instance is not None:
                self._instances[slot] = (*self._instances.get(slot, ()), share.instance)
            held[slot] = (slots + share.slots, memory_mib + share.memory_mib, cores + share.cores, share.mark or mark)
        if kind is ContainerKind.INIT:
            self._raise_peak(held)

    def _raise_peak(self, held: dict[Slot, Amount]) -> None:
        for slot, amount in held.items():
            peak = self._peak.get(slot, NOTHING)
            self._peak[slot] = (max(peak[0], amount[0]), max(peak[1], amount[1]), max(peak[2], amount[2]), amount[3] or peak[3])

    def charges(self) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
        """What the pod is charged while init containers may run, and when they are over; each by vendor and UUID."""
        self._raise_peak(self.running)
        running = dict.fromkeys(self._instances, NOTHING) | self.running if self._instances else self.running
        charges = self._as_charges(running)
        return (charges, charges) if self._peak == running else (self._as_charges(self._peak), charges)

    def _as_charges(self, held: dict[Slot, Amount]) -> tuple[Charge, ...]:
        return tuple(
            Charge(
                uuid=slot[1],
                vendor=slot[0],
                shares=slots,
                memory_mib=memory_mib,
                cores=cores,
                mark=mark,
                instances=self._instances.get(slot, ()),
            )
            for slot, (slots, memory_mib, cores, mark) in sorted(held.items())
        )


def charges_of(assignments: Sequence[VendorAssignment]) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
    """What a pod with these assignments is charged while its init containers may run, and when they are over."""
    account = Account()
    for assignment in assignments:
        for container in assignment.containers:
            account.add(container.kind, assignment.vendor, container.shares)
    return account.charges()

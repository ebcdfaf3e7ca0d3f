"""What a container uses, from two sides: its region, which its processes write, and the driver's own count, which they cannot. Pure.

Where the driver counts more processes on a card than the region has, some of them do not run under the shim: the container is *unenforced*. Where it
counts more memory than was granted, the share is *exceeded*, however that came about.
What the driver counts beyond the region is overhead that no function reports; it is charged through the grant. The two sides are read one after
the other, so the smallest of the last readings counts: an allocation in between is no overhead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node_agent.grant_file import Grant, GrantedDevice
from hami_node_agent.region import DeviceUse, Region

OVERHEAD_READINGS: Final = 3
_MIB: Final = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What the driver counts of one container on one card."""

    used_bytes: int
    processes: int
    ran_percent: int | None = None
    """Of the card's time of late; None where the driver does not count that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One look at one container."""

    grant: Grant
    region: Region | None
    """None where none was made, or none can be read."""
    damage: str = ""
    """Why the region cannot be read."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """By card; empty where the driver counts nothing of it, or cannot be asked."""

    def use(self, device: GrantedDevice) -> DeviceUse:
        """What the region says of one device."""
        return self.region.device(device.uuid) if self.region is not None else DeviceUse(uuid=device.uuid)

    def used_bytes(self, device: GrantedDevice) -> int:
        """What is in use: the larger of both figures, since neither side sees everything."""
        counted = self.counted.get(device.uuid)
        return max(self.use(device).used_bytes, counted.used_bytes if counted else 0)

    def used_mib(self, device: GrantedDevice) -> int:
        """The same in MiB, rounded up."""
        return -(-self.used_bytes(device) // _MIB)


def unenforced(measured: Measured) -> str:
    """Why the container is not held to its share; empty where nothing says so."""
    for device in measured.grant.devices:
        counted = measured.counted.get(device.uuid)
        if device.whole or counted is None or not counted.processes:
            continue
        if measured.region is None:
            return f"{counted.processes} processes use {device.uuid}, and {measured.damage or 'the shim has not seen one'}"
        attached = measured.use(device).processes
        if counted.processes > attached:
            return f"{counted.processes} processes use {device.uuid}, {attached} of them under the shim"
    if measured.region is not None and measured.region.unknown_forms:
        return f"{measured.region.unknown_forms} look-ups of driver functions found a form, or a library, that the shim does not know"
    return ""


def exceeded(readings: Sequence[Measured]) -> str:
    """Which device's share the driver counts more than granted of; empty where none.

    Args:
        readings: of one container, the oldest first; fewer than ``OVERHEAD_READINGS`` say nothing yet, so that a share that was just made smaller,
            or memory that is just being freed, is none.
    """
    if len(readings) < OVERHEAD_READINGS:
        return ""
    for device in readings[-1].grant.devices:
        counts = [one.counted[device.uuid].used_bytes if device.uuid in one.counted else 0 for one in readings[-OVERHEAD_READINGS:]]
        if not device.whole and min(counts) > device.memory_limit_mib * _MIB:
            charged = readings[-1].use(device).used_bytes
            return f"{min(counts) // _MIB} MiB of {device.uuid} are in use, {device.memory_limit_mib} MiB granted, {charged // _MIB} MiB charged"
    return ""


def overhead_bytes(readings: Sequence[Measured]) -> tuple[int, ...]:
    """By device of the grant, what the driver uses beyond what the region accounts for.

    Args:
        readings: of one container, the oldest first; fewer than ``OVERHEAD_READINGS`` say nothing yet.
    """
    devices = readings[-1].grant.devices
    if len(readings) < OVERHEAD_READINGS:
        return (0,) * len(devices)
    return tuple(min(_beyond(one, device) for one in readings[-OVERHEAD_READINGS:]) for device in devices)


def _beyond(measured: Measured, device: GrantedDevice) -> int:
    counted = measured.counted.get(device.uuid)
    if counted is None or device.whole:
        return 0
    return min(max(counted.used_bytes - measured.use(device).used_bytes, 0), device.memory_limit_mib * _MIB)

"""What the agent needs of the hardware, as a port: a scan, a stream of what went wrong, a probe. Adapters: ``nvml``, ``profile``.

A device that does not answer is reported with its ``fault`` and costs nobody else; only a driver that cannot be loaded at all is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hami_node_agent.sharing import Sharing
from hami_protocol.devices import MigProfile


class HardwareError(Exception):
    """The hardware cannot be asked at all: no driver, no profile. The message says what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicalDevice:
    """One card as the driver describes it."""

    uuid: str
    index: int
    type: str
    """Model text as it is registered, as ``NVIDIA-Tesla V100-PCIE-32GB``."""
    memory_mib: int | None
    """None where the driver has no figure (unified memory); 0 where the vendor counts devices alone."""
    cores: int = 100
    numa: int | None = None
    paths: tuple[str, ...] = ()
    """Device nodes, as ``/dev/nvidia0``, as seen on the host."""
    fault: str = ""
    """Why the driver does not answer for it; empty where it does."""
    mig_profiles: tuple[MigProfile, ...] = ()
    """Into what it can be cut; nothing where it cannot."""
    custom_info: dict[str, Any] = field(default_factory=dict)
    """What its vendor says of it besides, in the vendor's own names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All cards of the node as of one scan, by index."""

    devices: tuple[PhysicalDevice, ...]
    pair_scores: dict[str, dict[str, int]] | None = None
    """How well two cards are linked, by both UUIDs; None where nobody measured it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFault:
    """The driver reported an XID on one card, or on an unknown one where ``uuid`` is empty."""

    uuid: str
    xid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class InventoryChanged:
    """Scan again: something but a fault has changed."""


HardwareEvent = DeviceFault | InventoryChanged


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProcess:
    """One process on one card, as the driver counts it."""

    pid: int
    memory_mib: int
    sm_percent: int | None = None
    """Of the card's time of late, how much its kernels ran; None where the driver does not count that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReading:
    """How busy one card is now."""

    memory_used_mib: int
    sm_percent: int
    memory_percent: int = 0
    """Of the time, how much its memory was read or written."""
    processes: tuple[DeviceProcess, ...] = field(default=())


class Hardware(Protocol):
    """The cards of one node."""

    def sharing(self, configured: Sharing) -> Sharing:
        """How the cards are shared: as ``configured``, unless the adapter knows better (a profile does)."""
        ...

    async def scan(self) -> Inventory:
        """All cards now.

        Raises:
            HardwareError: the hardware cannot be asked at all.
        """
        ...

    def events(self) -> AsyncIterator[HardwareEvent]:
        """What goes wrong, for ever. Adapters retry by themselves."""
        ...

    async def probe(self, uuid: str) -> str:
        """Try one card; empty where it works, else what failed."""
        ...

    async def reading(self, uuid: str) -> DeviceReading | None:
        """How busy one card is, None where the driver does not say."""
        ...

"""What the ledger keeps. Times are Unix time in microseconds; an end of None means that it goes on."""

from __future__ import annotations

from msgspec import Struct

HOUR: int = 3600 * 1_000_000
"""In microseconds."""


class Hold(Struct, frozen=True, kw_only=True):
    """What one pod holds of one card, from one moment to another. A resize ends one hold and begins the next."""

    uid: str
    namespace: str
    pod: str
    node: str
    vendor: str
    card: str
    slots: int
    memory_mib: int
    cores: int
    began: int
    ended: int | None = None


class PodState(Struct, frozen=True, kw_only=True):
    """What the ledger knows of a pod that was granted devices."""

    node: str
    generation: int = 0
    """Of the last resize that took effect."""
    ended: bool = False


class Card(Struct, frozen=True, kw_only=True):
    """A card as it was registered, from one moment to another. A change ends one and begins the next."""

    card: str
    node: str
    device_type: str
    """As in annotation keys: ``nvidia``."""
    model: str
    memory_mib: int
    cores: int
    slots: int
    healthy: bool = True
    registers: bool = True
    """Its node registers it; an agent that is away ends that, not the card."""
    began: int
    ended: int | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be given to a pod."""
        return self.healthy and self.registers

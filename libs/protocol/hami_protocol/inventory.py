"""What the registry answers to ``GET /v1/inventory`` and on ``hami.v1.ask.inventory``: every node with its devices, and whether it is alive."""

from __future__ import annotations

from msgspec import Struct

from hami_protocol.devices import RegisteredDevice


class DeviceGroup(Struct, frozen=True, kw_only=True, rename="camel"):
    """A node's devices of one type. They are known for as long as the node exists, alive or not."""

    device_type: str
    alive: bool
    since: str
    """From when on it is alive, or is not: RFC 3339, UTC."""
    devices: tuple[RegisteredDevice, ...]
    generation: int = 0
    third_party: bool = False


class InventoryNode(Struct, frozen=True, kw_only=True, rename="camel"):
    """One node."""

    name: str
    device_groups: tuple[DeviceGroup, ...]


class Inventory(Struct, frozen=True, kw_only=True, rename="camel"):
    """All nodes that have, or had, devices."""

    time: str
    """When this was said: RFC 3339, UTC."""
    nodes: tuple[InventoryNode, ...]

"""Devices that a node's capacity counts, for vendors whose device plugin lists them nowhere."""

from __future__ import annotations

from typing import Final

from hami_protocol import quantities
from hami_protocol.devices import RegisteredDevice
from hami_protocol.errors import QuantityError, RecordError
from hami_protocol.kubernetes import Node

MOST_DEVICES: Final = 1024
"""More are no cards of one node, but a number that was misread."""


def amount(node: Node, resource: str) -> int:
    """How much of ``resource`` the node has; 0 where it has none.

    Raises:
        RecordError: it is no whole number from 0 to 2147483647.
    """
    value = (node.status.capacity or {}).get(resource) if resource else None
    if value is None:
        return 0
    try:
        return quantities.parse_count(value, field=f"status.capacity[{resource}]")
    except QuantityError as exc:
        raise RecordError("node capacity", 0, str(exc)) from exc


def count_devices(node: Node, resource: str, *, parts: int = 1) -> int:
    """How many devices make up the node's capacity of ``resource``, with ``parts`` of it on each.

    Raises:
        RecordError: it cannot be read, or is more than a node has.
    """
    devices = -(-amount(node, resource) // parts)
    if devices > MOST_DEVICES:
        raise RecordError("node capacity", 0, f"status.capacity[{resource}] is {devices} devices; accepted: at most {MOST_DEVICES}")
    return devices


def equal_devices(
    node: Node, count: int, *, infix: str, shares: int, memory_mib: int, cores: int, type_: str
) -> tuple[RegisteredDevice, ...]:
    """So many devices alike, named ``<node>-<infix>-<place>``."""
    return tuple(
        RegisteredDevice(
            uuid=f"{node.metadata.name}-{infix}-{place}",
            index=place,
            shares=shares,
            memory_mib=memory_mib,
            cores=cores,
            type=type_,
        )
        for place in range(count)
    )

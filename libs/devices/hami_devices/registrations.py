"""Where a node says which devices of a vendor it has: in the protocol's annotation, in the vendor's own, or in its capacity alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from hami_devices.vendor import Vendor
from hami_protocol import registration
from hami_protocol.devices import RegisteredDevice
from hami_protocol.kubernetes import Node

Devices = tuple[RegisteredDevice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRecord:
    """What a node says of its devices of one vendor."""

    text: str
    """Differs where it says something else."""
    read: Callable[[], Devices]
    """The devices. Raises ``RecordError`` where nobody can tell."""


def device_record(vendor: Vendor, node: Node) -> DeviceRecord | None:
    """What ``node`` says of its devices of ``vendor``, from the first place that says something; None where none does."""
    annotations = node.metadata.annotations
    if (text := annotations.get(vendor.register_key)) is not None:
        return DeviceRecord(text=text, read=lambda: _registered(vendor, text))
    read_own = vendor.read_own
    if read_own is not None and (own := annotations.get(vendor.own_key)) is not None:
        return DeviceRecord(text=own, read=lambda: _own(read_own(own, node.metadata.name) if own.strip() else ()))
    read_capacity = vendor.read_capacity
    capacity = node.status.capacity
    if read_capacity is None or not capacity:
        return None
    counted = [f"{name}={capacity[name]}" for name in vendor.resources if name in capacity]
    return DeviceRecord(text=",".join(counted), read=lambda: read_capacity(node)) if counted else None


def _own(devices: Devices) -> Devices:
    registration.check_ids(device.uuid for device in devices)
    return devices


def _registered(vendor: Vendor, text: str) -> Devices:
    devices = registration.decode(text)
    if not vendor.registered_cores:
        return devices
    return tuple(msgspec.structs.replace(device, cores=vendor.registered_cores) for device in devices)


def on_node(vendor: Vendor, devices: Devices, node: Node) -> Devices:
    """The devices with what the rest of the node says of them."""
    change = vendor.on_node
    if change is None:
        return devices
    return tuple(change(device, node.metadata.annotations, node.metadata.labels) for device in devices)

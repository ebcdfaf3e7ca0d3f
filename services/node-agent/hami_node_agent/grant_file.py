"""The grant file: what one container was given, as the shim maps it. Bytes in and out; the layout is the C header's (``shim_layout``)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from hami_node_agent import shim_layout as layout

NAME: Final = "grant"
"""File name of the mount, in ``/usr/local/vgpu``."""
_CORE_POLICIES: Final = {
    "default": layout.GRANT_CORE_DEFAULT,
    "force": layout.GRANT_CORE_FORCE,
    "disable": layout.GRANT_CORE_DISABLE,
}


class GrantError(ValueError):
    """A grant that the shim's format cannot carry, or bytes that are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantedDevice:
    """One device of a container."""

    uuid: str
    memory_limit_mib: int
    sm_percent: int
    """0 and 100 limit nothing."""
    whole: bool = False
    """The whole card: nothing is counted, calls pass straight through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What one container was given."""

    pod_uid: str
    container: str
    devices: tuple[GrantedDevice, ...]
    region_path: str = ""
    """Inside the container; empty where ``CUDA_DEVICE_MEMORY_SHARED_CACHE`` names it."""
    core_policy: str = "default"
    priority: int = 1
    oversubscribe: bool = False
    generation: int = 0
    """Even; the file's own count of changes."""


def encode(grant: Grant) -> bytes:
    """The file of ``grant``.

    Raises:
        GrantError: more devices than the format has room for, or a value out of range.
    """
    if not 0 < len(grant.devices) <= layout.GRANT_DEVICES:
        raise GrantError(f"{len(grant.devices)} devices for container {grant.container}; accepted: 1 to {layout.GRANT_DEVICES}")
    data = bytearray(layout.GRANT.size)
    head = {
        "magic": layout.GRANT_MAGIC,
        "version": layout.GRANT_VERSION,
        "size": layout.GRANT.size,
        "device_count": len(grant.devices),
        "flags": layout.GRANT_OVERSUBSCRIBE if grant.oversubscribe else 0,
        "core_policy": _CORE_POLICIES.get(grant.core_policy, layout.GRANT_CORE_DEFAULT),
        "priority": grant.priority,
        "generation": grant.generation,
        "core_switch": 1,
    }
    try:
        for name, value in head.items():
            layout.write_uint(data, layout.GRANT, name, value)
        layout.write_text(data, layout.GRANT, "pod_uid", grant.pod_uid)
        layout.write_text(data, layout.GRANT, "container", grant.container)
        layout.write_text(data, layout.GRANT, "region_path", grant.region_path)
        for place, device in enumerate(grant.devices):
            _encode_device(data, device, layout.GRANT.offset("devices", place))
    except (OverflowError, ValueError) as exc:
        raise GrantError(f"container {grant.container}: {exc}") from exc
    layout.write_uint(data, layout.GRANT, "checksum", _checksum(data))
    return bytes(data)


def _encode_device(data: bytearray, device: GrantedDevice, base: int) -> None:
    limit_bytes = 0 if device.whole else device.memory_limit_mib * 2**20
    if not device.whole and not 0 < limit_bytes <= layout.GRANT_MEMORY_CEILING:
        raise GrantError(f"{device.memory_limit_mib} MiB of {device.uuid}; accepted: 1 to {layout.GRANT_MEMORY_CEILING >> 20}")
    if not 0 <= device.sm_percent <= 100:
        raise GrantError(f"{device.sm_percent} percent of {device.uuid}; accepted: 0 to 100")
    layout.write_text(data, layout.GRANT_DEVICE, "uuid", device.uuid, base=base)
    for name, value in {
        "memory_limit_bytes": limit_bytes,
        "started_with_bytes": limit_bytes,
        "sm_percent": device.sm_percent,
        "flags": layout.GRANT_DEVICE_WHOLE if device.whole else 0,
    }.items():
        layout.write_uint(data, layout.GRANT_DEVICE, name, value, base=base)


def decode(data: bytes) -> Grant:
    """The grant in a file.

    Raises:
        GrantError: the bytes are none that a shim would take.
    """
    if len(data) < layout.GRANT.size:
        raise GrantError(f"{len(data)} bytes; a grant has {layout.GRANT.size}")
    uint = {name: layout.read_uint(data, layout.GRANT, name) for name, member in layout.GRANT.fields.items() if member.kind == "uint"}
    if uint["magic"] != layout.GRANT_MAGIC or uint["version"] != layout.GRANT_VERSION:
        raise GrantError(f"magic {uint['magic']:#x}, version {uint['version']}: not a grant of version {layout.GRANT_VERSION}")
    if uint["checksum"] != _checksum(data) or not 0 < uint["device_count"] <= layout.GRANT_DEVICES:
        raise GrantError("the checksum does not match")
    policies = {number: name for name, number in _CORE_POLICIES.items()}
    return Grant(
        pod_uid=layout.read_text(data, layout.GRANT, "pod_uid"),
        container=layout.read_text(data, layout.GRANT, "container"),
        devices=tuple(_decode_device(data, layout.GRANT.offset("devices", place)) for place in range(uint["device_count"])),
        region_path=layout.read_text(data, layout.GRANT, "region_path"),
        core_policy=policies.get(uint["core_policy"], "default"),
        priority=uint["priority"],
        oversubscribe=bool(uint["flags"] & layout.GRANT_OVERSUBSCRIBE),
        generation=uint["generation"],
    )


def _decode_device(data: bytes, base: int) -> GrantedDevice:
    return GrantedDevice(
        uuid=layout.read_text(data, layout.GRANT_DEVICE, "uuid", base=base),
        memory_limit_mib=layout.read_uint(data, layout.GRANT_DEVICE, "memory_limit_bytes", base=base) >> 20,
        sm_percent=layout.read_uint(data, layout.GRANT_DEVICE, "sm_percent", base=base),
        whole=bool(layout.read_uint(data, layout.GRANT_DEVICE, "flags", base=base) & layout.GRANT_DEVICE_WHOLE),
    )


def _checksum(data: bytes | bytearray) -> int:
    return zlib.crc32(memoryview(data)[layout.GRANT_CHECKED_OFFSET : layout.GRANT_LIVE_OFFSET])

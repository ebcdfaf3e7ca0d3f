"""The grant file: what one container was given, as the shim maps it. Bytes in and out; the layout is the C header's (``shim_layout``)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from hami_node_agent import shim_layout as layout

NAME: Final = "grant"
"""File name of the mount, in ``/usr/local/vgpu``."""
_WORD_BYTES: Final = 8
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
    started_memory_mib: int | None = None
    """The limit when the container started, which is what its environment says; None: as it is now."""
    started_percent: int | None = None
    """The compute share likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What one container was given."""

    pod_uid: str
    container: str
    devices: tuple[GrantedDevice, ...]
    region_path: str = ""
    """Inside the container; empty where ``CUDA_DEVICE_MEMORY_SHARED_CACHE`` names it."""
    region_made: bool = False
    """The region is a file that the agent made and mounted: no process starts without it."""
    core_policy: str = "default"
    priority: int = 1
    oversubscribe: bool = False
    generation: int = 0
    """Even; the file's own count of changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """The words beside a grant, each of which counts as soon as it is written."""

    blocked_until_ns: int = 0
    """No kernel starts before, on ``CLOCK_MONOTONIC``."""
    limited: bool = True
    """The compute share holds now, under the ``default`` policy."""
    overhead_bytes: tuple[int, ...] = ()
    """By device, what the driver uses beyond what the region accounts for."""
    shared_until_ns: int = 0
    """Until then other containers use a device of this one too, on ``CLOCK_MONOTONIC``."""
    charge_permille: tuple[int, ...] = ()
    """By device, how much of a kernel's least time is charged until then (``fairness``)."""


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
        "flags": (layout.GRANT_OVERSUBSCRIBE if grant.oversubscribe else 0) | (layout.GRANT_REGION_MADE if grant.region_made else 0),
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
    started_mib = device.memory_limit_mib if device.started_memory_mib is None else device.started_memory_mib
    for name, value in {
        "memory_limit_bytes": limit_bytes,
        "started_with_bytes": 0 if device.whole else started_mib * 2**20,
        "sm_percent": device.sm_percent,
        "started_with_percent": device.sm_percent if device.started_percent is None else device.started_percent,
        "flags": layout.GRANT_DEVICE_WHOLE if device.whole else 0,
    }.items():
        layout.write_uint(data, layout.GRANT_DEVICE, name, value, base=base)


def decode(data: bytes, *, torn: bool = False) -> Grant:
    """The grant in a file.

    Args:
        data: the file.
        torn: take one that an agent has left half written, too: each of its words is from before or after the change.

    Raises:
        GrantError: the bytes are none that a shim would take.
    """
    if len(data) < layout.GRANT.size:
        raise GrantError(f"{len(data)} bytes; a grant has {layout.GRANT.size}")
    uint = {name: layout.read_uint(data, layout.GRANT, name) for name, member in layout.GRANT.fields.items() if member.kind == "uint"}
    if uint["magic"] != layout.GRANT_MAGIC or uint["version"] != layout.GRANT_VERSION:
        raise GrantError(f"magic {uint['magic']:#x}, version {uint['version']}: not a grant of version {layout.GRANT_VERSION}")
    half_written = torn and uint["generation"] % 2 == 1
    if (uint["checksum"] != _checksum(data) and not half_written) or not 0 < uint["device_count"] <= layout.GRANT_DEVICES:
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
        region_made=bool(uint["flags"] & layout.GRANT_REGION_MADE),
        generation=uint["generation"],
    )


def _decode_device(data: bytes, base: int) -> GrantedDevice:
    uint = {
        name: layout.read_uint(data, layout.GRANT_DEVICE, name, base=base)
        for name, member in layout.GRANT_DEVICE.fields.items()
        if member.kind == "uint"
    }
    started_bytes, started_percent = uint["started_with_bytes"], uint["started_with_percent"]
    return GrantedDevice(
        uuid=layout.read_text(data, layout.GRANT_DEVICE, "uuid", base=base),
        memory_limit_mib=uint["memory_limit_bytes"] >> 20,
        sm_percent=uint["sm_percent"],
        whole=bool(uint["flags"] & layout.GRANT_DEVICE_WHOLE),
        started_memory_mib=None if started_bytes == uint["memory_limit_bytes"] else started_bytes >> 20,
        started_percent=None if started_percent == uint["sm_percent"] else started_percent,
    )


def live(data: bytes) -> Live:
    """The live words of a file."""
    return Live(
        blocked_until_ns=layout.read_uint(data, layout.GRANT, "blocked_until_ns"),
        limited=layout.read_uint(data, layout.GRANT, "core_switch") != 0,
        overhead_bytes=tuple(layout.read_uint(data, layout.GRANT, "overhead_bytes", index=place) for place in range(layout.GRANT_DEVICES)),
        shared_until_ns=layout.read_uint(data, layout.GRANT, "shared_until_ns"),
        charge_permille=tuple(
            layout.read_uint(data, layout.GRANT, "charge_permille", index=place) for place in range(layout.GRANT_DEVICES)
        ),
    )


def same_grant(one: bytes | None, other: bytes) -> bool:
    """Whether both are whole and grant the same, whatever their live words and however often they were changed."""
    if one is None or len(one) != len(other) or layout.read_uint(one, layout.GRANT, "generation") % 2:
        return False
    return one[: layout.GRANT_LIVE_OFFSET] == other[: layout.GRANT_LIVE_OFFSET]


def live_words(old: bytes, live: Live) -> tuple[tuple[int, bytes], ...]:
    """The words of ``old`` that must be written for ``live`` to hold: by offset, 8 bytes each."""
    new = bytearray(old)
    layout.write_uint(new, layout.GRANT, "blocked_until_ns", live.blocked_until_ns)
    layout.write_uint(new, layout.GRANT, "core_switch", int(live.limited))
    for place, overhead_bytes in enumerate(live.overhead_bytes[: layout.GRANT_DEVICES]):
        layout.write_uint(new, layout.GRANT, "overhead_bytes", overhead_bytes, index=place)
    layout.write_uint(new, layout.GRANT, "shared_until_ns", live.shared_until_ns)
    for place, permille in enumerate(live.charge_permille[: layout.GRANT_DEVICES]):
        layout.write_uint(new, layout.GRANT, "charge_permille", permille, index=place)
    return _changed(old, new, layout.GRANT_LIVE_OFFSET + _WORD_BYTES, layout.GRANT.size)


def rewrite_words(old: bytes, wanted: bytes) -> tuple[tuple[int, bytes], ...]:
    """What must be written, in this order, to make ``old``, which processes have mapped, grant what ``wanted`` does; live words stay.

    The order is ``grant.h``'s: the generation odd, each changed word, the checksum, the generation even. Whoever reads a word alone sees the
    old limit or the new one; whoever starts waits for the end. A file that was left half written is made whole. Nothing where nothing changes.
    """
    if same_grant(old, wanted):
        return ()
    place = layout.GRANT.offset("generation")
    odd = layout.read_uint(old, layout.GRANT, "generation") | 1
    return (
        (place, odd.to_bytes(_WORD_BYTES, "little")),
        *_changed(old, wanted, layout.GRANT_CHECKED_OFFSET, layout.GRANT_LIVE_OFFSET),
        *_changed(old, wanted, 0, layout.GRANT_CHECKED_OFFSET),
        (place, ((odd + 1) % 2**64).to_bytes(_WORD_BYTES, "little")),
    )


def _changed(old: bytes | bytearray, new: bytes | bytearray, start: int, end: int) -> tuple[tuple[int, bytes], ...]:
    places = range(start, end, _WORD_BYTES)
    return tuple((place, bytes(new[place : place + _WORD_BYTES])) for place in places if old[place : place + 8] != new[place : place + 8])


def _checksum(data: bytes | bytearray) -> int:
    return zlib.crc32(memoryview(data)[layout.GRANT_CHECKED_OFFSET : layout.GRANT_LIVE_OFFSET])

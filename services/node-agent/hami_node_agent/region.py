"""What a container's processes say they use: the shim's region, ours or the reference's, from its bytes. Pure.

The bytes are the tenant's: anything may stand in them. Nothing is read outside them, every figure has a bound, and what is no region is a
``RegionError``, never a region with nothing in it. Layouts of ours are told apart by magic, version and size in the header; those of the
reference share a magic and are told apart by the file's exact size.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from hami_node_agent import shim_layout as layout

READ_BYTES: Final = 2**21
"""More than any layout has; a larger file is not read further."""
_REFERENCE_MAGIC: Final = 19920718
_BYTES_CEILING: Final = layout.REGION_BYTES_MASK
_PERCENT_CEILING: Final = 100 * layout.REGION_SLOTS
_UUID_BYTES: Final = 40
_COUNTERS: Final = 2**64


class RegionError(ValueError):
    """Bytes that are no region that can be read. The text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A process as the region names it: by its pid in its own namespace and its start time, which together are never used again."""

    pid: int
    started_ticks: int
    namespace: int = 0
    """Inode of its pid namespace; 0 where the layout does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """What all processes of a container use of one device."""

    uuid: str
    used_bytes: int = 0
    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0
    external_bytes: int = 0
    busy_ns: int = 0
    sm_percent: int | None = None
    """As the region says it; None where it has ``busy_ns`` instead."""
    refused: int = 0
    processes: int = 0
    """How many have a context or memory on the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One container's region."""

    devices: tuple[DeviceUse, ...]
    launches: dict[Owner, int] = field(default_factory=dict)
    """By process: a count that changed means that it has started kernels."""
    last_kernel_seconds: int = 0
    """Unix time, in the reference's layouts; else 0."""
    unknown_forms: int = 0
    """How often a function that the shim holds was found in a form, or in a library, that it does not know."""

    def device(self, uuid: str) -> DeviceUse:
        """The use of one device; none where no process has used it."""
        return next((device for device in self.devices if device.uuid == uuid), DeviceUse(uuid=uuid))


def _empty() -> bytes:
    data = bytearray(layout.REGION.size)
    for name, value in {"identity": layout.REGION_MAGIC, "version": layout.REGION_VERSION, "size": layout.REGION.size}.items():
        layout.write_uint(data, layout.REGION, name, value)
    return bytes(data)


EMPTY: Final = _empty()
"""The region of a container that has used nothing yet, as the agent makes it."""


def decode(data: bytes, *, gone: Collection[Owner] = ()) -> Region:
    """The region in ``data``, but for processes that are ``gone``: their slots are cleared only when somebody needs the room.

    Raises:
        RegionError: it is none, or one that this version cannot read.
    """
    if len(data) < 12:
        raise RegionError(f"{len(data)} bytes are too few for a region")
    if int.from_bytes(data[:4], "little") == _REFERENCE_MAGIC:
        return _decode_reference(data)
    if len(data) < layout.REGION.size:
        raise RegionError(f"{len(data)} bytes; a region has {layout.REGION.size}")
    identity = layout.read_uint(data, layout.REGION, "identity")
    if identity == 0:
        return Region(devices=())  # a file of zeros is a valid empty region
    if identity != layout.REGION_MAGIC:
        raise RegionError("this is not a region")
    version = layout.read_uint(data, layout.REGION, "version")
    size = layout.read_uint(data, layout.REGION, "size")
    if version not in (0, layout.REGION_VERSION) or size not in (0, layout.REGION.size):  # set after the identity, one by one
        raise RegionError(f"version {version} with {size} bytes; this agent reads version {layout.REGION_VERSION}")
    return _decode_ours(data, frozenset(gone))


def owners(data: bytes) -> tuple[Owner, ...]:
    """The processes that hold a slot; none where the bytes are no region of ours."""
    if len(data) < layout.REGION.size or layout.read_uint(data, layout.REGION, "identity") != layout.REGION_MAGIC:
        return ()
    return tuple(owner for _, owner in _slots(data))


def _slots(data: bytes) -> list[tuple[int, Owner]]:
    found: list[tuple[int, Owner]] = []
    high_water = min(layout.read_uint(data, layout.REGION, "slot_high_water"), layout.REGION_SLOTS)
    for place in range(high_water):
        base = layout.REGION.offset("slots", place)
        word = layout.read_uint(data, layout.REGION_SLOT, "owner", base=base)
        if word:
            owner = Owner(
                pid=word & layout.REGION_PID_MASK,
                started_ticks=word >> layout.REGION_PID_BITS,
                namespace=layout.read_uint(data, layout.REGION_SLOT, "namespace", base=base),
            )
            found.append((base, owner))
    return found


def _decode_ours(data: bytes, gone: frozenset[Owner]) -> Region:
    count = min(layout.read_uint(data, layout.REGION, "device_count"), layout.REGION_DEVICES)
    slots = [(base, owner) for base, owner in _slots(data) if owner not in gone]
    launches: dict[Owner, int] = {}
    unknown = 0
    for base, owner in slots:
        uses = (base + layout.REGION_SLOT.offset("use", place) for place in range(count))
        launches[owner] = sum(layout.read_uint(data, layout.REGION_USE, "launches", base=use) for use in uses) % _COUNTERS
        unknown += layout.read_uint(data, layout.REGION_SLOT, "unknown", base=base)
    devices = tuple(_our_device(data, place, [base for base, _ in slots]) for place in range(count))
    return Region(devices=tuple(device for device in devices if device.uuid), launches=launches, unknown_forms=min(unknown, _BYTES_CEILING))


def _our_device(data: bytes, place: int, slots: list[int]) -> DeviceUse:
    head = layout.REGION.offset("devices", place)
    uses = [base + layout.REGION_SLOT.offset("use", place) for base in slots]
    held = [_held_bytes(data, use) for use in uses]
    used = min(sum(held), _BYTES_CEILING)
    context = min(sum(layout.read_uint(data, layout.REGION_USE, "context_bytes", base=use) for use in uses), _BYTES_CEILING)
    external = sum(layout.read_uint(data, layout.REGION_SLOT, "external_bytes", base=base, index=place) for base in slots)
    return DeviceUse(
        uuid=layout.read_text(data, layout.REGION_DEVICE, "uuid", base=head),
        used_bytes=used,
        context_bytes=context,
        buffer_bytes=max(used - context, 0),
        external_bytes=min(external, _BYTES_CEILING),
        busy_ns=sum(layout.read_uint(data, layout.REGION_USE, "busy_ns", base=use) for use in uses) % _COUNTERS,
        refused=min(layout.read_uint(data, layout.REGION_DEVICE, "refused", base=head), _BYTES_CEILING),
        processes=sum(bytes_held > 0 or _has_context(data, base, place) for bytes_held, base in zip(held, slots, strict=True)),
    )


def _has_context(data: bytes, slot: int, place: int) -> bool:
    return bool(layout.read_uint(data, layout.REGION_SLOT, "contexts", base=slot) >> place & 1)


def _held_bytes(data: bytes, use: int) -> int:
    """What a process has in use: the bytes of ``used``, less those of a ``spare`` that belongs to it, which bears its tag."""
    used = layout.read_uint(data, layout.REGION_USE, "used", base=use)
    spare = layout.read_uint(data, layout.REGION_USE, "spare", base=use)
    kept = spare & layout.REGION_SPARE_MASK if spare >> layout.REGION_BYTES_BITS == used >> layout.REGION_BYTES_BITS else 0
    return max((used & layout.REGION_BYTES_MASK) - kept, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reference:
    """Where things are in one layout of the reference."""

    count: int
    uuids: int
    slots: int
    slot_size: int
    used: int
    used_size: int
    util: int
    util_size: int
    status: int
    process_count: int
    last_kernel: int | None


_V0: Final = _Reference(
    count=48,
    uuids=56,
    slots=1848,
    slot_size=1168,
    used=8,
    used_size=40,
    util=776,
    util_size=24,
    status=1160,
    process_count=1197880,
    last_kernel=None,
)
_V1: Final = _Reference(
    count=56,
    uuids=64,
    slots=1856,
    slot_size=1960,
    used=8,
    used_size=64,
    util=1160,
    util_size=48,
    status=1928,
    process_count=2008896,
    last_kernel=2008912,
)
_V1_SEQUENCED: Final = _Reference(
    count=88,
    uuids=96,
    slots=1888,
    slot_size=1960,
    used=16,
    used_size=64,
    util=1168,
    util_size=48,
    status=1936,
    process_count=2008928,
    last_kernel=2008944,
)
_BY_SIZE: Final = {1197896: _V0, 2008952: _V1, 2008984: _V1_SEQUENCED}
"""By the layout's size; the reference's shim makes the file one byte longer."""


def _decode_reference(data: bytes) -> Region:
    place = _BY_SIZE.get(len(data)) or _BY_SIZE.get(len(data) - 1)
    if place is None:
        raise RegionError(f"{len(data)} bytes are no size that a region of the reference has")
    if place is not _V0 and int.from_bytes(data[4:8], "little") != 1:
        raise RegionError(f"major version {int.from_bytes(data[4:8], 'little')}; accepted: 1")
    count = min(struct.unpack_from("<Q", data, place.count)[0], 16)
    (process_count,) = struct.unpack_from("<i", data, place.process_count)
    slots = [
        base
        for base in range(place.slots, place.slots + max(0, min(process_count, 1024)) * place.slot_size, place.slot_size)
        if struct.unpack_from("<i", data, base + place.status)[0] != 0
    ]
    last = struct.unpack_from("<q", data, place.last_kernel)[0] if place.last_kernel is not None else 0
    devices = tuple(_reference_device(data, place, number, slots) for number in range(count))
    return Region(devices=tuple(device for device in devices if device.uuid), last_kernel_seconds=max(0, min(last, 2**40)))


def _reference_device(data: bytes, place: _Reference, number: int, slots: list[int]) -> DeviceUse:
    raw = data[place.uuids + 96 * number :][:_UUID_BYTES].split(b"\0", 1)[0]
    sums = [0, 0, 0, 0, 0]
    busy = processes = 0
    for base in slots:
        words = struct.unpack_from("<5Q", data, base + place.used + number * place.used_size)
        sums = [min(total + word, _BYTES_CEILING) for total, word in zip(sums, words, strict=True)]
        busy += struct.unpack_from("<3Q", data, base + place.util + number * place.util_size)[2]
        processes += words[4] > 0
    context, module, buffer, _, used = sums
    return DeviceUse(
        uuid=raw.decode("ascii") if raw.isascii() else "",
        used_bytes=used,
        context_bytes=context,
        module_bytes=module,
        buffer_bytes=buffer,
        sm_percent=min(busy, _PERCENT_CEILING),
        processes=processes,
    )

"""A node's registration annotation: its devices as text (7 or 9 fields each) or as JSON. Encoder and decoder are inverse.

Text: ``uuid,shares,memory,cores,type,numa,health[,index,mode]`` per device, each ended by ``:`` (protocol page, registration). Seven fields
say that every device is shared and that its index is its place; the JSON form is what carries MIG profiles.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from hami_protocol._text import shown, whole
from hami_protocol.devices import SHARED_MODE, MigProfile, Placement, RegisteredDevice
from hami_protocol.errors import RecordError

_RECORD: Final = "device registration"
_SHORT_FIELDS: Final = 7
_LONG_FIELDS: Final = 9
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_NONE: Final = frozenset({"", "null"})
_SEPARATOR: Final = re.compile("[,:;]")
_SEPARATORS: Final = str.maketrans({",": "-", ":": "-", ";": "-"})
_INT32_MAX: Final = 2**31 - 1
_NOTHING_MORE: Final[dict[str, Any]] = {}
"""One for all: a large cluster has a hundred thousand devices of a few models."""


def clean(text: str) -> str:
    """``text`` without the characters that separate fields; a model's name may have them."""
    return text.translate(_SEPARATORS)


def encode_text(devices: Sequence[RegisteredDevice]) -> str:
    """The text form: 7 fields where they say all there is to say, else 9. MIG profiles do not fit into it."""
    short = all(device.mode == SHARED_MODE and device.index == place for place, device in enumerate(devices))
    return "".join(
        f"{d.uuid},{d.shares},{d.memory_mib},{d.cores},{clean(d.type)},{d.numa},{str(d.healthy).lower()}"
        + (":" if short else f",{d.index},{clean(d.mode)}:")
        for d in devices
    )


def encode_json(devices: Iterable[RegisteredDevice]) -> str:
    """The JSON form, keys in the protocol's order, zero values left out."""
    return msgspec.json.encode([_to_json(device) for device in devices]).decode()


def _to_json(device: RegisteredDevice) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": device.uuid,
        "index": device.index,
        "count": device.shares,
        "devmem": device.memory_mib,
        "devcore": device.cores,
        "type": device.type,
        "numa": device.numa,
        "mode": device.mode,
        "migProfiles": [
            {
                "name": profile.name,
                "memoryMB": profile.memory_mib,
                "core": profile.cores,
                "sliceCount": profile.slice_count,
                "placements": [{"start": place.start, "size": place.size} for place in profile.placements],
            }
            for profile in device.mig_profiles
        ],
        "health": device.healthy,
        "custominfo": device.custom_info,
    }
    return {key: value for key, value in fields.items() if value}


def decode(text: str) -> tuple[RegisteredDevice, ...]:
    """The devices that ``text`` registers, in either form. None for an empty text or ``null``, which the reference writes for no devices.

    Raises:
        RecordError: it cannot be read as a whole; one bad device makes the record of its vendor unreadable.
    """
    if text.strip() in _NONE:
        return ()
    devices = _decode_json(text) if text.lstrip().startswith(("[", "{")) else _decode_text(text)
    check_ids((device.uuid for device in devices), text)
    return devices


def check_ids(uuids: Iterable[str], text: str = "") -> None:
    """Refuse ids that an assignment's record cannot carry, and an id that two devices have.

    Args:
        uuids: of one vendor's devices on one node.
        text: the record that lists them, to find the place of an error.

    Raises:
        RecordError: there is such an id.
    """
    seen: set[str] = set()
    for uuid in uuids:
        if (separator := _SEPARATOR.search(uuid)) is not None:
            reason = f"device id {shown(uuid)} has {separator[0]!r}; accepted: an id without ',', ':' and ';'"
            raise RecordError(_RECORD, max(text.find(uuid), 0), reason)
        if not uuid or uuid in seen:
            reason = f"device {shown(uuid)} appears twice" if uuid else "a device has no id"
            raise RecordError(_RECORD, max(text.find(uuid), 0), reason)
        seen.add(uuid)


def _decode_text(text: str) -> tuple[RegisteredDevice, ...]:
    if ":" not in text:
        raise RecordError(_RECORD, 0, f"no ':' in {shown(text)}; accepted: devices, each ended by ':'")
    devices: list[RegisteredDevice] = []
    position = 0
    for segment in text.split(":"):
        if segment:
            devices.append(_decode_segment(segment, position, len(devices)))
        position += len(segment) + 1
    return tuple(devices)


def _decode_segment(segment: str, position: int, place: int) -> RegisteredDevice:
    if "," not in segment:
        raise RecordError(_RECORD, position, f"{shown(segment)} has no fields; accepted: 7 or 9 fields parted by ','")
    fields = segment.split(",")
    if len(fields) not in {_SHORT_FIELDS, _LONG_FIELDS}:
        raise RecordError(_RECORD, position, f"{len(fields)} fields; accepted: {_SHORT_FIELDS} or {_LONG_FIELDS}")
    starts = [position]
    for field in fields:
        starts.append(starts[-1] + len(field) + 1)
    if not fields[0]:
        raise RecordError(_RECORD, position, "the device has no id")
    if fields[6] not in _TRUE | _FALSE:
        raise RecordError(_RECORD, starts[6], f"health is {shown(fields[6])}; accepted: true or false")
    long = len(fields) == _LONG_FIELDS
    return RegisteredDevice(
        uuid=fields[0],
        shares=whole(_RECORD, "count", fields[1], starts[1]),
        memory_mib=whole(_RECORD, "memory", fields[2], starts[2]),
        cores=whole(_RECORD, "cores", fields[3], starts[3]),
        type=sys.intern(fields[4]),
        numa=whole(_RECORD, "numa", fields[5], starts[5], least=-1),
        healthy=fields[6] in _TRUE,
        index=whole(_RECORD, "index", fields[7], starts[7]) if long else place,
        mode=sys.intern(fields[8]) if long else SHARED_MODE,
        custom_info=_NOTHING_MORE,
    )


class _JsonDevice(msgspec.Struct, frozen=True):
    id: str = ""
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    migprofiles: list[dict[str, Any]] | None = None
    health: bool = False
    custominfo: dict[str, Any] | None = None


class _JsonPlacement(msgspec.Struct, frozen=True):
    start: int = 0
    size: int = 0


class _JsonProfile(msgspec.Struct, frozen=True):
    name: str = ""
    memorymb: int = 0
    core: int = 0
    slicecount: int = 0
    placements: list[_JsonPlacement] | None = None


def _decode_json(text: str) -> tuple[RegisteredDevice, ...]:
    try:
        items = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RecordError(_RECORD, 0, f"not JSON: {exc}") from exc
    if not isinstance(items, list):
        raise RecordError(_RECORD, 0, f"JSON of a {type(items).__name__}; accepted: a list of devices")
    return tuple(_from_json(item, place) for place, item in enumerate(items))


def _from_json(item: object, place: int) -> RegisteredDevice:
    try:
        found = msgspec.convert(_lower_keys(item), _JsonDevice)
        profiles = tuple(_profile(profile) for profile in found.migprofiles or ())
    except (msgspec.ValidationError, RecursionError) as exc:
        raise RecordError(_RECORD, 0, f"device {place}: {exc}") from exc
    numbers = {"index": found.index, "count": found.count, "devmem": found.devmem, "devcore": found.devcore}
    for key, number in numbers.items():
        if not 0 <= number <= _INT32_MAX:
            raise RecordError(_RECORD, 0, f"device {place}: {key} is {number}; accepted: a whole number from 0 to {_INT32_MAX}")
    if not found.id:
        raise RecordError(_RECORD, 0, f"device {place} has no id")
    return RegisteredDevice(
        uuid=found.id,
        index=found.index,
        shares=found.count,
        memory_mib=found.devmem,
        cores=found.devcore,
        type=found.type,
        numa=found.numa,
        healthy=found.health,
        mode=found.mode or SHARED_MODE,
        mig_profiles=profiles,
        custom_info=found.custominfo or {},
    )


def _profile(item: dict[str, Any]) -> MigProfile:
    found = msgspec.convert(_lower_keys(item), _JsonProfile)
    for number in (found.memorymb, found.core, found.slicecount, *(n for p in found.placements or () for n in (p.start, p.size))):
        if not 0 <= number <= _INT32_MAX:
            raise msgspec.ValidationError(f"profile {found.name!r}: {number} is out of range")
    return MigProfile(
        name=found.name,
        memory_mib=found.memorymb,
        cores=found.core,
        slice_count=found.slicecount,
        placements=tuple(Placement(start=place.start, size=place.size) for place in found.placements or ()),
    )


def _lower_keys(item: object) -> object:
    """Keys match in any case, as in the reference's reader. Nested objects keep theirs: they are lowered where they are read."""
    if not isinstance(item, dict):
        return item
    lowered = {str(key).lower(): value for key, value in item.items()}
    if isinstance(placements := lowered.get("placements"), list):
        lowered["placements"] = [_lower_keys(place) for place in placements]
    return lowered

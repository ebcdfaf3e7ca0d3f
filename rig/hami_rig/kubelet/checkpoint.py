"""``kubelet_internal_checkpoint``: who holds which device ids, in the JSON that kubelet writes beside its socket. Pure.

A real kubelet reads what is written here, and the other way round: the checksum too is kubelet's, FNV-1a (32 bits) over the text that Go's
spew makes of the structure, with the types of all members and the keys of maps in order.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from hami_rig.kubelet.devices import Held

FILE_NAME = "kubelet_internal_checkpoint"
NO_NUMA_NODE: Final = -1
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


class _Entry(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[int, tuple[str, ...] | None] | None = msgspec.field(name="DeviceIDs")
    """By NUMA node."""
    alloc_resp: str | None


class _Data(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: tuple[_Entry, ...] | None
    registered_devices: dict[str, tuple[str, ...] | None] | None


class _File(Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _Data
    checksum: int


def encode(held: Iterable[Held], registered: Mapping[str, Iterable[str]]) -> bytes:
    """The file's content.

    Args:
        held: what containers hold.
        registered: healthy ids of every resource.
    """
    entries = tuple(
        _Entry(
            pod_uid=each.pod_uid,
            container_name=each.container,
            resource_name=each.resource,
            device_ids={NO_NUMA_NODE: each.ids},
            alloc_resp=base64.b64encode(each.answer).decode(),
        )
        for each in held
    )
    data = _Data(pod_device_entries=entries or None, registered_devices={name: tuple(sorted(ids)) for name, ids in registered.items()})
    return msgspec.json.encode(_File(data=data, checksum=_checksum(data)))


def decode(content: bytes) -> tuple[tuple[Held, ...], tuple[str, ...]]:
    """What a checkpoint holds, and which resources were registered.

    Raises:
        CheckpointError: it is torn, or something else.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
        if _checksum(file.data) != file.checksum:
            raise CheckpointError("the checkpoint's checksum does not match")
        held = tuple(
            Held(
                pod_uid=each.pod_uid,
                container=each.container_name,
                resource=each.resource_name,
                ids=tuple(each_id for ids in (each.device_ids or {}).values() for each_id in ids or ()),
                answer=base64.b64decode(each.alloc_resp or "", validate=True),
            )
            for each in file.data.pod_device_entries or ()
        )
    except (msgspec.DecodeError, binascii.Error) as exc:
        raise CheckpointError(f"the checkpoint cannot be read: {exc}") from exc
    return held, tuple(file.data.registered_devices or ())


def _checksum(data: _Data) -> int:
    """FNV-1a over Go's text of ``data``."""
    value = _FNV_OFFSET
    for byte in _go_text(data).encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


def _go_text(data: _Data) -> str:
    """What spew's ``%#v`` makes of the structure: members with their types, elements without, nothing quoted."""
    entries, registered = data.pod_device_entries, data.registered_devices
    listed = "<nil>" if entries is None else f"[{' '.join(_go_entry(each) for each in entries)}]"
    devices = _go_map(None if registered is None else {name: registered[name] for name in sorted(registered)})
    return (
        "(checkpoint.checkpointData)"
        f"{{PodDeviceEntries:([]checkpoint.PodDevicesEntry){listed} RegisteredDevices:(map[string][]string){devices}}}"
    )


def _go_entry(entry: _Entry) -> str:
    ids = None if entry.device_ids is None else {node: entry.device_ids[node] for node in sorted(entry.device_ids)}
    answer = "<nil>" if entry.alloc_resp is None else f"[{' '.join(map(str, base64.b64decode(entry.alloc_resp, validate=True)))}]"
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name} ResourceName:(string){entry.resource_name} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){_go_map(ids)} AllocResp:([]uint8){answer}}}"
    )


def _go_map(ids: Mapping[str, Iterable[str] | None] | Mapping[int, Iterable[str] | None] | None) -> str:
    if ids is None:
        return "<nil>"
    listed = (f"{key}:{'<nil>' if each is None else '[' + ' '.join(each) + ']'}" for key, each in ids.items())
    return f"map[{' '.join(listed)}]"

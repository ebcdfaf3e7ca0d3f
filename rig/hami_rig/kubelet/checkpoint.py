"""``kubelet_internal_checkpoint``: who holds which device ids, in the JSON that kubelet writes beside its socket. Pure.

Everything is as kubelet writes it but the checksum, which is made from the JSON rather than from Go's own dump of the structure: it tells a
torn file from a whole one, and only another kubelet would compare it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from hami_rig.kubelet.devices import Held

FILE_NAME = "kubelet_internal_checkpoint"
NO_NUMA_NODE = "-1"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


class _Entry(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, tuple[str, ...]] = msgspec.field(name="DeviceIDs")
    alloc_resp: str


class _Data(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: tuple[_Entry, ...] | None
    registered_devices: dict[str, tuple[str, ...]] | None


class _File(Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _Data
    checksum: int


def encode(held: Iterable[Held], registered: Mapping[str, Iterable[str]]) -> bytes:
    """The file's content.

    Args:
        held: what containers hold.
        registered: healthy ids of every resource.
    """
    data: dict[str, Any] = {
        "PodDeviceEntries": [
            {
                "PodUID": each.pod_uid,
                "ContainerName": each.container,
                "ResourceName": each.resource,
                "DeviceIDs": {NO_NUMA_NODE: list(each.ids)},
                "AllocResp": base64.b64encode(each.answer).decode(),
            }
            for each in held
        ],
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in registered.items()},
    }
    return msgspec.json.encode({"Data": data, "Checksum": binascii.crc32(msgspec.json.encode(data))})


def decode(content: bytes) -> tuple[tuple[Held, ...], tuple[str, ...]]:
    """What a checkpoint holds, and which resources were registered.

    Raises:
        CheckpointError: it is torn, or something else.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
        if binascii.crc32(msgspec.json.encode(msgspec.json.decode(content)["Data"])) != file.checksum:
            raise CheckpointError("the checkpoint's checksum does not match")
        held = tuple(
            Held(
                pod_uid=each.pod_uid,
                container=each.container_name,
                resource=each.resource_name,
                ids=tuple(each_id for ids in each.device_ids.values() for each_id in ids),
                answer=base64.b64decode(each.alloc_resp, validate=True),
            )
            for each in file.data.pod_device_entries or ()
        )
    except (msgspec.DecodeError, binascii.Error) as exc:
        raise CheckpointError(f"the checkpoint cannot be read: {exc}") from exc
    return held, tuple(file.data.registered_devices or ())

"""Kubelet's own record of who holds which device: ``kubelet_internal_checkpoint``, beside the plugin's socket. Pure decoding.

Not a public interface: what we do not recognise is ``Unreadable`` with the reason, and the caller falls back. Kubelet writes it before the
pod whose container was allocated goes on, so that PreStartContainer always finds the container that it is for. Its checksum is over Go's
own formatting of the data and cannot be recomputed here; a torn file does not happen (kubelet renames) and would not be JSON.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from hami_node_agent.api import deviceplugin_pb2 as api

FILE_NAME: Final = "kubelet_internal_checkpoint"
MAX_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldDevices:
    """What one container was given of one resource."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    cdi_names: tuple[str, ...] = ()
    """From the plugin's answer to Allocate."""
    environment: tuple[tuple[str, str], ...] = ()
    """From the plugin's answer to Allocate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Who holds what. Entries of pods that are gone stay until kubelet needs the devices."""

    held: tuple[HeldDevices, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """Not a form that we know."""

    reason: str


class _Entry(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)
    """By NUMA node; before Kubernetes 1.20 a plain list."""
    alloc_resp: str | None = None


class _Data(Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: list[_Entry] | None


class _File(Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _Data


_DECODER: Final = msgspec.json.Decoder(_File)


def decode(content: bytes | None) -> Checkpoint | Unreadable:
    """Read the file's ``content``; None where there is no file."""
    if content is None:
        return Unreadable(reason="there is none")
    if len(content) > MAX_BYTES:
        return Unreadable(reason=f"{len(content)} bytes are over the limit of {MAX_BYTES}")
    try:
        entries = _DECODER.decode(content).data.pod_device_entries or []
        return Checkpoint(held=tuple(_held(entry) for entry in entries))
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as exc:
        return Unreadable(reason=f"not in a form that is known: {exc}")
    except (binascii.Error, DecodeError, ValueError) as exc:
        return Unreadable(reason=f"an answer to Allocate in it cannot be read: {exc}")


def _held(entry: _Entry) -> HeldDevices:
    ids = (
        entry.device_ids if isinstance(entry.device_ids, list) else [one for ids in (entry.device_ids or {}).values() for one in ids or ()]
    )
    answer = api.ContainerAllocateResponse()
    if entry.alloc_resp:
        answer.ParseFromString(base64.b64decode(entry.alloc_resp, validate=True))
    return HeldDevices(
        pod_uid=entry.pod_uid,
        container=entry.container_name,
        resource=entry.resource_name,
        device_ids=frozenset(ids),
        cdi_names=tuple(device.name for device in answer.cdi_devices),
        environment=tuple(sorted(answer.envs.items())),
    )

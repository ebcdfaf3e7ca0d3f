"""CDI specs: everything a container needs, complete in itself (CNCF Container Device Interface). Pure; ``driver`` finds what is on the host.

One file per pod, one device per container, named by the answer to its Allocate call. A spec that ``nvidia-ctk cdi generate`` wrote can be
merged in place of what ``driver`` finds. ``NVIDIA_VISIBLE_DEVICES=void`` is always set: an image that says ``all`` would otherwise get every
card from NVIDIA's own runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

KIND: Final = "hami.io/gpu"
VERSION: Final = "0.5.0"
"""The lowest that has ``hostPath`` of device nodes; containerd 1.7 and CRI-O read it."""
FILE_PREFIX: Final = "hami-"
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


class CdiError(ValueError):
    """A spec file that cannot be used, with the reason."""


class _Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all parts of a spec share."""


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node of the container."""

    path: str
    host_path: str = ""
    permissions: str = ""


class Mount(_Part, frozen=True, kw_only=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(_Part, frozen=True, kw_only=True):
    """A program that the runtime starts."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class Edits(_Part, frozen=True, kw_only=True):
    """What is changed on a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


class Device(_Part, frozen=True, kw_only=True):
    """One device of a spec."""

    name: str
    container_edits: Edits


class Spec(_Part, frozen=True, kw_only=True):
    """A spec file."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: Edits = Edits()


class DriverEdits(Struct, frozen=True, kw_only=True):
    """What a container needs of the driver."""

    common: Edits = Edits()
    devices: dict[str, Edits] = {}
    """By UUID."""

    def for_devices(self, uuids: Iterable[str]) -> Edits:
        """What a container with these cards needs."""
        return merged(self.common, *(self.devices.get(uuid, Edits()) for uuid in uuids))


READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
READ_WRITE: Final = ("rw", "nosuid", "nodev", "rbind", "rprivate")
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def qualified(name: str) -> str:
    """The fully qualified name of one of our devices."""
    return f"{KIND}={name}"


def name_of(qualified_name: str) -> str:
    """The device's own name, empty where it is not of our kind."""
    return qualified_name.removeprefix(f"{KIND}=") if qualified_name.startswith(f"{KIND}=") else ""


def file_name(pod_uid: str) -> str:
    """Name of a pod's spec file.

    Raises:
        CdiError: the UID is none that a file may be named after.
    """
    if not _UID.fullmatch(pod_uid):
        raise CdiError(f"pod uid {pod_uid[:80]!r} is not accepted; accepted: letters, digits and dashes")
    return f"{FILE_PREFIX}{pod_uid}.json"


def pod_uid_of(name: str) -> str:
    """The pod of a spec file, empty where it is not one of ours."""
    return name[len(FILE_PREFIX) : -len(".json")] if name.startswith(FILE_PREFIX) and name.endswith(".json") else ""


def merged(*edits: Edits) -> Edits:
    """All edits in order, each once. Of an environment variable the last value stays."""
    env = {one.partition("=")[0]: one for part in edits for one in part.env}
    return Edits(
        env=tuple(env.values()),
        device_nodes=tuple({node.path: node for part in edits for node in part.device_nodes}.values()),
        mounts=tuple({mount.container_path: mount for part in edits for mount in part.mounts}.values()),
        hooks=tuple(dict.fromkeys(hook for part in edits for hook in part.hooks)),
    )


def encode(devices: Mapping[str, Edits]) -> bytes:
    """The spec file of one pod: by the name of each container's answer, what that container gets."""
    named = tuple(Device(name=name, container_edits=_closed(edits)) for name, edits in sorted(devices.items()))
    return _ENCODER.encode(Spec(cdi_version=VERSION, kind=KIND, devices=named)) + b"\n"


def decode(content: bytes) -> Spec:
    """A spec file, JSON or YAML.

    Raises:
        CdiError: it is none.
    """
    try:
        return msgspec.yaml.decode(content, type=Spec)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as exc:
        raise CdiError(f"CDI spec: {exc}") from exc


def driver_edits(spec: Spec, uuids: Mapping[str, int]) -> DriverEdits:
    """What ``nvidia-ctk cdi generate`` found, by UUID; it names devices by UUID, by index or both.

    Args:
        spec: its file.
        uuids: our cards and their indexes.

    Raises:
        CdiError: a card of ours is not in it.
    """
    named = {device.name: device.container_edits for device in spec.devices}
    found: dict[str, Edits] = {}
    for uuid, index in uuids.items():
        edits = named.get(uuid) or named.get(str(index)) or named.get(f"gpu{index}")
        if edits is None:
            raise CdiError(f"CDI spec of kind {spec.kind} has no device {uuid} or {index}; it has {', '.join(sorted(named)) or 'none'}")
        found[uuid] = edits
    return DriverEdits(common=spec.container_edits, devices=found)


def _closed(edits: Edits) -> Edits:
    return merged(edits, Edits(env=("NVIDIA_VISIBLE_DEVICES=void",)))

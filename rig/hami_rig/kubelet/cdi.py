"""CDI specs as a container runtime reads them: which edits the named devices bring, and what a container is given in all. Pure.

A fully qualified name is ``vendor/class=name``. A name that no spec resolves fails the container, as it does in containerd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct


class UnresolvableDevices(Exception):  # noqa: N818 - reads as the condition it names
    """CDI names that no spec resolves; the text is containerd's."""


class _Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a spec."""


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node of the host."""

    path: str
    host_path: str = ""
    permissions: str = ""


class Mount(_Part, frozen=True, kw_only=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] | None = None


class Hook(_Part, frozen=True, kw_only=True):
    """An OCI hook."""

    hook_name: str
    path: str
    args: tuple[str, ...] | None = None


class Edits(_Part, frozen=True, kw_only=True):
    """What a device changes in a container."""

    env: tuple[str, ...] | None = None
    device_nodes: tuple[DeviceNode, ...] | None = None
    mounts: tuple[Mount, ...] | None = None
    hooks: tuple[Hook, ...] | None = None


class Device(_Part, frozen=True, kw_only=True):
    """One named device."""

    name: str
    container_edits: Edits = Edits()


class Spec(_Part, frozen=True, kw_only=True):
    """One spec file, as node-agents write it: what every device of it needs is said at each."""

    kind: str
    devices: tuple[Device, ...] = ()


class Given(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a container is started with."""

    env: dict[str, str]
    mounts: tuple[Mount, ...]
    device_nodes: tuple[DeviceNode, ...]
    hooks: tuple[Hook, ...]
    cdi_devices: tuple[str, ...]


def decode(content: bytes) -> Spec:
    """Read one spec file.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(content, type=Spec)


def resolve(names: Sequence[str], specs: Iterable[Spec]) -> list[Edits]:
    """The edits that ``names`` bring.

    Raises:
        UnresolvableDevices: some names are in no spec.
    """
    by_name = {f"{spec.kind}={device.name}": device.container_edits for spec in specs for device in spec.devices}
    if missing := [name for name in names if name not in by_name]:
        raise UnresolvableDevices(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    return [by_name[name] for name in names]


def merged(
    env: Mapping[str, str], mounts: Sequence[Mount], device_nodes: Sequence[DeviceNode], names: Sequence[str], edits: Iterable[Edits]
) -> Given:
    """What the container is given: its own, then what each edit adds; a later variable of the same name wins."""
    variables, all_mounts, all_nodes = dict(env), list(mounts), list(device_nodes)
    hooks: list[Hook] = []
    for edit in edits:
        for variable in edit.env or ():
            name, _, value = variable.partition("=")
            variables[name] = value
        all_mounts += edit.mounts or ()
        all_nodes += edit.device_nodes or ()
        hooks += edit.hooks or ()
    return Given(env=variables, mounts=tuple(all_mounts), device_nodes=tuple(all_nodes), hooks=tuple(hooks), cdi_devices=tuple(names))

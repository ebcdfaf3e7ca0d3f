"""What a rig consists of: nodes with their cards, as YAML. The only I/O is reading the file.

::

    nodes:
      - prefix: node-             # or `name: worker-a` for a single one
        count: 3
        vendor: nvidia
        devices:                  # what the node's agent reads: see hami_node_agent.profile
          count: 2
          device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}
        labels: {gpu: "on"}
        allocation_mode: envvar   # or cdi; left out, the agent decides
        kubelet_version: v1.34.0
    device_config: {}             # the reference's device-config.yaml, where the cluster differs from its defaults
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from hami_devices.catalog import Catalog
from hami_protocol.devices import AllocationMode
from hami_rig.kubelet.node import NodeDescription

DEFAULT = "default.yaml"
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
MAX_NODES = 10_000


class ProfileError(ValueError):
    """A profile that cannot be used; the text names the field, what was given and what is accepted."""


class NodeGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes."""

    name: str = ""
    prefix: str = ""
    count: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1
    vendor: str = "nvidia"
    devices: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    allocation_mode: AllocationMode | None = None
    kubelet_version: str = "v1.34.0"
    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110


class RigNode(Struct, frozen=True, kw_only=True):
    """One node of the rig."""

    description: NodeDescription
    devices: dict[str, Any]
    """The agent's device profile."""
    allocation_mode: AllocationMode | None

    @property
    def name(self) -> str:
        """The node's name."""
        return self.description.name


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    nodes: tuple[NodeGroup, ...]
    device_config: dict[str, Any] = field(default_factory=dict)

    def expanded(self) -> tuple[RigNode, ...]:
        """Every node.

        Raises:
            ProfileError: a group names its nodes badly or a vendor that is not known, or two nodes have one name.
        """
        known = {vendor.device_type for vendor in Catalog().vendors}
        for place, group in enumerate(self.nodes):
            if not self.device_config and group.vendor not in known:
                raise ProfileError(f"nodes[{place}].vendor: {group.vendor!r} is not accepted; accepted: {', '.join(sorted(known))}")
        nodes = [node for place, group in enumerate(self.nodes) for node in _expand(group, f"nodes[{place}]")]
        names = [node.name for node in nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ProfileError(f"nodes: {twice[0]!r} is given twice; accepted: names that differ")
        return tuple(nodes)


def read(path: Path | None = None) -> Profile:
    """The profile in ``path``, or the default one: three nodes with two cards each.

    Raises:
        ProfileError: it is none.
    """
    try:
        text = path.read_text() if path else (resources.files("hami_rig") / "profiles" / DEFAULT).read_text()
    except OSError as exc:
        raise ProfileError(f"{path}: {exc.strerror}") from exc
    return parse(text, name=str(path or DEFAULT))


def parse(text: str, *, name: str = "profile") -> Profile:
    """The profile in ``text``.

    Raises:
        ProfileError: it is none.
    """
    try:
        profile = msgspec.yaml.decode(text, type=Profile)
    except msgspec.DecodeError as exc:
        raise ProfileError(f"{name}: {exc}") from exc
    profile.expanded()
    return profile


def of_nodes(count: int) -> Profile:
    """The default profile with another number of nodes."""
    default = read()
    group = msgspec.structs.replace(default.nodes[0], count=count)
    return msgspec.structs.replace(default, nodes=(group,))


def _expand(group: NodeGroup, path: str) -> list[RigNode]:
    if bool(group.name) == bool(group.prefix):
        raise ProfileError(f"{path}: accepted: either a name, or a prefix with a count")
    if group.name and group.count != 1:
        raise ProfileError(f"{path}.count: {group.count} is not accepted with a name; accepted: 1, or a prefix in place of the name")
    names = [group.name] if group.name else [f"{group.prefix}{number}" for number in range(1, group.count + 1)]
    for name in names:
        if not _NODE_NAME.fullmatch(name):
            raise ProfileError(f"{path}: {name!r} is no node name; accepted: up to 63 of a-z, 0-9, - and .")
    return [
        RigNode(
            description=NodeDescription(
                name=name,
                labels=group.labels,
                cpu=group.cpu,
                memory=group.memory,
                pods=group.pods,
                kubelet_version=group.kubelet_version,
            ),
            devices={"vendor": group.vendor, **group.devices},
            allocation_mode=group.allocation_mode,
        )
        for name in names
    ]

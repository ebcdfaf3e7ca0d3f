"""Devices as a node registers them, and shares of them as pods hold them. The values behind every record and event; no text forms."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""What the protocol's 32-bit fields hold."""

SHARED_MODE = "hami-core"
"""Mode of a device that is shared by the shim; the default where a record names none."""


class AllocationMode(StrEnum):
    """How a node's agent tells which pod an Allocate call is for (annotation ``hami.io/node-allocation-mode``)."""

    CDI = "cdi"
    ENVVAR = "envvar"


class RegisterFormat(StrEnum):
    """In which form a node's registration annotation is written."""

    TEXT = "text"
    JSON = "json"


class Placement(Struct, frozen=True, kw_only=True, gc=False):
    """Where a MIG instance may lie: memory slices ``start`` to ``start + size``."""

    start: Count
    size: Annotated[int, Meta(ge=1, le=64)]


class MigInstance(Struct, frozen=True, kw_only=True, gc=False):
    """A part of a card that is cut off as MIG instance."""

    profile: str
    placement: Placement


class MigProfile(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """A MIG profile that a card offers."""

    name: str
    memory_mib: Count
    cores: Count
    slice_count: Count
    placements: tuple[Placement, ...] = ()


class RegisteredDevice(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """One physical device of one node, as registered."""

    uuid: str
    index: Count = 0
    shares: Count
    """How many containers may hold a share of it at once (the protocol's *count*)."""
    memory_mib: Count
    cores: Count
    """Percent of compute it offers; 100 for one whole card."""
    type: str
    """Model text, as ``NVIDIA-Tesla V100-PCIE-32GB``."""
    numa: int = 0
    healthy: bool = True
    mode: str = SHARED_MODE
    mig_profiles: tuple[MigProfile, ...] = ()
    custom_info: dict[str, Any] = field(default_factory=dict)
    """What its vendor says of it besides, by the vendor's own names: which devices it is linked with, which profiles it is cut into."""


class DeviceShare(Struct, frozen=True, kw_only=True, gc=False, rename="camel", omit_defaults=True):
    """What one container holds of one device. The annotation's text has the first four; the vendor knows the rest from the pod."""

    uuid: str
    type: str
    """The vendor's common word, as ``NVIDIA``; the model, where the vendor writes that."""
    memory_mib: Count
    cores: Count
    cores_percent: Count = 0
    """Of the card, as it was asked, where cores are booked in the card's own units; 0 where they are not."""
    slots: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    """How many of the device's shares it takes."""
    mark: str = ""
    """How it is used, in the vendor's own words, where others on the device must know."""
    instance: MigInstance | None = None
    """Which part of the card it is, where the card is cut into MIG instances."""


class ContainerKind(StrEnum):
    """Which part of a pod a container is. A sidecar is an init container with ``restartPolicy: Always``."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class ContainerShares(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """What one container holds, empty where it holds nothing of this vendor."""

    container: str
    kind: ContainerKind
    shares: tuple[DeviceShare, ...] = ()


class VendorAssignment(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """What a pod holds of one vendor: an entry per container, init containers (sidecars among them) first, in the pod's order."""

    vendor: str
    """The vendor's common word, as ``NVIDIA``."""
    containers: tuple[ContainerShares, ...]


class PodRef(Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """Which pod. Only the UID tells a pod from its namesake."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

"""What ``POST /v1/resize`` asks and answers: other sizes for the shares of a running pod, on the devices that it has."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from hami_protocol.devices import PodRef, VendorAssignment

LARGEST_MIB: Final = 2**24


class ResizeRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The new size of each of a container's shares; None leaves it unchanged."""

    namespace: str
    pod: str
    container: str = ""
    """Empty: the only one that has a share."""
    memory_mib: Annotated[int, Meta(ge=1, le=LARGEST_MIB)] | None = None
    cores: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Percent of each device's compute; 0 limits nothing."""


class ResizeState(StrEnum):
    """Progress of a resize."""

    APPLIED = "applied"
    WAITING = "waiting"
    """Booked and published; the node's agent has not answered yet."""


class ResizeAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """A resize that was granted."""

    pod: PodRef
    node: str
    generation: int
    state: ResizeState
    assignments: tuple[VendorAssignment, ...]

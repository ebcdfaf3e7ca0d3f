"""Why a container is not given what kubelet asks for. A refusal is a value; the texts reach kubelet, pod events and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hami_protocol.devices import PodRef


class RefusalKind(StrEnum):
    """The short, stable part, for metrics and tests."""

    EMPTY_REQUEST = "empty request"
    UNKNOWN_POD = "unknown pod"
    AMBIGUOUS = "ambiguous"
    NO_GRANT = "no grant"
    GRANT_DIFFERS = "grant differs"
    COUNT_DIFFERS = "device number not matched"
    UNREADABLE = "unreadable record"
    KUBELET_DISAGREES = "kubelet's records disagree"
    SWAPPED = "answered for another pod"
    NOT_READY = "agent not ready"
    HOST = "host refused"


FINAL = frozenset({RefusalKind.GRANT_DIFFERS, RefusalKind.COUNT_DIFFERS, RefusalKind.UNREADABLE, RefusalKind.SWAPPED})
"""Trying again cannot help: the pod has failed. All others may come right, and kubelet tries again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why not, and whose call it was where that is certain."""

    kind: RefusalKind
    reason: str
    pod: PodRef | None = None

    @property
    def final(self) -> bool:
        """Whether trying again cannot help."""
        return self.kind in FINAL

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class Refused(Exception):  # noqa: N818 - reads as what it carries
    """Carries a refusal to the edge, where the gRPC shell makes a status of it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal

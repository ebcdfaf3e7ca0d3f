"""A cluster that fails on demand, in front of one in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hami_protocol.devices import PodRef
from hami_runtime.kube import cluster as api
from hami_runtime.kube.memory import MemoryCluster


@dataclass
class Fault:
    """How one call fails: before it takes effect, or after."""

    error: api.ClusterError
    applied: bool = False
    delay_seconds: float = 0.0


def lost_answer() -> Fault:
    """The write took effect; its answer was lost."""
    return Fault(api.Unavailable("the connection was lost", maybe_applied=True), applied=True)


def lost_request() -> Fault:
    """The write did not take effect, and nobody can tell."""
    return Fault(api.Unavailable("the connection was lost", maybe_applied=True))


def overloaded() -> Fault:
    """A 503."""
    return Fault(api.Unavailable("overloaded", code=503))


def conflict() -> Fault:
    """A 409."""
    return Fault(api.Conflict("the object has been modified", code=409, reason="Conflict"))


@dataclass
class FaultyCluster(MemoryCluster):
    """Binds and patches of conditions fail as ``faults`` say, in order; then all is well again."""

    store: Any
    faults: deque[Fault] = field(default_factory=deque)
    hold: asyncio.Event | None = None
    """While it is there and not set, a bind waits before it takes effect."""

    def __post_init__(self) -> None:
        super().__init__(self.store)

    __hash__ = object.__hash__

    async def bind(
        self, pod: PodRef, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str], resource_version: str = ""
    ) -> None:
        if self.hold is not None:
            await self.hold.wait()
        fault = self.faults.popleft() if self.faults else None
        if fault is None or fault.applied:
            await super().bind(pod, node, annotations=annotations, labels=labels, resource_version=resource_version)
        if fault is not None:
            await asyncio.sleep(fault.delay_seconds)
            raise fault.error

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[api.Body]) -> None:
        if self.faults:
            raise self.faults.popleft().error
        await super().patch_conditions(pod, conditions)

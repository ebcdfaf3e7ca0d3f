"""A cluster that fails on demand, in front of one in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    late_seconds: float | None = None
    """It takes effect after all, so long after the error was told."""


def lost_answer() -> Fault:
    """The write took effect; its answer was lost."""
    return Fault(api.Unavailable("the connection was lost", maybe_applied=True), applied=True)


def lost_request() -> Fault:
    """The write did not take effect, and nobody can tell."""
    return Fault(api.Unavailable("the connection was lost", maybe_applied=True))


def late(seconds: float) -> Fault:
    """The request takes effect long after everybody has given it up."""
    return Fault(api.Unavailable("timed out", maybe_applied=True), late_seconds=seconds)


def overloaded() -> Fault:
    """A 503."""
    return Fault(api.Unavailable("overloaded", code=503))


def conflict() -> Fault:
    """A 409."""
    return Fault(api.Conflict("the object has been modified", code=409, reason="Conflict"))


@dataclass
class FaultyCluster(MemoryCluster):
    """Binds, patches of conditions and evictions fail as ``faults`` say, in order; then all is well again."""

    store: Any
    faults: deque[Fault] = field(default_factory=deque)
    hold: asyncio.Event | None = None
    """While it is there and not set, a bind waits before it takes effect."""
    on_their_way: set[asyncio.Task[None]] = field(default_factory=set)

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
            if fault.late_seconds is not None:
                self.on_their_way.add(asyncio.create_task(self._later(fault.late_seconds, pod, node, annotations, labels)))
            raise fault.error

    async def _later(self, seconds: float, pod: PodRef, node: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        await asyncio.sleep(seconds)
        with suppress(api.ClusterError):
            await super().bind(pod, node, annotations=annotations, labels=labels)

    async def patch_conditions(self, pod: PodRef, conditions: Sequence[api.Body]) -> None:
        if self.faults:
            raise self.faults.popleft().error
        await super().patch_conditions(pod, conditions)

    async def evict(self, pod: PodRef) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault is None or fault.applied:
            await super().evict(pod)
        if fault is not None:
            raise fault.error

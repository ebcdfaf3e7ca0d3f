"""Waits for groups of pods: reads how large they must be, and lets none of a group be bound before enough of it have come to bind.

Who comes early waits, 25 s from the first on: below kube-scheduler's timeout. Then all who wait are told so, and what they hold is released.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from hami_protocol.kubernetes import Pod
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import cluster as api
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.gangs import Gangs, Group, GroupKind, annotated_size

log = structlog.get_logger()

REREAD_SECONDS = 60.0
RETRY_SECONDS = 1.0
REMEMBERED = 10_000
_KINDS = {GroupKind.COSCHEDULING: api.POD_GROUPS, GroupKind.VOLCANO: api.VOLCANO_POD_GROUPS}


@dataclass(slots=True)
class _Gate:
    """Members of one group who wait to be bound."""

    until: float
    opened: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Gathering:
    """The groups on their way."""

    def __init__(self, gangs: Gangs, cluster: api.Cluster, clock: Clock, *, wait_seconds: float, telemetry: Telemetry = OFF) -> None:
        self._gangs = gangs
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("pod groups", clock, telemetry)
        self._wait_seconds = wait_seconds
        self._sizes: dict[Group, tuple[float, int | None]] = {}
        """When it was read, and what PodGroup says; None where there is no PodGroup."""
        self._unread: dict[Group, None] = {}
        self._bell = asyncio.Event()
        self._gates: dict[Group, _Gate] = {}

    def size(self, group: Group, pod: Pod) -> int | None:
        """How many of ``group`` must be there at least: 1 where nobody says. None while its PodGroup has not been read.

        Raises:
            RequestError: the pod's annotation says it, and cannot be read.
        """
        known = self._sizes.get(group)
        if group.kind in _KINDS and (known is None or self._clock.monotonic() - known[0] > REREAD_SECONDS):
            self._unread[group] = None
            self._bell.set()
            if known is None:
                return None
        said = known[1] if known is not None else None
        return said if said is not None else annotated_size(pod) or 1

    async def run(self, stop: asyncio.Event) -> None:
        """Read PodGroups that somebody has asked about, until ``stop``."""
        await run_until(stop, self._read_for_ever())

    async def _read_for_ever(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            for group in tuple(self._unread):
                with self._isolation.item(f"group {group}"):
                    await self._read(group)
            if self._unread:
                await asyncio.sleep(RETRY_SECONDS)
                self._bell.set()

    async def _read(self, group: Group) -> None:
        """Ask the API server how large the group must be; it stays unread where there is no answer."""
        minimum: int | None = None
        try:
            minimum = (await self._cluster.get(_KINDS[group.kind], group.name, namespace=group.namespace)).spec.min_member
        except api.ClusterError as exc:
            if exc.code != 404:
                log.warning("pod group not read", group=str(group), error=str(exc))
                return
        self._unread.pop(group, None)
        self._sizes.pop(group, None)
        self._sizes[group] = (self._clock.monotonic(), minimum)
        if len(self._sizes) > REMEMBERED:
            del self._sizes[next(iter(self._sizes))]

    async def arrive(self, group: Group, size: int) -> str:
        """A member, whose room is assumed, has come to be bound: return when enough of the group have; an error text where they have not in time."""
        gate = self._gates.get(group)
        if self._gangs.firm(group) >= size:
            if gate is not None:
                self._open(group, gate, "")
            return ""
        if gate is None:
            gate = self._gates[group] = _Gate(until=self._clock.monotonic() + self._wait_seconds)
            log.info("pod group gathers", group=str(group), size=size)
        await asyncio.wait((gate.opened,), timeout=max(0.0, gate.until - self._clock.monotonic()))
        if not gate.opened.done():
            came = self._gangs.firm(group)
            self._open(group, gate, f"pod group {group.name}: {came} of {size} members came to be bound in {self._wait_seconds:g} s")
        return gate.opened.result()

    def _open(self, group: Group, gate: _Gate, error: str) -> None:
        self._gates.pop(group, None)
        gate.opened.set_result(error)
        if error:
            log.warning("pod group given up", group=str(group), reason=error)

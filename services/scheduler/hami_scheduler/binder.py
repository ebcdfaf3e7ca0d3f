"""Carries out bind: charge, lock where the node needs it, ask the node's agent, one Binding, then the event.

Any failure undoes exactly what was done.

A Binding whose fate is not known at the deadline keeps its charge; it is looked up until the cluster says, and while it is open the pod gets no other
node. Invariant: room is given to another pod only after the Binding that used it can no longer take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from hami_devices.catalog import Catalog
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.events import PodAllocating
from hami_protocol.kubernetes import Pod
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import cluster as api
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler import allocations, binding
from hami_scheduler.agents import Agents
from hami_scheduler.binding import Binding, Fate, Outcome
from hami_scheduler.locks import Locks
from hami_scheduler.nodelock import LockUnavailable
from hami_scheduler.picture import Picture
from hami_scheduler.verdicts import NORMAL, WARNING, Publish, Record

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often an open Binding is looked up."""
UNSHOWN_SECONDS = 5.0
"""How long the watch may take to show a pod that was bound, before the API server is asked."""
OPEN_SECONDS = 60.0
"""A Binding that was sent so long ago and has not taken effect never will: no API server keeps a request that long."""


@dataclass(slots=True)
class _Open:
    """A Binding that may still take effect."""

    binding: Binding
    sent_seconds: float


class Binder:
    """Binds pods that have room reserved."""

    def __init__(
        self,
        picture: Picture,
        cluster: api.Cluster,
        clock: Clock,
        *,
        locks: Locks,
        agents: Agents,
        publish: Publish,
        record: Record,
        leading: Callable[[], bool],
        telemetry: Telemetry = OFF,
    ) -> None:
        self._picture = picture
        self._catalog: Catalog = picture.catalog
        self._cluster = cluster
        self._clock = clock
        self._isolation = Isolation("bindings", clock, telemetry)
        self._locks = locks
        self._agents = agents
        self._publish = publish
        self._record = record
        self._leading = leading
        self._open: dict[str, _Open] = {}
        self._unshown: dict[str, _Open] = {}
        """Bound by us, and not shown by the watch: it may end without the watch ever showing that either."""
        self._opened = asyncio.Event()

    def open_node(self, uid: str) -> str | None:
        """The node of a Binding that may still take effect; the pod must get this node and no other."""
        opened = self._open.get(uid)
        return None if opened is None else opened.binding.node

    async def bind(self, pod: Pod, ref: PodRef, node: str, assignments: tuple[VendorAssignment, ...], *, deadline: float) -> str:
        """Bind ``pod``, whose room is assumed, to ``node``; return an error text, empty when it is bound.

        Args:
            pod: as it was last seen.
            ref: which pod.
            node: where to.
            assignments: what it gets; empty for a pod that asks for nothing.
            deadline: on the monotonic clock.
        """
        uid = ref.uid
        opened = self._open.get(uid)
        if opened is not None:
            written = opened.binding
        else:
            try:
                for lock in self._picture.inventory.locks(node, assignments):
                    await self._locks.acquire(node, ref, key=lock, deadline=deadline)
            except LockUnavailable as exc:
                return self._undo(ref, node, str(exc))
            if held := await self._agents.obstacle(node, [given.vendor for given in assignments]):
                return self._undo(ref, node, held)
            if assignments and self._picture.state.entry(uid) is None:  # deleted while it stood in line
                self._locks.release(node, ref)
                return f"pod {ref} has gone meanwhile"
            time_seconds = int(self._clock.utc().timestamp())
            devices = {state.device.uuid: state.device for state in self._picture.state.devices(node)} if assignments else {}
            written = binding.compose(pod, ref, node, assignments, catalog=self._catalog, devices=devices, time_seconds=time_seconds)
        if not self._leading():
            return self._undo(ref, node, "this replica leads no longer")
        outcome = await binding.write(
            self._cluster, self._clock, written, deadline=deadline, may=self._leading, uncertain=opened is not None
        )
        return self._settle(written, outcome)

    async def run(self, stop: asyncio.Event) -> None:
        """Look up open Bindings until their fate is known, and bound pods until the watch has shown them, until ``stop``."""
        while not await sleep_until(stop, LOOK_SECONDS):
            for bound in list(self._unshown.values()):
                with self._isolation.item(f"bound pod {bound.binding.pod}"):
                    await self._look_for(bound)
            for opened in list(self._open.values()):
                with self._isolation.item(f"open binding of pod {opened.binding.pod}"):
                    await self._look_up(opened)

    async def _look_up(self, opened: _Open) -> None:
        outcome = await binding.look_up(self._cluster, opened.binding)
        unborn = outcome.fate is Fate.UNKNOWN and not outcome.error
        if unborn and self._clock.monotonic() - opened.sent_seconds > OPEN_SECONDS:
            outcome = Outcome(fate=Fate.REFUSED, error="the Binding did not take effect")
        if outcome.fate is not Fate.UNKNOWN and self._open.get(opened.binding.pod.uid) is opened:
            self._settle(opened.binding, outcome)

    async def _look_for(self, bound: _Open) -> None:
        uid = bound.binding.pod.uid
        if self._picture.state.entry(uid) is None or self._picture.pods.charged(uid):
            del self._unshown[uid]
        elif self._clock.monotonic() - bound.sent_seconds > UNSHOWN_SECONDS:
            outcome = await binding.look_up(self._cluster, bound.binding)
            bound.sent_seconds = self._clock.monotonic()
            if outcome.fate is Fate.REFUSED and not self._picture.pods.charged(uid):
                self._picture.vanished(bound.binding.pod)

    def _settle(self, written: Binding, outcome: Outcome) -> str:
        ref, node = written.pod, written.node
        match outcome.fate:
            case Fate.BOUND:
                self._open.pop(ref.uid, None)
                self._bound(written)
                return ""
            case Fate.REFUSED:
                self._open.pop(ref.uid, None)
                return self._undo(ref, node, outcome.error)  # bound by another hand, it is charged when the watch shows it
            case Fate.UNKNOWN:
                self._open[ref.uid] = _Open(written, self._clock.monotonic())
                log.warning("binding open", pod=str(ref), node=node, error=outcome.error)
                return f"whether pod {ref} is bound to {node} is not known yet: {outcome.error}"

    def _bound(self, written: Binding) -> None:
        ref, node = written.pod, written.node
        picture = self._picture
        reservation = picture.reservations.pop(ref.uid)
        picture.waking.forget(ref.uid)
        self._record(ref, NORMAL, "BindingSucceed", f"Successfully binding node [{node}] to {ref}")
        log.info("pod bound", pod=str(ref), node=node)
        if not written.assignments or picture.state.entry(ref.uid) is None:  # the watch has shown its end already
            return
        picture.state.confirm(ref.uid)
        self._unshown[ref.uid] = _Open(written, self._clock.monotonic())
        event = PodAllocating(pod=ref, node=node, assignments=written.assignments, bind_time_seconds=written.time_seconds)
        if (reservation is None or reservation.unsaid) and not picture.grants.begins(ref.uid):
            before = allocations.assigned(event)
            self._publish(before.event, before.event_id)
        missing = allocations.allocating(event)
        self._publish(missing.event, missing.event_id)

    def _undo(self, ref: PodRef, node: str, error: str) -> str:
        self._picture.give_up(ref, error)
        self._locks.release(node, ref)
        self._record(ref, WARNING, "BindingFailed", error)
        log.warning("pod not bound", pod=str(ref), node=node, error=error)
        return error

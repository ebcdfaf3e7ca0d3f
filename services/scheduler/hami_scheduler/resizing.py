"""Other sizes for a running pod's shares, on the cards that it has. Booking equals limit at every step.

A share that grows is charged before its node's agent is told, one that shrinks after the agent has said that the smaller limit holds. In between the
larger of both is charged. What was wished and what the agents have answered is in the log, from which a restarted scheduler takes it up again; the
pod's annotation is written by the registry once the agent has carried the resize out.

``wished``, ``shortfall`` and ``Resizes`` decide; ``Resizing`` carries out.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.fit import WHOLE_CORES
from hami_devices.model import Charge, DeviceState
from hami_devices.quota import CoreUnits, totals_of
from hami_protocol import keys
from hami_protocol.devices import ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.events import AllocationEvent, Event, PodReleased, ShareResizeApplied, ShareResized, ShareResizeRefused
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_protocol.resize import ResizeAnswer, ResizeRequest, ResizeState
from hami_runtime.clock import Clock
from hami_scheduler.placement import ClusterState, Entry, Phase

ANSWER_SECONDS: Final = 10.0
"""How long to wait for the agent before the wish is answered with ``WAITING``."""
Assignments = tuple[VendorAssignment, ...]


class ResizeRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The wish is not granted; everything is as it was. The text says why, with figures."""


# What is wished


def wished(held: Assignments, wish: ResizeRequest, resizable: Callable[[str], bool]) -> Assignments:
    """``held`` with the sizes of ``wish``.

    Args:
        held: what the pod holds.
        wish: what it is to hold.
        resizable: whether a vendor's shares can be resized, by its name.

    Raises:
        ResizeRefused: there is no such container, or it has nothing that can be resized.
    """
    if wish.memory_mib is None and wish.cores is None:
        raise ResizeRefused("nothing was asked for; accepted: memoryMib, cores, or both")
    having = [one.container for given in held if resizable(given.vendor) for one in given.containers if one.shares]
    if not having:
        raise ResizeRefused("the pod has no share that can be resized")
    if not wish.container and len(having) > 1:
        raise ResizeRefused(f"several containers have shares; name one of {', '.join(having)}")
    name = wish.container or having[0]
    if name not in having:
        raise ResizeRefused(f"container {name[:80]!r} has no share that can be resized; accepted: {', '.join(having)}")
    return tuple(
        replace(given, containers=tuple(_sized(one, wish) if one.container == name else one for one in given.containers))
        if resizable(given.vendor)
        else given
        for given in held
    )


def _sized(container: ContainerShares, wish: ResizeRequest) -> ContainerShares:
    if any(share.instance is not None for share in container.shares):
        raise ResizeRefused(f"container {container.container} has MIG instances; their size is the card's own")
    return replace(
        container,
        shares=tuple(
            replace(
                share,
                memory_mib=share.memory_mib if wish.memory_mib is None else wish.memory_mib,
                cores=share.cores if wish.cores is None else wish.cores,
            )
            for share in container.shares
        ),
    )


def larger(one: Assignments, other: Assignments) -> Assignments:
    """Of each share the larger size; ``other`` where the two are not of the same devices."""
    if _shape(one) != _shape(other):
        return other
    return tuple(
        replace(
            theirs,
            containers=tuple(
                replace(b, shares=tuple(_larger_share(x, y) for x, y in zip(a.shares, b.shares, strict=True)))
                for a, b in zip(mine.containers, theirs.containers, strict=True)
            ),
        )
        for mine, theirs in zip(one, other, strict=True)
    )


def _larger_share(one: DeviceShare, other: DeviceShare) -> DeviceShare:
    return replace(other, memory_mib=max(one.memory_mib, other.memory_mib), cores=max(one.cores, other.cores))


def _shape(assignments: Assignments) -> object:
    return [(one.vendor, [(c.container, [share.uuid for share in c.shares]) for c in one.containers]) for one in assignments]


def shortfall(devices: Iterable[DeviceState], before: Iterable[Charge], after: Iterable[Charge]) -> str:
    """Why the pod's cards have no room for ``after``, with figures; empty where they have. What shrinks always fits.

    Args:
        devices: the node's, without what the pod holds itself.
        before: what it is charged now.
        after: what it would be charged.
    """
    states = {(state.vendor, state.device.uuid): state for state in devices}
    held = {(charge.vendor, charge.uuid): charge for charge in before}
    for charge in after:
        state, now = states.get((charge.vendor, charge.uuid)), held.get((charge.vendor, charge.uuid))
        if now is not None and charge.memory_mib <= now.memory_mib and charge.cores <= now.cores:
            continue
        if state is None:
            return f"device {charge.uuid} is not registered any more"
        if not state.device.healthy:
            return f"device {charge.uuid} is not healthy"
        free_mib = state.device.memory_mib - state.used_memory_mib
        if charge.memory_mib > free_mib:
            return f"device {charge.uuid} has {free_mib} MiB for this pod, {charge.memory_mib} MiB were asked for"
        free_cores = state.device.cores - state.used_cores
        if charge.cores > free_cores:
            return f"device {charge.uuid} has {free_cores} % for this pod, {charge.cores} % were asked for"
        if charge.cores == WHOLE_CORES == state.device.cores and state.used_shares:
            return f"device {charge.uuid} is shared with others; all of its cores go only to a pod that has it alone"
    return ""


# What is under way


def event_id(resize: ShareResized) -> str:
    """The id of a wish that was granted."""
    return f"{resize.pod.uid}/resized/{resize.generation}"


class _Resize(Struct, kw_only=True):
    event: ShareResized
    pending: bool = True
    logged: bool = False
    """The log has it, so that its agent will answer."""
    applied: Assignments | None = None
    """What the last resize that was carried out has made of the pod's shares."""

    @property
    def generation(self) -> int:
        return self.event.generation

    @property
    def wanted(self) -> Assignments:
        return self.event.assignments


class Resizes:
    """By UID, the resizes that the log tells of."""

    def __init__(self) -> None:
        self._resizes: dict[str, _Resize] = {}
        self.answered: Callable[[str, int, str], None] = lambda _uid, _generation, _refusal: None
        """Told of each outcome: UID, generation and the refusal, empty where it was carried out."""

    def observe(self, event: AllocationEvent) -> bool:
        """Take one event of the log, in its order; whether it may have changed what a pod is charged. Seeing it twice changes nothing."""
        uid = event.pod.uid
        known = self._resizes.get(uid)
        match event:
            case ShareResized():
                if known is not None and event.generation <= known.generation:
                    return False
                applied = known.applied if known is not None else None
                self._resizes[uid] = _Resize(event=event, applied=applied)
                return True
            case ShareResizeApplied() | ShareResizeRefused():
                if known is None or event.generation != known.generation or not known.pending:
                    return False
                known.pending = False
                refusal = event.reason if isinstance(event, ShareResizeRefused) else ""
                if not refusal:
                    known.applied = known.wanted  # the scheduler's own word, not what an agent makes of it
                self.answered(uid, event.generation, refusal)
                return True
            case PodReleased():
                return self._resizes.pop(uid, None) is not None
            case _:
                return False

    def charged(self, uid: str, annotated: Assignments) -> Assignments:
        """What a pod with these annotations is to be charged."""
        known = self._resizes.get(uid)
        if known is None:
            return annotated
        holds = annotated if known.applied is None else known.applied
        return larger(holds, known.wanted) if known.pending else holds

    def pending(self, uid: str) -> bool:
        """Whether an agent has still to answer."""
        known = self._resizes.get(uid)
        return known is not None and known.pending

    def mark_logged(self, resize: ShareResized) -> None:
        """The log has ``resize``."""
        known = self._resizes.get(resize.pod.uid)
        if known is not None and known.generation == resize.generation:
            known.logged = True

    def unanswered(self, *, logged: bool) -> list[ShareResized]:
        """What no agent has answered; with ``logged`` also what the log has, or had: an agent that has answered it answers again."""
        return [known.event for known in self._resizes.values() if known.pending and (logged or not known.logged)]

    def generation_after(self, uid: str, at_least: int) -> int:
        """A generation that is higher than all that the pod has had."""
        known = self._resizes.get(uid)
        return max(at_least, known.generation + 1 if known is not None else 1)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._resizes.pop(uid, None)


class Resizing:
    """Grants wishes, or refuses them."""

    def __init__(
        self,
        state: ClusterState,
        resizes: Resizes,
        catalog: Catalog,
        clock: Clock,
        *,
        take: Callable[[AllocationEvent], None],
        publish: Callable[[Event, str], None],
        quota: Callable[[Entry], str | None],
    ) -> None:
        """Wishes are judged by ``state``; a wish that is granted is first ``take``n, then published. ``quota`` says what a namespace may not have."""
        self._state = state
        self._resizes = resizes
        self._catalog = catalog
        self._clock = clock
        self._take = take
        self._publish = publish
        self._quota = quota
        self._waiting: dict[tuple[str, int], asyncio.Future[str]] = {}
        resizes.answered = self._answered

    async def resize(self, pod: Pod, wish: ResizeRequest) -> ResizeAnswer:
        """Give the pod's shares other sizes, and wait for its node's agent.

        Raises:
            ResizeRefused: it cannot be, or the agent has refused; everything is as it was.
        """
        event = self._granted(pod, wish)
        waiting = self._waiting[event.pod.uid, event.generation] = asyncio.get_running_loop().create_future()
        try:
            self._take(event)  # charged before anybody hears of it
            self._publish(event, event_id(event))
            done, _ = await asyncio.wait((waiting,), timeout=ANSWER_SECONDS)
        finally:
            del self._waiting[event.pod.uid, event.generation]
        if done and waiting.result():
            raise ResizeRefused(f"node {event.node}: {waiting.result()}")
        return ResizeAnswer(
            pod=event.pod,
            node=event.node,
            generation=event.generation,
            state=ResizeState.APPLIED if done else ResizeState.WAITING,
            assignments=event.assignments,
        )

    def _granted(self, pod: Pod, wish: ResizeRequest) -> ShareResized:
        """The wish as an event. No await between judging and charging."""
        ref = pod_ref(pod)
        entry = self._state.entry(ref.uid)
        if entry is None or entry.phase not in {Phase.BOUND, Phase.SHRUNK} or is_terminal(pod):
            raise ResizeRefused(f"pod {ref} is not running")
        if pod.metadata.annotations.get(keys.BIND_PHASE) != "success":
            raise ResizeRefused(f"pod {ref} has not been given its devices yet")
        if self._resizes.pending(ref.uid):
            raise ResizeRefused(f"a resize of pod {ref} is under way; the agent of node {entry.node} has not answered yet")
        wanted = wished(entry.assignments, wish, lambda name: self._catalog.vendor(name).shim)
        if wanted == entry.assignments:
            raise ResizeRefused(f"pod {ref} has these sizes already")
        self._judge(entry, wanted)
        generation = self._resizes.generation_after(ref.uid, int(self._clock.utc().timestamp()))
        return ShareResized(pod=ref, node=entry.node, assignments=wanted, generation=generation)

    def _judge(self, entry: Entry, wanted: Assignments) -> None:
        charges, running_charges = charges_of(wanted)
        after = running_charges if entry.phase is Phase.SHRUNK else charges
        with self._state.without(entry.pod.uid):
            lacking = shortfall(self._state.devices(entry.node), entry.held, after)
        if lacking:
            raise ResizeRefused(f"node {entry.node}: {lacking}")
        grown = larger(entry.assignments, wanted)
        if grown == entry.assignments:
            return
        if fences := self._state.fences(entry.node, *(given.vendor for given in wanted)):
            raise ResizeRefused(f"nothing on node {entry.node} may grow until a record can be read: {next(iter(fences.values()))}")
        charges, running_charges = charges_of(grown)
        exceeded = self._quota(dataclasses.replace(entry, assignments=grown, charges=charges, running_charges=running_charges))
        if exceeded:
            raise ResizeRefused(exceeded)

    def _answered(self, uid: str, generation: int, refusal: str) -> None:
        waiting = self._waiting.get((uid, generation))
        if waiting is not None and not waiting.done():
            waiting.set_result(refusal)


def totals(entry: Entry, units: CoreUnits) -> dict[str, tuple[int, int, int]]:
    """What the entry's pod holds of each vendor: slots, memory and cores, these as ``units`` says."""
    peak, running = totals_of(entry.assignments, entry.charges, entry.running_charges, units=units)
    return dict(running if entry.phase is Phase.SHRUNK else peak)

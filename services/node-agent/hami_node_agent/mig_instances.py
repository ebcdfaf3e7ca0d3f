"""Makes the MIG instances that pods were granted, and takes away those that nobody wants any more. One call to the driver at a time.

Which instances are this agent's is in its journal, written before one is made: after a restart what is on the cards is compared with it, and what
somebody else made is left alone. An instance that the driver does not let go costs one round, never another pod's start.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami_node_agent import mig
from hami_node_agent.journal import Journal
from hami_node_agent.mig import MadeInstance, Spot
from hami_node_agent.mig_hardware import MigError, MigHardware
from hami_node_agent.node_pods import NodePods
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import PodRef, VendorAssignment
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until, sleep_until

log = structlog.get_logger()
RECONCILE_SECONDS: Final = 5.0


class MigInstances:
    """The instances on one node's cards."""

    def __init__(self, hardware: MigHardware | None, *, pods: NodePods, journal: Journal, isolation: Isolation) -> None:
        """``hardware`` None: the cards cannot be cut, and a pod that holds an instance is refused."""
        self._hardware = hardware
        self._isolation = isolation
        self._pods = pods
        self._journal = journal
        self._made: dict[Spot, MadeInstance] = {}
        self._halves: tuple[MadeInstance, ...] = ()
        self._one_at_a_time = asyncio.Lock()

    def of(self, held: VendorAssignment, container: str) -> tuple[MadeInstance, ...] | None:
        """A container's instances, in the order of its shares; None where one has not been made. Empty where it holds none."""
        place = next((place for place, each in enumerate(held.containers) if each.container == container), -1)
        spots = [spot for (of_container, _), spot in sorted(mig.wanted(held).items()) if of_container == place]
        found = [self._made.get(spot) for spot in spots]
        made = tuple(each for each in found if each is not None)
        return made if len(made) == len(found) else None

    def identified(self, held: VendorAssignment) -> str:
        """The pod's annotation with what its instances are; empty where it has none, or not all are there."""
        return mig.identified(held, self._made) if all(spot in self._made for spot in mig.wanted(held).values()) else ""

    async def ready(self, ref: PodRef, held: VendorAssignment) -> Refusal | None:
        """See to it that all instances of the pod are there; why that is not so, None where it is. Doing it again changes nothing."""
        spots = tuple(mig.wanted(held).values())
        if not spots:
            return None
        if self._hardware is None:
            return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: this node's cards cannot be cut into MIG instances", pod=ref)
        async with self._one_at_a_time:
            fresh: list[MadeInstance] = []
            try:
                await self._look(self._hardware)
                if any(spot not in self._made for spot in spots):
                    await self._take_away(self._hardware)  # what is in the way may be nobody's any more
                for spot in spots:
                    if spot not in self._made:
                        self._journal.keep_instances((*self._journal.instances, spot))
                        fresh.append(await self._hardware.make(spot))
                        self._made[spot] = fresh[-1]
                        log.info(
                            "mig instance made", pod=str(ref), gpu=spot.gpu, profile=spot.instance.profile, uuid=fresh[-1].identity.uuid
                        )
            except (MigError, OSError) as exc:
                for made in reversed(fresh):
                    await self._unmake(self._hardware, made)
                return Refusal(kind=RefusalKind.HOST, reason=f"{ref}: {exc}", pod=ref)
        return None

    async def run(self, stop: asyncio.Event) -> None:
        """Take away what nobody wants, every five seconds, until ``stop``."""
        if self._hardware is None:
            await stop.wait()
            return
        await run_until(stop, self._pods.wait_synced())
        while not stop.is_set():
            with self._isolation.item("reconciliation"):
                async with self._one_at_a_time:
                    await self._look(self._hardware)
                    await self._take_away(self._hardware)
            await sleep_until(stop, RECONCILE_SECONDS)

    async def _look(self, hardware: MigHardware) -> None:
        found = await hardware.instances()
        self._made = {made.spot: made for made in found if made.complete}
        self._halves = tuple(made for made in found if not made.complete)

    async def _take_away(self, hardware: MigHardware) -> None:
        for half in self._halves:
            if half.spot in self._journal.instances:  # this agent was killed over it; whoever wants it gets it made anew
                await self._unmake(hardware, half)
        if not self._pods.synced:
            return
        there = [spot for spot in self._journal.instances if spot in self._made]
        for spot in mig.unneeded(there, self._pods.live.values()):
            await self._unmake(hardware, self._made[spot])
        there_still = {*self._made, *(half.spot for half in self._halves)}
        left = tuple(dict.fromkeys(spot for spot in self._journal.instances if spot in there_still))
        if left != self._journal.instances:
            self._journal.keep_instances(left)

    async def _unmake(self, hardware: MigHardware, made: MadeInstance) -> None:
        try:
            await hardware.unmake(made)
        except MigError as exc:
            log.warning("mig instance stays", gpu=made.spot.gpu, uuid=made.identity.uuid, reason=str(exc))
            return
        self._made.pop(made.spot, None)
        self._halves = tuple(half for half in self._halves if half != made)
        log.info("mig instance taken away", gpu=made.spot.gpu, uuid=made.identity.uuid)

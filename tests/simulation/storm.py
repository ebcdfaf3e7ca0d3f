"""What users, operators and bad luck do to a cluster: one act at a time, drawn by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hami_protocol import subjects
from hami_protocol.envelope import seal
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed, PodReleased
from hami_protocol.pods import is_terminal, pod_ref
from hami_protocol.resize import ResizeRequest
from hami_runtime.bus import BusError
from hami_scheduler.resizing import ResizeRefused
from tests.simulation import shapes
from tests.simulation.faults import Gone, Killed
from tests.simulation.town import Town
from tests.simulation.watchdog import Seen

MOST_PODS = 30
MOST_WAITING = 5
"""At most so many pods wait at once: each is judged again at every change, which is most of a run's work."""


class Storm:
    """Acts on one cluster, and takes back what lasts."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.chance = town.chance
        self.created = 0
        self._lies = 0
        self._begun: set[asyncio.Task[None]] = set()

    async def act(self) -> None:
        """Do one thing."""
        acts = self._acts()
        done = self.chance.choices([act for act, _ in acts], weights=[weight for _, weight in acts])[0]()
        if done is not None:
            await done

    def _acts(self) -> Sequence[tuple[Callable[[], Awaitable[None] | None], int]]:
        """What there is to do, each with its weight."""
        town, chance = self.town, self.chance
        return (
            (lambda: self._arrive(1), 30),
            (lambda: self._arrive(chance.choice([3, 8])), 5),
            (self._delete, 8),
            (self._recreate, 4),
            (self._kill, 14),
            (lambda: self._outage(chance.choice([0.5, 5.0, 20.0]), "the bus", town.bus.down, town.bus.up), 5),
            (lambda: self._outage(chance.choice([0.5, 5.0, 20.0]), "the API server", town.api_down, town.api_up), 5),
            (self._cut_off, 4),
            (self._break_watches, 4),
            (self._skew_or_sicken, 3),
            (self._restart_kubelet, 3),
            (self._resize, 6),
            (self._lie, 4 if self.town.settings.lies else 0),
            (self._lose_tail, 1 if self.town.settings.loses_tails else 0),
        )

    def _break_watches(self) -> None:
        self.town.faults.tell("all watches break")
        self.town.break_watches()

    async def _arrive(self, count: int) -> None:
        for _ in range(count):
            waiting = sum(not seen.node and not is_terminal(seen.pod) for seen in self.town.watchdog.pods.values())
            if waiting >= MOST_WAITING or self.created >= MOST_PODS:
                return
            self.created += 1
            await self.town.create(self._pod(f"p{self.created}"))

    def _pod(self, name: str) -> shapes.PodShape:
        brands = [node.brand for node in self.town.nodes]
        return shapes.pod(self.chance, name, priorities=self.town.settings.priorities, brands=brands)

    def _someone(self) -> Seen | None:
        found = list(self.town.watchdog.pods.values())
        return self.chance.choice(found) if found else None

    async def _delete(self) -> None:
        if (seen := self._someone()) is not None:
            await self.town.delete(seen.pod.metadata.name, grace_seconds=self.chance.choice([None, None, 0, 1]))

    async def _recreate(self) -> None:
        """A namesake follows at once, as a StatefulSet's does."""
        if (seen := self._someone()) is not None:
            name = seen.pod.metadata.name
            await self.town.delete(name, grace_seconds=0)
            await self.town.create(self._pod(name))

    def _kill(self) -> None:
        supervisor = self.chance.choice(list(self.town.supervisors.values()))
        supervisor.longest_pause_seconds = self.chance.choice([0.0, 3.0, 3.0, 20.0])
        if supervisor.process is not None and self.chance.random() < 0.7:
            supervisor.process.light_fuse(self.chance.randrange(12))
        else:
            supervisor.kill()

    def _outage(self, seconds: float, what: str, down: Any, up: Any) -> None:
        self.town.faults.tell(f"{what} is away for {seconds} s")
        down()
        self._later(seconds, up)

    def _cut_off(self) -> None:
        town, supervisor = self.town, self.chance.choice(list(self.town.supervisors.values()))
        process = supervisor.process
        if process is None:
            return
        api, bus = self.chance.choice([(True, False), (False, True), (True, True)])
        seconds = self.chance.choice([1.0, 8.0, 25.0])
        town.faults.tell(f"{process.name} is cut off from {'the API server ' * api}{'the bus' * bus} for {seconds} s")
        town.cut_off(process, api=api, bus=bus)
        self._later(seconds, lambda: town.link(process))

    def _later(self, seconds: float, undo: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            undo()

        self._begin(later())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    def _skew_or_sicken(self) -> None:
        town, chance = self.town, self.chance
        if chance.random() < 0.5:
            supervisor = chance.choice(list(town.supervisors.values()))
            supervisor.clock.skew = timedelta(seconds=chance.choice([-3600, -600, -30, 0, 30, 600, 3600]))
            town.faults.tell(f"{supervisor.name}'s clock is off by {supervisor.clock.skew}")
            return
        node = chance.choice(town.nodes)
        card = chance.choice(node.profile.devices)
        if chance.random() < 0.5:
            town.hardware[node.name].raise_xid(card.uuid or "", chance.choice([13, 79]))
        else:
            town.sicken(node.name, card.uuid or "", healthy=False)
            self._later(chance.choice([1.0, 20.0]), lambda: town.sicken(node.name, card.uuid or "", healthy=True))

    def _restart_kubelet(self) -> None:
        kubelet = self.chance.choice(list(self.town.kubelets.values()))
        seconds = self.chance.choice([0.5, 3.0, 12.0])
        self.town.faults.tell(f"{kubelet.name}'s kubelet restarts, which takes {seconds} s")
        kubelet.stop()
        self._later(seconds, kubelet.start)

    async def _lie(self) -> None:
        """An agent publishes, where it may, of a pod that is on another node."""
        town, chance = self.town, self.chance
        elsewhere = [(node.name, seen) for node in town.nodes for seen in town.watchdog.pods.values() if seen.node not in ("", node.name)]
        if not elsewhere:
            return
        node, seen = chance.choice(elsewhere)
        pod, to_allocate = pod_ref(seen.pod), seen.left or ""
        event = chance.choice(
            [
                PodReleased(pod=pod, node=node),
                AllocationFailed(pod=pod, node=node, reason="no card"),
                AllocationSucceeded(pod=pod, node=node),
                ContainerServed(pod=pod, node=node, container=seen.pod.spec.containers[0].name, vendor="NVIDIA", to_allocate=to_allocate),
            ]
        )
        self._lies += 1
        time = town.clock.utc().isoformat().replace("+00:00", "Z")
        town.faults.tell(f"{node}'s agent publishes {type(event).__name__} of {pod}, which is on {seen.node}")
        with suppress(BusError):
            await town.bus.publish(seal(event, event_id=f"lie/{self._lies}", source=subjects.agent_source("liar"), time=time))

    def _lose_tail(self) -> None:
        stream = self.chance.choice([subjects.ALLOCATIONS, subjects.DEVICES, subjects.VERDICTS])
        count = self.chance.choice([1, 3, 12])
        self.town.faults.tell(f"{stream.name} comes back without its last {count} messages")
        self.town.lose_tail(stream, count)

    def _resize(self) -> None:
        running = [seen for seen in self.town.watchdog.pods.values() if seen.resizable]
        leader = self.town.leading
        if not running or leader is None:
            return
        pod = self.chance.choice(running).pod
        wish = ResizeRequest(
            namespace="default",
            pod=pod.metadata.name,
            container=self.chance.choice(pod.spec.containers).name,
            memory_mib=self.chance.choice([None, 300, 1500, 6000]),
            cores=self.chance.choice([None, None, 10, 60]),
        )
        self.town.watchdog.wished(pod.metadata.uid, wish)
        process, scheduler = leader

        async def ask() -> None:
            with suppress(Gone, Killed, ResizeRefused, BusError):
                await process.serve(scheduler.resize(wish), hangs_up=False)

        self._begin(ask())

    def heal(self) -> None:
        """End every outage and fault: from now on only what has happened already has effects."""
        town = self.town
        for task in self._begun:
            task.cancel()
        town.faults.active = False
        town.bus.up()
        town.api_up()
        for kubelet in town.kubelets.values():
            kubelet.start()
        for supervisor in town.supervisors.values():
            if supervisor.process is not None:
                town.link(supervisor.process)
                supervisor.process.light_fuse(10**12)
        for node in town.nodes:
            town.hardware[node.name].become(node.profile)
        town.faults.tell("the storm is over")

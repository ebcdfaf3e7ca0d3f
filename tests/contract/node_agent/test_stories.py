"""Random stories on one node: pods come, start, restart and go, the agent is killed, bus and API server go away, kubelet's files break.

Whatever happens: a container that starts has exactly what it was granted; nothing that was refused starts; in the end every pod that was served
was reported as such and released, and nothing of it is left on the host. A story is its seed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from hami_node_agent.answers import Answer
from hami_node_agent.refusals import Refused
from hami_protocol.devices import AllocationMode
from hami_protocol.envelope import Message
from hami_protocol.events import AllocationFailed, AllocationSucceeded, PodReleased
from hami_protocol.kubernetes import Pod
from hami_protocol.subjects import ALLOCATIONS, grant
from tests.contract.node_agent.world import CARDS, NODE, Shares, World, play


@dataclass
class Story:
    """What happens, and what has happened."""

    world: World
    rng: random.Random
    pods: dict[str, Pod] = field(default_factory=dict)
    asked: dict[str, dict[str, Shares]] = field(default_factory=dict)
    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    made: int = 0
    log: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        self.log.append(f"{self.world.clock.monotonic():8.2f} {what}")

    async def arrive(self) -> None:
        """The scheduler binds a pod and kubelet admits it; under the node's lock in ``envvar`` mode."""
        self.made += 1
        name = f"p{self.made}"
        names = [f"c{place}" for place in range(self.rng.randint(1, 3))]
        shares = {one: self._shares() for one in names}
        if not any(shares.values()):
            shares["c0"] = [("GPU-a", 1 + self.made, 1)]
        inits = {"init": self._shares()} if self.rng.random() < 0.4 else {}
        if self.world.mode is AllocationMode.ENVVAR:
            await self.world.lock(name)
        pod = await self.world.pod(name, granted=self.world.bus.connected, inits=inits, **shares)
        try:
            self.answers[name] = await self.world.kubelet.admit(self.world.agent, pod)
        except Refused as refused:  # kubelet fails the pod
            self.tell(f"{name} refused at admission: {refused}")
            self.world.kubelet.end(pod)
            await self.world.phase(pod, "Failed")
            await self.world.delete(pod)
        else:
            self.tell(f"{name} admitted")
            self.pods[name], self.asked[name] = pod, {**inits, **shares}
        if self.world.mode is AllocationMode.ENVVAR:
            await self.world.lock(None)

    def _shares(self) -> Shares:
        cards = self.rng.sample(["GPU-a", "GPU-b"], self.rng.randint(0, 2))
        return [(card, self.rng.randint(1, 24576), self.rng.randint(0, 100)) for card in cards]

    async def start(self) -> None:
        """A container starts, or starts again."""
        if not self.pods:
            return
        name = self.rng.choice(sorted(self.pods))
        container = self.rng.choice(sorted(self.answers[name]))
        try:
            await self.world.agent.pre_start(self.world.kubelet.ids(self.pods[name], container))
        except Refused as refused:
            self.tell(f"{name}/{container} may not start: {refused}")
            return
        self.tell(f"{name}/{container} started")
        self.started.add(name)
        environment = self.world.environment(self.answers[name][container])
        given = {key: value for key, value in environment.items() if key.startswith("CUDA_DEVICE_MEMORY_LIMIT")}
        asked = self.asked[name][container]
        assert given == {f"CUDA_DEVICE_MEMORY_LIMIT_{place}": f"{mib}m" for place, (_, mib, _) in enumerate(asked)}, self.log

    async def leave(self) -> None:
        """A pod ends and is deleted, in one of the ways there are."""
        if not self.pods:
            return
        name = self.rng.choice(sorted(self.pods))
        pod = self.pods.pop(name)
        if self.rng.random() < 0.5:
            await self.world.phase(pod, self.rng.choice(["Succeeded", "Failed"]))
            await asyncio.sleep(self.rng.random() * 20)
        self.world.kubelet.end(pod)
        await self.world.delete(pod)
        self.tell(f"{name} left")

    async def kill_agent(self) -> None:
        await self.world.kill()
        await asyncio.sleep(self.rng.random() * 5)
        await self.world.start()
        self.tell("agent killed and started")

    async def toggle_bus(self) -> None:
        if self.world.bus.connected:
            self.world.bus.down()
        else:
            self.world.bus.up()
        self.tell(f"bus connected: {self.world.bus.connected}")

    async def cut_off_api_server(self) -> None:
        self.world.client.down()
        await asyncio.sleep(self.rng.random() * 5)
        self.world.client.up()
        self.tell("API server was away")

    async def break_kubelet(self) -> None:
        self.world.kubelet.broken_checkpoint = self.rng.choice([None, None, b"{"])
        self.world.kubelet.silent = self.rng.random() < 0.3
        self.tell(f"checkpoint {self.world.kubelet.broken_checkpoint!r}, PodResources silent: {self.world.kubelet.silent}")

    async def wait(self) -> None:
        await asyncio.sleep(self.rng.random() * 40)


async def tell(story: Story) -> None:
    events = [story.arrive, story.start, story.start, story.start, story.leave, story.wait]
    faults = [story.kill_agent, story.toggle_bus, story.cut_off_api_server, story.break_kubelet]
    for _ in range(60):
        await story.rng.choice(faults if story.rng.random() < 0.2 else events)()
    story.world.bus.up()
    story.world.kubelet.broken_checkpoint, story.world.kubelet.silent = None, False
    while story.pods:
        await story.leave()
    await asyncio.sleep(200)
    succeeded = {event.pod.name for event in story.world.said(AllocationSucceeded)}
    failed = {event.pod.name for event in story.world.said(AllocationFailed)}
    released = {event.pod.name for event in story.world.said(PodReleased)}
    if story.world.mode is AllocationMode.CDI:
        assert succeeded == story.started, story.log
    assert story.started <= succeeded, story.log
    assert not succeeded & failed, story.log
    assert succeeded <= released, story.log
    left = [path for path in (*story.world.files.contents, *story.world.files.folders) if "/agent/" not in path]
    assert left == [], story.log
    assert story.world.agent.journal.pods == {}, story.log


@pytest.mark.parametrize("mode", list(AllocationMode))
@pytest.mark.parametrize("seed", range(15))
def test_a_container_that_starts_has_its_grant_and_nothing_is_left_in_the_end(mode: AllocationMode, seed: int) -> None:
    async def scenario(world: World) -> None:
        await tell(Story(world, random.Random(f"{mode}/{seed}")))

    play(scenario, mode, cards=CARDS + "split_count: 100\n")


@pytest.mark.parametrize("data", [b"", b"{", b'{"type":"pod_allocating"}', b"\xff" * 100, b'{"type":"devices_reported"}'])
def test_a_message_that_nobody_can_read_is_counted_and_stops_nothing(data: bytes) -> None:
    async def scenario(world: World) -> None:
        await world.bus.publish(Message(subject=grant(NODE, "default", "p"), data=data))
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        assert world.agent.view.undecodable == 1
        assert len(world.bus.kept(ALLOCATIONS)) >= 2

    play(scenario)

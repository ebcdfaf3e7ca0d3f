"""Random stories: pods come and go, calls overlap, the API server loses answers, watches break, the scheduler is killed and the bus is away.

After every step no card holds more than it has, by the API server's own record; in the end the ledger says exactly what that record says.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal
from hami_runtime.kube import cluster as api
from hami_scheduler.service import Options, Scheduler
from tests.builders import a_device, a_ref
from tests.contract.scheduler.faults import FaultyCluster, conflict, late, lost_answer, lost_request, overloaded
from tests.contract.scheduler.world import World, asked, ref, settle, story

SEEDS = 40
STEPS = 120
NODES = ("n1", "n2", "n3")
CARDS = 2
MEMORY_MIB = 10_000
OPTIONS = Options(bind_timeout_seconds=3.0)


class Chaos:
    """One story."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.stack = AsyncExitStack()
        self.cluster = FaultyCluster(world.store)
        self.calls: set[asyncio.Task[None]] = set()
        self.number = 0

    async def start(self) -> Scheduler:
        """A new process, over a connection of its own."""
        self.cluster = FaultyCluster(self.world.store)
        return await self.stack.enter_async_context(self.world.scheduler(cluster=self.cluster, options=OPTIONS))

    async def kill(self) -> None:
        """The process ends, and with its connections the requests that are on their way."""
        ending = [*self.calls, *self.cluster.on_their_way]
        for call in ending:
            call.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self.calls.clear()
        await self.stack.aclose()

    async def pods(self) -> list[Pod]:
        return (await self.world.admin.list(api.PODS)).items

    async def create(self) -> None:
        self.number += 1
        count = self.chance.choice([1, 1, 1, 2])
        await self.world.pod(f"p{self.number}", gpu=count, gpumem=self.chance.choice([2000, 4000, 7000, 10_000]))

    async def call(self, scheduler: Scheduler) -> None:
        """What kube-scheduler does with one pod, beside everything else that goes on."""
        waiting = [pod for pod in await self.pods() if not pod.spec.node_name and not is_terminal(pod)]
        if not waiting:
            return
        pod = self.chance.choice(waiting)
        names = list(NODES)
        self.chance.shuffle(names)
        answer = asked(scheduler, pod, *names)
        if answer.node_names and self.chance.random() < 0.9:
            task = asyncio.create_task(self._bind(scheduler, pod, answer.node_names[0], self.chance.choice([0.0, 0.0, 0.5, 40.0])))
            self.calls.add(task)
            task.add_done_callback(self.calls.discard)

    async def _bind(self, scheduler: Scheduler, pod: Pod, node: str, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        await scheduler.bind(ref(pod), node)

    async def end(self) -> None:
        bound = [pod for pod in await self.pods() if pod.spec.node_name and not is_terminal(pod)]
        if bound:
            await self.world.finish(self.chance.choice(bound), self.chance.choice(["Succeeded", "Failed"]))

    async def delete(self) -> None:
        pods = await self.pods()
        if pods:
            await self.world.delete(self.chance.choice(pods))

    async def serve(self) -> bool:
        """A pod has its devices, as the registry writes it; whether there was one that waited for them."""
        waiting = [pod for pod in await self.pods() if pod.spec.node_name and pod.metadata.annotations.get(keys.BIND_PHASE) == "allocating"]
        if waiting:
            served = {"metadata": {"annotations": {keys.BIND_PHASE: "success"}}}
            await self.world.admin.patch(api.PODS, self.chance.choice(waiting).metadata.name, served, namespace="default")
            await settle()
        return bool(waiting)

    async def fail(self) -> None:
        for _ in range(self.chance.choice([1, 2, 8])):
            makers = [lost_answer, lost_request, overloaded, conflict, lambda: late(self.chance.choice([0.2, 2.0, 30.0]))]
            self.cluster.faults.append(self.chance.choice(makers)())

    async def step(self, scheduler: Scheduler) -> Scheduler:
        """Anything at all; the process that runs afterwards."""
        match self.chance.choices(range(10), weights=(20, 40, 10, 6, 8, 3, 3, 3, 12, 12))[0]:
            case 0:
                await self.create()
            case 1:
                await self.call(scheduler)
            case 2:
                await self.end()
            case 3:
                await self.delete()
            case 4:
                await self.fail()
            case 5:
                await self.kill()
                return await self.start()
            case 6:
                self.cluster.close_watches()
            case 7:
                (self.world.bus.down if self.world.bus.connected else self.world.bus.up)()
            case 8:
                await self.serve()
            case _:
                await asyncio.sleep(self.chance.choice([0.1, 1.0, 10.0, 35.0]))
        return scheduler

    async def held(self) -> Counter[tuple[str, str]]:
        """MiB per node and card, by the record on the pods."""
        held: Counter[tuple[str, str]] = Counter()
        for pod in await self.pods():
            if pod.spec.node_name and not is_terminal(pod):
                for given in Catalog().read_assignments(pod):
                    for container in given.containers:
                        for share in container.shares:
                            held[pod.spec.node_name, share.uuid] += share.memory_mib
        return held


@pytest.mark.parametrize("seed", range(SEEDS))
@story
async def test_nothing_is_oversold_and_the_ledger_is_exact_in_the_end(world: World, seed: int) -> None:
    for name in NODES:
        mode = "envvar" if name == "n3" else "cdi"
        await world.node(name, *(a_device(f"{name}-{card}", memory_mib=MEMORY_MIB) for card in range(CARDS)), mode=mode)
    chaos = Chaos(world, seed)
    scheduler = await chaos.start()
    for _ in range(STEPS):
        scheduler = await chaos.step(scheduler)
        scheduler.picture.state.validate()
        held = await chaos.held()
        assert not held or max(held.values()) <= MEMORY_MIB
    world.bus.up()
    chaos.cluster.faults.clear()
    await asyncio.gather(*chaos.calls)
    await asyncio.sleep(700.0)
    await settle()
    ledger = {
        (name, card.device.uuid): card.used_memory_mib
        for name in NODES
        for card in scheduler.picture.state.devices(name)
        if card.used_memory_mib
    }
    assert ledger == dict(await chaos.held())
    granted = [event.pod.uid for event in world.log() if type(event).__name__ == "PodAllocating"]  # type: ignore[union-attr]
    assert len(granted) == len(set(granted))
    waiting = {
        pod.metadata.uid
        for pod in await chaos.pods()
        if not is_terminal(pod) and pod.metadata.annotations.get(keys.BIND_PHASE) == "allocating"
    }
    assert waiting <= set(granted)
    while await chaos.serve():
        pass
    await scheduler.locks.acquire("n3", a_ref("next"), deadline=world.clock.monotonic() + 15.0)
    await chaos.kill()

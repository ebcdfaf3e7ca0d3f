"""Everything that makes a cluster, in one process and in virtual time: the four services with their replicas, kube-scheduler, kubelets, users.

Each service lives in a process of its own that may die at any call, over its own connection to the one API server and the one bus. The disks
of the nodes, their cards, the API server and the bus outlive everybody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from hami_devices.catalog import Catalog
from hami_node_agent import discovery
from hami_node_agent.agent import AgentOptions, NodeAgent
from hami_node_agent.health import HealthRules
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.mig_hardware import FakeMig
from hami_node_agent.profile import ProfileHardware
from hami_node_agent.sharing import Sharing
from hami_protocol import subjects
from hami_protocol.devices import RegisteredDevice
from hami_registry.service import Registry
from hami_rig.kubelet.node import NodeDescription, node_body
from hami_rig.scheduler.configuration import SchedulerConfiguration, generate
from hami_rig.scheduler.extender import Extender, ExtenderError
from hami_rig.scheduler.stand_in import KubeScheduler
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.cluster import PODS
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import Change, ObjectStore
from hami_runtime.kube.store_resources import NODES, RESOURCE_QUOTAS
from hami_runtime.lifecycle import serve, until
from hami_runtime.virtual import EPOCH, VirtualClock
from hami_scheduler.extender import _Extender
from hami_scheduler.service import Options, Scheduler
from hami_webhook.review import Policy
from hami_webhook.service import Webhook
from hami_webhook.wire import AdmissionRequest, Decision, GroupResource
from tests.simulation import shapes
from tests.simulation.faults import Faults, FaultyBus, FaultyCluster, FaultyFiles, FaultyMig, Gone, Process
from tests.simulation.kubelet import Kubelet, follow_pods
from tests.simulation.processes import Main, Supervisor
from tests.simulation.settings import settings
from tests.simulation.watchdog import Watchdog

CATALOG = Catalog()
CATALOG.vendors = tuple(CATALOG.vendor(brand.name) for brand in shapes.BRANDS)  # others would only cost time
CATALOG.managed_resources = tuple(resource for vendor in CATALOG.vendors for resource in vendor.resources)
NAMESPACE = "kube-system"
CONFIGURATION = msgspec.convert(
    generate(CATALOG.managed_resources, extender_url="http://extender", scheduler_name=shapes.SCHEDULER), SchedulerConfiguration
)


class Town:
    """One cluster."""

    def __init__(self, seed: int) -> None:
        self.faults = Faults(seed)
        self.chance = random.Random(f"town-{seed}")
        self.clock = VirtualClock()
        self.store = ObjectStore(now=self.clock.utc, rng=random.Random(f"store-{seed}"))
        self.bus = MemoryBus()
        self.nodes = shapes.nodes(self.chance)
        self.settings = settings(random.Random(f"settings-{seed}"))
        self.files = {node.name: MemoryFiles() for node in self.nodes}
        self.hardware = {node.name: ProfileHardware(node.profile, node=node.name) for node in self.nodes}
        self.instances = {
            node.name: FakeMig({device.uuid or "": shapes.CUT_MODEL for device in node.profile.devices}) for node in self.nodes if node.cut
        }
        """Of nodes whose cards are cut, the driver."""
        self.changes: list[tuple[float, Change]] = []
        self.reachable = True
        """Whether the API server is up."""
        self.lost_tail = False
        """Whether the log of allocations came back from an older disk."""
        self.supervisors: dict[str, Supervisor] = {}
        self.schedulers: dict[str, tuple[Process, Scheduler]] = {}
        """By name of the process."""
        self.registries: dict[str, Registry] = {}
        self.webhook: tuple[Process, Webhook] | None = None
        self.agents: dict[str, NodeAgent] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.watchdog: Watchdog
        self._clients: dict[Process, MemoryCluster] = {}
        self._seed = seed
        self._names = 0
        self._reviews = 0

    async def build(self) -> None:
        """Put everything in its place; nothing runs yet."""
        capacity: dict[tuple[str, str], RegisteredDevice] = {}
        for node in self.nodes:
            hardware = self.hardware[node.name]
            for device in discovery.registered(await hardware.scan(), hardware.sharing(Sharing()), {}):
                capacity[node.name, device.uuid] = device
        self.watchdog = Watchdog(capacity, self.files, self.instances, self.faults.tell, self.settings)
        self.faults.evicting = self.watchdog.evicting
        if self.settings.quota:
            hard = {key: str(amount) for key, amount in self.settings.quota.items()}
            self.store.create(RESOURCE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, namespace="default")
        self.store.subscribe(self._changed)
        for place, node in enumerate(self.nodes):
            self.store.create(NODES, node_body(NodeDescription(name=node.name), EPOCH))
            process = Process(f"kubelet-{node.name}", self.faults)
            self.kubelets[node.name] = Kubelet(
                node.name,
                FaultyCluster(self.client(process), process),
                self.clock,
                self.files[node.name],
                self.watchdog.given,
                resource=node.brand.count,
                rng=random.Random(f"kubelet-{self._seed}-{place}"),
            )
            self._add(f"agent-{node.name}", self._agent(node))
        for replica in range(self.chance.choice([1, 1, 2])):
            self._add(f"scheduler-{replica}", self._scheduler)
        for replica in range(self.chance.choice([1, 1, 2])):
            self._add(f"registry-{replica}", self._registry)
        self._add("webhook", self._webhook)
        self._add("kube-scheduler", self._kube_scheduler)
        await self.bus.ensure_streams(subjects.STREAMS)

    def _add(self, name: str, main: Main) -> None:
        self.supervisors[name] = Supervisor(name, self.faults, main)

    def _changed(self, change: Change) -> None:
        self.changes.append((asyncio.get_running_loop().time(), change))
        self.watchdog.saw(change)

    async def run(self) -> None:
        """Run everything until cancelled."""
        process = Process("kubelets", self.faults)
        async with asyncio.TaskGroup() as group:
            group.create_task(follow_pods(FaultyCluster(self.client(process), process), self.clock, self.kubelets))
            for kubelet in self.kubelets.values():
                group.create_task(kubelet.run())
            for supervisor in self.supervisors.values():
                group.create_task(supervisor.run())

    # Connections

    def client(self, process: Process) -> MemoryCluster:
        """A connection to the API server for ``process``."""
        client = MemoryCluster(self.store)
        if not self.reachable:
            client.down()
        self._clients = {each: client for each, client in self._clients.items() if each.alive}
        self._clients[process] = client
        return client

    def api_down(self) -> None:
        """The API server goes away."""
        self.reachable = False
        for client in self._clients.values():
            client.down()

    def api_up(self) -> None:
        """The API server is back."""
        self.reachable = True
        for client in self._clients.values():
            client.up()

    def cut_off(self, process: Process, *, api: bool, bus: bool) -> None:
        """One process loses its way to the API server, to the bus, or to both."""
        if api and process in self._clients:
            self._clients[process].down()
        if bus:
            process.linked.clear()

    def link(self, process: Process) -> None:
        """Undo ``cut_off``."""
        if self.reachable and process in self._clients:
            self._clients[process].up()
        if not process.linked.is_set():
            process.linked_since = asyncio.get_running_loop().time()
        process.linked.set()

    def lose_tail(self, stream: subjects.StreamSpec, count: int) -> None:
        """The bus comes back from an older disk, without the last messages of a stream."""
        self.bus.lose_tail(stream, count)
        self.lost_tail = self.lost_tail or stream is subjects.ALLOCATIONS

    def break_watches(self) -> None:
        """All watches end; whoever goes on has to list again."""
        for client in self._clients.values():
            client.close_watches()
        self.store.compact()

    # Services

    async def _scheduler(self, process: Process) -> None:
        clock = self._clock_of(process)
        cluster = FaultyCluster(self.client(process), process)
        scheduler = Scheduler(
            cluster=cluster,
            bus=FaultyBus(self.bus, process),
            clock=clock,
            catalog=CATALOG,
            identity=process.name,
            options=Options(
                placement=self.settings.placement, preemption=self.settings.preemption, hold_seconds=self.settings.hold_seconds
            ),
            elector=LeaderElector(cluster, clock, name="hami-scheduler", namespace=NAMESPACE, identity=process.name),
        )
        self.schedulers = {name: found for name, found in self.schedulers.items() if found[0].alive}
        self.schedulers[process.name] = (process, scheduler)
        await scheduler.run(asyncio.Event())

    async def _registry(self, process: Process) -> None:
        registry = Registry(
            FaultyBus(self.bus, process),
            FaultyCluster(self.client(process), process),
            self._clock_of(process),
            CATALOG,
            identity=process.name,
            namespace=NAMESPACE,
        )
        self.registries[process.name.partition("#")[0]] = registry
        await registry.run(asyncio.Event())

    async def _webhook(self, process: Process) -> None:
        webhook = Webhook(FaultyCluster(self.client(process), process), self._clock_of(process), CATALOG, Policy())
        self.webhook = (process, webhook)
        await webhook.run(asyncio.Event())

    def _agent(self, node: shapes.NodeShape) -> Main:
        kubelet = self.kubelets[node.name]

        async def main(process: Process) -> None:
            agent = NodeAgent(
                AgentOptions(
                    node=node.name,
                    mode=node.mode,
                    device_type=node.brand.device_type,
                    rules=HealthRules(good_probes=2, probation_seconds=10.0),
                    probe_seconds=2.0,
                    monitor=self.settings.monitor,
                ),
                bus=FaultyBus(self.bus, process),
                cluster=FaultyCluster(self.client(process), process),
                clock=self._clock_of(process),
                hardware=self.hardware[node.name],
                kubelet=kubelet,
                files=FaultyFiles(self.files[node.name], process),
                catalog=CATALOG,
                new_name=self._new_name,
                mig=FaultyMig(self.instances[node.name], process) if node.cut else None,
            )
            self.agents[node.name] = agent

            async def plugin(stop: asyncio.Event) -> None:
                await agent.devices.scanned.wait()
                while not stop.is_set():
                    await kubelet.serving.wait()
                    await asyncio.sleep(self.faults.random.random() if self.faults.active else 0.1)  # until the new socket is noticed
                    if kubelet.serving.is_set():
                        session = kubelet.plugged(process, agent)
                        async for _ in until(session, agent.devices.changed.each()):
                            kubelet.watched(agent.devices.advertised)

            try:
                await serve(*agent.loops, plugin, grace_seconds=1.0, stop=asyncio.Event())
            finally:
                kubelet.unplugged(process)

        return main

    async def _kube_scheduler(self, process: Process) -> None:
        transport = _Transport(self, process)
        extender = Extender(CONFIGURATION.extenders[0], transport)
        rng = random.Random(f"{self._seed}-{process.name}")
        cluster = FaultyCluster(self.client(process), process)
        await KubeScheduler(cluster, self._clock_of(process), CONFIGURATION, extender, rng=rng).run(asyncio.Event())

    def _clock_of(self, process: Process) -> VirtualClock:
        return self.supervisors[process.name.partition("#")[0]].clock

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._names:08x}"

    @property
    def leading(self) -> tuple[Process, Scheduler] | None:
        """The scheduler that leads, and the process that it lives in."""
        return next((found for found in self.schedulers.values() if found[0].alive and found[1].leads()), None)

    @property
    def leader(self) -> Scheduler | None:
        """The scheduler that leads."""
        return self.leading[1] if self.leading else None

    # Users

    async def create(self, shape: shapes.PodShape) -> bool:
        """Create a pod as kubectl would; whether it is there. What admission must refuse and does not is a violation."""
        if self.webhook is None or not self.webhook[0].alive or self.webhook[1].lacking or not self.reachable:
            return False  # fails closed, and the user tries later
        self._reviews += 1
        request = AdmissionRequest(
            uid=str(self._reviews),
            resource=GroupResource(version="v1", resource="pods"),
            namespace="kube-system" if shape.hopeless else "default",  # whose pods admission does not look at
            operation="CREATE",
            object=msgspec.Raw(msgspec.json.encode(shape.body)),
        )
        decision = self.webhook[1].reviewer.mutate(request, traceparent=f"00-{self._reviews:032x}-{self._reviews:016x}-01")
        exceeds = bool(self.settings.quota) and not decision.allowed and "quota" in decision.message
        if decision.allowed == shape.refused and not exceeds:
            self.watchdog.violated(f"{shape.name}: admission says {decision.allowed} {decision.message}")
        if not decision.allowed:
            return False
        body = _patched(shape.body, decision)
        with suppress(Exception):
            created = await MemoryCluster(self.store).create(PODS, body, namespace="default")
            if shape.hopeless:
                self.watchdog.hopeless.add(created.metadata.uid)
            return True
        return False

    async def delete(self, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod as kubectl would."""
        if self.reachable:
            with suppress(Exception):
                await MemoryCluster(self.store).delete(PODS, name, namespace="default", grace_seconds=grace_seconds)

    def sicken(self, node: str, uuid: str, *, healthy: bool) -> None:
        """A card fails by itself, or works again."""
        hardware = self.hardware[node]
        devices = tuple(replace(each, healthy=healthy) if each.uuid == uuid else each for each in hardware.profile.devices)
        hardware.become(replace(hardware.profile, devices=devices))


class _Transport:
    """HTTP between kube-scheduler and the extender beside it, which hands on to the leader: late, lost on the way there or back."""

    def __init__(self, town: Town, caller: Process) -> None:
        self._town = town
        self._caller = caller

    async def post(self, verb: str, body: bytes, *, timeout_seconds: float) -> bytes:
        faults = self._caller.faults
        self._caller.step()
        await faults.delay()
        process, scheduler = self._found(verb)
        if faults.strikes():
            faults.tell(f"{verb} is lost on its way to {process.name}")
            raise ExtenderError(f"Post {verb}: connection refused")
        extender = _Extender(scheduler, None)  # type: ignore[arg-type]
        verbs: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "filter": extender.filter,
            "prioritize": extender.prioritize,
            "bind": extender.bind,
            "preempt": extender.preempt,
        }

        async def serve_request() -> bytes:
            return await verbs[verb](body)

        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await process.serve(serve_request(), hangs_up=False)
        except (TimeoutError, Gone) as exc:
            raise ExtenderError(f"Post {verb}: {exc!r}") from exc
        self._caller.step()
        if faults.strikes():
            faults.tell(f"{process.name}'s answer to {verb} is lost")
            raise ExtenderError(f"Post {verb}: connection reset")
        return answer

    def _found(self, verb: str) -> tuple[Process, Scheduler]:
        town = self._town
        ours = next((found for name, found in town.schedulers.items() if name.startswith("scheduler-0#") and found[0].alive), None)
        if ours is None:
            ours = next((found for found in town.schedulers.values() if found[0].alive), None)
        if ours is None:
            raise ExtenderError(f"Post {verb}: connection refused")
        leader = ours[1].leader
        theirs = town.schedulers.get(leader) if leader else None
        return theirs if theirs is not None and theirs[0].alive else ours


def _patched(body: dict[str, object], decision: Decision) -> dict[str, object]:
    """``body`` after a JSON Patch of adds and replaces."""
    patched: dict[str, object] = msgspec.json.decode(msgspec.json.encode(body))
    for operation in decision.patch:
        *parents, last = (step.replace("~1", "/").replace("~0", "~") for step in operation.path.split("/")[1:])
        found: object = patched
        for step in parents:
            found = found[int(step)] if isinstance(found, list) else found[step]  # type: ignore[index]
        if isinstance(found, list):
            found.append(operation.value)
        else:
            found[last] = operation.value  # type: ignore[index]
    return patched

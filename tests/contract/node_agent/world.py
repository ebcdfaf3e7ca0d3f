"""One node in memory and in virtual time: API server, bus, kubelet's device manager (the rig's own decisions), host files, and the real agent.

``play`` runs a scenario; nothing in it takes real time, so a test may wait for a minute.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hami_devices.catalog import Catalog
from hami_node_agent import checkpoint, profile
from hami_node_agent.agent import AgentOptions, NodeAgent
from hami_node_agent.answers import Answer
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.checkpoint import Checkpoint, Unreadable
from hami_node_agent.granting import GrantPolicy
from hami_node_agent.hardware import DeviceProcess, DeviceReading
from hami_node_agent.health import HealthRules
from hami_node_agent.host_processes import NoProcesses
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.identity import ListedPod
from hami_node_agent.mig_hardware import MigHardware
from hami_node_agent.plugin import _answer
from hami_protocol import assignment, keys, nodelock, subjects
from hami_protocol.devices import AllocationMode, ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.envelope import open_message, seal
from hami_protocol.events import Event, PodAllocating
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import containers_in_order, pod_ref
from hami_rig.kubelet import checkpoint as rig_checkpoint
from hami_rig.kubelet.devices import DeviceLedger, Held
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.cluster import EVENTS, NODES, PODS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.lifecycle import serve
from hami_runtime.telemetry import OFF, Telemetry
from hami_runtime.virtual import VirtualClock

NODE = "n1"
GPU = "nvidia.com/gpu"
CARDS = """
devices:
  - {uuid: GPU-a, memory_mib: 24576, model: NVIDIA A10}
  - {uuid: GPU-b, memory_mib: 24576, model: NVIDIA A10}
"""

Shares = Sequence[tuple[str, int, int]]
"""Of one container: card, MiB and percent of each share."""


class MemoryKubelet:
    """Kubelet's device manager: the rig's ledger, its checkpoint in kubelet's form, and PodResources as the real one lists it."""

    def __init__(self, seed: int = 7) -> None:
        self.ledger = DeviceLedger(rng=random.Random(seed))
        self.pods: dict[str, Pod] = {}
        self.broken_checkpoint: bytes | None = None
        self.insists = False
        """Ids are taken by its own rules, whatever the plugin prefers."""
        self.silent = False
        """PodResources cannot be asked."""
        self.lies: Callable[[tuple[ListedPod, ...]], tuple[ListedPod, ...]] = lambda listed: listed

    def checkpoint(self) -> Checkpoint | Unreadable:
        return checkpoint.decode(self.broken_checkpoint or rig_checkpoint.encode(self.ledger.held, {}))

    async def listed(self, resource: str) -> tuple[ListedPod, ...] | None:
        await asyncio.sleep(0.003)
        if self.silent:
            return None
        found: list[ListedPod] = []
        for pod in self.pods.values():
            containers = {
                one.container.name: frozenset(
                    each
                    for held in self.ledger.of_container(pod.metadata.uid, one.container.name)
                    if held.resource == resource
                    for each in held.ids
                )
                for one in containers_in_order(pod)
                if one.kind is not ContainerKind.INIT
            }
            if any(containers.values()):
                found.append(ListedPod(namespace=pod.metadata.namespace, name=pod.metadata.name, containers=containers))
        return self.lies(tuple(found))

    async def admit(self, agent: NodeAgent, pod: Pod) -> dict[str, Answer]:
        """Allocate for every container in order; what kubelet keeps of each answer goes into the checkpoint before it goes on."""
        ref = pod_ref(pod)
        self.pods[ref.uid] = pod
        answers: dict[str, Answer] = {}
        ids = [device.id for device in agent.devices.advertised]
        self.ledger.report(GPU, ids, [])
        for container, kind, _ in containers_in_order(pod):
            count = int((container.resources.limits or {}).get(GPU, 0))
            choice = self.ledger.choices(ref.uid, container.name, GPU, count) if count else None
            if choice is not None:
                size = choice.needed + len(choice.reused)
                wanted = await agent.preferred(choice.available, choice.reused, size) if choice.needed and not self.insists else ()
                chosen = self.ledger.chosen(choice, wanted)
                answer = await agent.allocate(chosen)
                message = _answer(answer)
                assert isinstance(message, api.ContainerAllocateResponse)
                self.ledger.hold(
                    Held(pod_uid=ref.uid, container=container.name, resource=GPU, ids=chosen, answer=message.SerializeToString())
                )
                answers[container.name] = answer
            self.ledger.settle(ref.uid, container.name, kind)
        self.ledger.admitted(ref.uid)
        return answers

    def ids(self, pod: Pod, container: str) -> tuple[str, ...]:
        return next(held.ids for held in self.ledger.of_container(pod.metadata.uid, container) if held.resource == GPU)

    def end(self, pod: Pod) -> None:
        self.pods.pop(pod.metadata.uid, None)
        self.ledger.release(pod.metadata.uid)


class CountingDriver(profile.ProfileHardware):
    """Cards of a profile, on which a scenario says which processes run."""

    processes: dict[str, tuple[DeviceProcess, ...]]
    """By card."""

    async def reading(self, uuid: str) -> DeviceReading | None:
        """See ``Hardware``."""
        reading = await super().reading(uuid)
        return reading if reading is None else replace(reading, processes=self.processes.get(uuid, ()))


class OwnedProcesses(NoProcesses):
    """A host of which a scenario says whose its processes are."""

    def __init__(self) -> None:
        self.owners: dict[int, tuple[str, str]] = {}

    def belongs_to(self, pid: int) -> tuple[str, str]:
        """See ``HostProcesses``."""
        return self.owners.get(pid, ("", ""))


class World:
    """What a scenario plays in."""

    def __init__(
        self,
        mode: AllocationMode,
        *,
        cards: str = CARDS,
        files: MemoryFiles | None = None,
        mig: MigHardware | None = None,
        telemetry: Telemetry = OFF,
        **options: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.store = ObjectStore(now=self.clock.utc, rng=random.Random(1))
        self.admin = MemoryCluster(self.store)
        self.client = MemoryCluster(self.store)
        self.bus = MemoryBus()
        self.files = files or MemoryFiles()
        self.hardware = CountingDriver(profile.read(cards), node=NODE)
        self.hardware.processes = {}
        self.processes = OwnedProcesses()
        self.mig = mig
        self.telemetry = telemetry
        self.kubelet = MemoryKubelet()
        self.catalog = Catalog()
        self.mode = mode
        self.options = options
        self._names = 0
        self._sent = 0
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.agent = self.new_agent()

    def new_agent(self) -> NodeAgent:
        return NodeAgent(
            AgentOptions(
                node=NODE,
                mode=self.mode,
                **{"rules": HealthRules(good_probes=2, probation_seconds=10), "policy": GrantPolicy(), **self.options},
            ),
            bus=self.bus,
            cluster=self.client,
            clock=self.clock,
            hardware=self.hardware,
            processes=self.processes,
            kubelet=self.kubelet,
            files=self.files,
            catalog=self.catalog,
            new_name=self._new_name,
            mig=self.mig,
            telemetry=self.telemetry,
        )

    def _new_name(self) -> str:
        self._names += 1
        return f"{self._names:08x}"

    async def start(self) -> None:
        """Start the agent and wait until it can serve."""
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(serve(*self.agent.loops, grace_seconds=1, stop=self._stop))
        await self.agent.devices.scanned.wait()
        if self.client._up:
            await self.agent.pods.wait_synced()
        await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        self._stop.set()
        if self._running is not None:
            await self._running
            self._running = None

    async def kill(self) -> None:
        """End it without a chance to finish anything, and make a new one over the same disk."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._running = None
        self.agent = self.new_agent()

    # What scheduler and users do

    async def pod(
        self,
        name: str,
        /,
        *,
        granted: bool = True,
        bind_time: int = 100,
        inits: Mapping[str, Shares] | None = None,
        sidecars: Sequence[str] = (),
        written: Mapping[str, str] | None = None,
        publish: VendorAssignment | None = None,
        **containers: Shares,
    ) -> Pod:
        """Bind a pod: its object with the annotations of a Binding, and the grant event unless ``granted`` is false.

        ``written`` overrides annotations, ``publish`` the event's assignment.
        """

        def body(container: str, shares: Shares) -> dict[str, Any]:
            found: dict[str, Any] = {"name": container, "image": "x"}
            if shares:
                found["resources"] = {"limits": {GPU: str(len(shares))}}
            if container in sidecars:
                found["restartPolicy"] = "Always"
            return found

        inits = inits or {}
        held = self.assignment(inits, containers, sidecars)
        text = assignment.encode(held)
        annotations = {
            keys.ASSIGNED_NODE: NODE,
            keys.BIND_PHASE: "allocating",
            keys.BIND_TIME: str(bind_time),
            "hami.io/vgpu-devices-allocated": text,
            "hami.io/vgpu-devices-to-allocate": text,
            **(written or {}),
        }
        spec: dict[str, Any] = {
            "nodeName": NODE,
            "containers": [body(container, shares) for container, shares in containers.items()],
            "initContainers": [body(container, shares) for container, shares in inits.items()],
        }
        await self.admin.create(
            PODS,
            {"metadata": {"name": name, "annotations": annotations}, "spec": spec, "status": {"phase": "Pending"}},
            namespace="default",
        )
        made = await self.admin.get(PODS, name, namespace="default")
        if granted:
            await self.grant(pod_ref(made), publish or held)
        await asyncio.sleep(0.05)
        return await self.admin.get(PODS, name, namespace="default")

    @staticmethod
    def assignment(inits: Mapping[str, Shares], containers: Mapping[str, Shares], sidecars: Sequence[str]) -> VendorAssignment:
        kinds = {name: ContainerKind.SIDECAR if name in sidecars else ContainerKind.INIT for name in inits}
        return VendorAssignment(
            vendor="NVIDIA",
            containers=tuple(
                ContainerShares(
                    container=name,
                    kind=kinds.get(name, ContainerKind.APP),
                    shares=tuple(DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=mib, cores=cores) for uuid, mib, cores in shares),
                )
                for name, shares in {**inits, **containers}.items()
            ),
        )

    async def grant(self, pod: PodRef, held: VendorAssignment) -> None:
        """What the scheduler publishes once the Binding has succeeded."""
        await self.publish(PodAllocating(pod=pod, node=NODE, assignments=(held,), bind_time_seconds=100))

    async def publish(self, event: Event) -> None:
        self._sent += 1
        await self.bus.publish(seal(event, event_id=f"scheduler-{self._sent}", source="/hami/scheduler/s1", time="2026-01-01T00:00:00Z"))

    async def lock(self, pod: str | None) -> None:
        """Take or release the node's lock."""
        value = nodelock.encode(nodelock.NodeLock(time=self.clock.utc(), namespace="default", pod=pod)) if pod else None
        await self.admin.patch(NODES, NODE, {"metadata": {"annotations": {keys.NODE_LOCK: value}}})
        await asyncio.sleep(0.01)

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """What somebody writes on a pod that is bound."""
        await self.admin.patch(PODS, pod.metadata.name, {"metadata": {"annotations": dict(annotations)}}, namespace="default")
        await asyncio.sleep(0.01)

    async def phase(self, pod: Pod, phase: str) -> None:
        await self.admin.patch(PODS, pod.metadata.name, {"status": {"phase": phase}}, namespace="default", subresource="status")
        await asyncio.sleep(0.01)

    async def delete(self, pod: Pod) -> None:
        """Delete the pod's object at once, as kubelet does when its containers are over."""
        await self.admin.delete(PODS, pod.metadata.name, namespace="default", grace_seconds=0)
        await asyncio.sleep(0.01)

    # What came of it

    def said(self, *types: type[Any]) -> list[Any]:
        """Events on the bus, in order."""
        kept = [*self.bus.kept(subjects.DEVICES), *self.bus.kept(subjects.ALLOCATIONS)]
        return [event for message in kept if isinstance(event := open_message(message), types or object)]

    async def complaints(self) -> list[tuple[str, str, str]]:
        """Kubernetes Events: pod, reason and message."""
        await asyncio.sleep(0.1)
        found = (await self.admin.list(EVENTS)).items
        return [(each["involvedObject"]["name"], each["reason"], each["message"]) for each in found]

    def specs(self) -> dict[str, dict[str, Any]]:
        """By CDI name, the edits of all specs on the host."""
        return {
            f"{spec['kind']}={device['name']}": device["containerEdits"]
            for path, content in sorted(self.files.contents.items())
            if path.startswith("/var/run/cdi/")
            for spec in [json.loads(content)]
            for device in spec["devices"]
        }

    def environment(self, answer: Answer) -> dict[str, str]:
        """What a container with this answer finds in its environment, by CDI or by the answer itself."""
        if not answer.cdi_devices:
            return answer.environment
        return dict(one.split("=", 1) for one in self.specs()[answer.cdi_devices[0]]["env"])


def play(
    scenario: Callable[[World], Awaitable[None]], mode: AllocationMode = AllocationMode.CDI, *, started: bool = True, **options: Any
) -> None:
    """Run ``scenario`` in virtual time; the agent has started unless ``started`` is false."""

    async def run() -> None:
        world = World(mode, **options)
        await world.bus.ensure_streams(subjects.STREAMS)
        await world.admin.create(NODES, {"metadata": {"name": NODE}})
        if started:
            await world.start()
        try:
            await scenario(world)
        finally:
            await world.stop()

    virtual.run(run())

"""Kubelet of one node in the same process: the rig's own pod workers and device ledger, with the agent called directly instead of over gRPC.

It is never killed, but its requests to the API server fail as everybody's do. What a container is given goes to the watchdog before it starts.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

from hami_node_agent import checkpoint
from hami_node_agent.agent import NodeAgent
from hami_node_agent.answers import Answer
from hami_node_agent.checkpoint import Checkpoint, Unreadable
from hami_node_agent.discovery import AdvertisedDevice
from hami_node_agent.hostfiles import MemoryFiles
from hami_node_agent.identity import ListedPod
from hami_node_agent.plugin import _answer
from hami_node_agent.refusals import Refused
from hami_protocol import kubernetes as k
from hami_protocol.devices import ContainerKind
from hami_protocol.pods import containers_in_order, is_terminal
from hami_rig.kubelet import admission
from hami_rig.kubelet import checkpoint as rig_checkpoint
from hami_rig.kubelet.containers import EXIT_CODE, INIT_SECONDS, RUN_SECONDS, STOP_SECONDS, RunningContainer, seconds_of
from hami_rig.kubelet.devices import AllocationRefused, DeviceLedger, Held
from hami_rig.kubelet.status import ContainerLife
from hami_rig.kubelet.worker import PodWorker
from hami_rig.scheduler.objects import PODS, SchedulingPod
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import NODES, Cluster, ClusterError
from hami_runtime.kube.informer import Informer
from tests.simulation.faults import Gone, Process

T = TypeVar("T")

TRY_AGAIN_SECONDS = 2.0
Given = Callable[[SchedulingPod, str, dict[str, str]], None]


class Kubelet:
    """One node's kubelet: a ``worker.Host`` for its pods, and what the agent reads as ``KubeletRecords``."""

    ip = "127.0.0.1"

    def __init__(
        self, name: str, cluster: Cluster, clock: Clock, files: MemoryFiles, given: Given, *, resource: str, rng: random.Random
    ) -> None:
        self.name = name
        self.resource = resource
        """The extended resource that this node's plugin serves."""
        self.cluster = cluster
        self.clock = clock
        self.ledger = DeviceLedger(rng=rng)
        self.rejected: dict[str, str] = {}
        """By UID, why a pod was not let in."""
        self.swapped: dict[str, str] = {}
        """By UID, why a pod can never start: kubelet keeps for good what Allocate answered, and it was meant for another pod (``envvar``)."""
        self._files = files
        self._given = given
        self.serving = asyncio.Event()
        """Cleared while kubelet itself is down: its containers run on."""
        self.serving.set()
        self._agent: tuple[Process, NodeAgent] | None = None
        self._session = asyncio.Event()
        """Of the plugin's connection; set when kubelet ends it."""
        self._workers: dict[str, PodWorker] = {}
        self._group: asyncio.TaskGroup | None = None
        self._admission = asyncio.Lock()
        self._changed = asyncio.Event()
        self._checkpoint: Checkpoint | Unreadable = Checkpoint(held=())
        self._held: tuple[Held, ...] = ()

    # Pods

    async def run(self) -> None:
        """Lead its pods, and keep its Node object."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._report_devices())

    def on_pod(self, old: SchedulingPod | None, new: SchedulingPod | None) -> None:
        """A pod of this node changed; ``new`` None means that it is gone."""
        if new is None:
            if old is not None and (worker := self._workers.pop(old.metadata.uid, None)):
                worker.gone()
        elif worker := self._workers.get(new.metadata.uid):
            worker.update(new)
        elif not is_terminal(new) and self._group is not None:
            self._workers[new.metadata.uid] = worker = PodWorker(self, new)
            self._group.create_task(self._lead(worker))

    async def _lead(self, worker: PodWorker) -> None:
        await worker.run()
        if self._workers.get(worker.pod.metadata.uid) is worker:
            del self._workers[worker.pod.metadata.uid]

    async def admit(self, pod: SchedulingPod) -> admission.Rejection | None:
        uid = pod.metadata.uid
        await self.serving.wait()
        async with self._admission:
            if pod.status.phase == "Running" or self.ledger.of_pod(uid):
                return None
            self.ledger.free_others({each for each, worker in self._workers.items() if not worker.over})
            try:
                for container, kind, _ in containers_in_order(pod):
                    await self._allocate(uid, container)
                    self.ledger.settle(uid, container.name, kind)
            except AllocationRefused as exc:
                # Kubelet keeps an init container's ids until the pod ends, where the scheduler gives its slots back when it is over.
                if "devices unavailable" not in str(exc):
                    self.rejected[uid] = str(exc)
                return admission.unexpected(str(exc))
            finally:
                self.ledger.admitted(uid)
            return None

    async def _allocate(self, uid: str, container: k.Container) -> None:
        amount = (container.resources.limits or {}).get(self.resource)
        if amount is None:
            return
        choice = self.ledger.choices(uid, container.name, self.resource, int(amount))
        if choice is None:
            return
        preferred: Sequence[str] = ()
        if self._agent is not None and self._agent[1].plugin_options.preferred_allocation:
            size = choice.needed + len(choice.reused)
            preferred = await self._ask(lambda agent: agent.preferred(choice.available, choice.reused, size))
        ids = self.ledger.chosen(choice, preferred)
        answer: Answer = await self._ask(lambda agent: agent.allocate(ids))
        message = _answer(answer).SerializeToString()
        self.ledger.hold(Held(pod_uid=uid, container=container.name, resource=self.resource, ids=ids, answer=message))

    async def _ask(self, call: Callable[[NodeAgent], Coroutine[Any, Any, T]]) -> T:
        if self._agent is None:
            raise AllocationRefused(f"no plugin serves {self.resource}")
        process, agent = self._agent
        try:
            return await process.serve(call(agent))
        except (Gone, Refused) as exc:
            raise AllocationRefused(f"rpc error: {exc}") from exc

    async def start_container(self, pod: SchedulingPod, life: ContainerLife) -> RunningContainer:
        """PreStartContainer until the agent agrees, then what the container is given, then the container."""
        held = self.ledger.of_container(pod.metadata.uid, life.container.name)
        for each in held:
            await self._pre_start(each)
        self._given(pod, life.container.name, self._environment(held))
        annotations = pod.metadata.annotations
        stop_seconds = seconds_of(annotations, STOP_SECONDS) or 0.0
        if life.kind is ContainerKind.INIT:
            return RunningContainer(seconds_of(annotations, INIT_SECONDS) or 0.0, 0, stop_seconds=stop_seconds)
        seconds = None if life.kind is ContainerKind.SIDECAR else seconds_of(annotations, RUN_SECONDS)
        return RunningContainer(seconds, int(seconds_of(annotations, EXIT_CODE) or 0), stop_seconds=stop_seconds)

    async def _pre_start(self, held: Held) -> None:
        while True:
            try:
                await self._ask(lambda agent: agent.pre_start(held.ids))
            except AllocationRefused as exc:
                if "answered for another pod" in str(exc):
                    self.swapped[held.pod_uid] = str(exc)
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            else:
                return

    def _environment(self, held: Sequence[Held]) -> dict[str, str]:
        """What the container finds, from the plugin's answers and from the CDI specs on the disk that they name."""
        environment: dict[str, str] = {}
        for each in checkpoint.decode(rig_checkpoint.encode(held, {})).held:  # type: ignore[union-attr]
            environment |= dict(each.environment)
            for name in each.cdi_names:
                environment |= dict(one.split("=", 1) for one in self._specs()[name]["env"])
        return environment

    def _specs(self) -> dict[str, dict[str, list[str]]]:
        folder = "/var/run/cdi"
        specs = [json.loads(self._files.contents[f"{folder}/{name}"]) for name in self._files.names(folder)]
        return {f"{spec['kind']}={device['name']}": device["containerEdits"] for spec in specs for device in spec["devices"]}

    def record_event(self, pod: SchedulingPod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Events of kubelet itself interest nobody here."""

    # The plugin

    def plugged(self, process: Process, agent: NodeAgent) -> asyncio.Event:
        """The agent has registered; return the event that is set when kubelet restarts."""
        self._agent = (process, agent)
        self._session = asyncio.Event()
        return self._session

    def watched(self, devices: Sequence[AdvertisedDevice]) -> None:
        """The agent's list of devices, as it sends it."""
        self.ledger.report(self.resource, [each.id for each in devices if each.healthy], [each.id for each in devices if not each.healthy])
        self._changed.set()

    def stop(self) -> None:
        """Kubelet dies. It keeps its checkpoint, and has no device until the plugin has registered anew."""
        self.serving.clear()
        self._agent = None
        self._session.set()
        self.ledger.restart()

    def start(self) -> None:
        """Kubelet starts again."""
        self.serving.set()
        self._changed.set()

    def unplugged(self, process: Process) -> None:
        """The agent's connection has ended."""
        if self._agent is not None and self._agent[0] is process:
            self._agent = None
            self.ledger.disconnect(self.resource)
            self._changed.set()

    async def _report_devices(self) -> None:
        reported: dict[str, str] = {}
        while True:
            await self._changed.wait()
            await self.serving.wait()
            self._changed.clear()
            known = self.ledger.resources.get(self.resource)
            if known is None:
                continue
            now = {"capacity": str(known.capacity), "allocatable": str(len(known.healthy))}
            if now == reported:
                continue
            try:
                body = {"status": {part: {self.resource: amount} for part, amount in now.items()}}
                await self.cluster.patch(NODES, self.name, body, subresource="status")
            except ClusterError:
                self._changed.set()
                await asyncio.sleep(TRY_AGAIN_SECONDS)
                continue
            reported = now

    # What the agent reads

    def checkpoint(self) -> Checkpoint | Unreadable:
        if self._held != self.ledger.held:
            self._held = self.ledger.held
            self._checkpoint = checkpoint.decode(rig_checkpoint.encode(self._held, {}))
        return self._checkpoint

    async def listed(self, resource: str) -> tuple[ListedPod, ...] | None:
        await asyncio.sleep(0)
        found: list[ListedPod] = []
        for worker in self._workers.values():
            if worker.over:
                continue
            pod = worker.pod
            containers = {
                one.container.name: frozenset(
                    each for held in self.ledger.of_container(pod.metadata.uid, one.container.name) for each in held.ids
                )
                for one in containers_in_order(pod)
                if one.kind is not ContainerKind.INIT
            }
            if any(containers.values()):
                found.append(ListedPod(namespace=pod.metadata.namespace, name=pod.metadata.name, containers=containers))
        return tuple(found)


async def follow_pods(cluster: Cluster, clock: Clock, kubelets: dict[str, Kubelet]) -> None:
    """Show every kubelet its pods, over one watch."""
    pods = Informer(cluster, PODS, clock=clock)

    def changed(old: SchedulingPod | None, new: SchedulingPod | None) -> None:
        pod = new or old
        if pod is not None and (kubelet := kubelets.get(pod.spec.node_name)) is not None:
            kubelet.on_pod(old, new)

    pods.subscribe(changed)
    await pods.run(asyncio.Event())

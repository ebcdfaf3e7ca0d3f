"""One node: its Node object, its device manager's sockets and checkpoint, and a worker per pod. ``Fleet`` runs many in one process.

Invariants: pods are admitted one at a time, in the order in which they were seen; the checkpoint is written before the pod goes on; a pod that
already holds devices, or already runs, is not allocated to again. Devices of pods that are over are free from the next admission on, and no
sooner, once all pods have been seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from hami_protocol import kubernetes as k
from hami_protocol import quantities
from hami_protocol.errors import QuantityError
from hami_protocol.pods import containers_in_order, is_terminal, pod_ref
from hami_rig.kubelet import admission, checkpoint, containers
from hami_rig.kubelet.devices import AllocationRefused, DeviceLedger, Held
from hami_rig.kubelet.images import Images
from hami_rig.kubelet.node import IP, NodeDescription, node_body
from hami_rig.kubelet.plugins import DevicePlugins
from hami_rig.kubelet.pod_resources import PodResources
from hami_rig.kubelet.process_environment import StartFailed
from hami_rig.kubelet.status import ContainerLife
from hami_rig.kubelet.worker import PodWorker
from hami_rig.scheduler.objects import PODS, SchedulingPod
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import NODES, AlreadyExists, Cluster, ClusterError
from hami_runtime.kube.events import EventRecorder
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import sleep_until

log = structlog.get_logger(__name__)

WRITE_AGAIN_SECONDS = 0.5
STATUS_SECONDS = 10.0
"""How often kubelet writes the Node's status: a resource that is listed already changes there no sooner."""


class NodeFolder:
    """Where one node keeps its sockets and files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.device_plugins = root / "device-plugins"
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self.cdi = root / "cdi"
        self.containers = root / "containers"
        self.device_profile = root / "devices.yaml"
        """The cards that the node's agent finds."""
        self.cards = root / "cards.conf"
        """The same for the fake driver that containers see."""

    def make(self) -> None:
        """Make the folders that are missing."""
        for folder in (self.device_plugins, self.pod_resources_socket.parent, self.cdi, self.containers):
            folder.mkdir(parents=True, exist_ok=True)


class Kubelet:
    """One node's kubelet; a ``worker.Host`` for its pods."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        node: NodeDescription,
        folder: NodeFolder,
        *,
        rng: random.Random,
        status_seconds: float = STATUS_SECONDS,
    ) -> None:
        self.cluster = cluster
        self.clock = clock
        self.ip = IP
        self._node = node
        self._folder = folder
        folder.make()
        self._ledger = self._load_ledger(rng)
        self._images = Images()
        self._plugins = DevicePlugins(folder.device_plugins, self._ledger, on_change=self._on_devices)
        self._pod_resources = PodResources(folder.pod_resources_socket, self._ledger, pods=self._active_pods)
        self._recorder = EventRecorder(cluster, clock, "kubelet")
        self._workers: dict[str, PodWorker] = {}
        self._new_pods: asyncio.Queue[PodWorker] = asyncio.Queue()
        self._admission = asyncio.Lock()
        self._devices_changed = asyncio.Event()
        self._devices_changed.set()
        self._status_seconds = status_seconds
        self._reported: dict[str, tuple[int, int]] = {}
        self._all_seen = False
        self._object = k.Node(metadata=k.ObjectMeta(name=node.name))
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = asyncio.Event()
        """Set once the node's object is there and plugins can register."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    async def run(self, stop: asyncio.Event) -> None:
        """Be this node until ``stop``. Containers end with it."""
        await self._plugins.start()
        await self._pod_resources.start()
        try:
            async with asyncio.TaskGroup() as group:
                loops = [group.create_task(loop(stop)) for loop in (self._report_devices, self._recorder.run)]
                starter = group.create_task(self._start_workers(group))
                await stop.wait()
                starter.cancel()
                await asyncio.wait(loops)
                for worker in tuple(self._tasks):
                    worker.cancel()
        finally:
            await self._pod_resources.stop()
            await self._plugins.stop()

    async def restart(self) -> None:
        """What a restart of kubelet does to its device manager: sockets removed and made anew, no device until plugins register again."""
        await self._plugins.stop()
        await self._pod_resources.stop()
        self._ledger.restart()
        self._on_devices()
        await self._plugins.start()
        await self._pod_resources.start()
        log.info("device manager started again", node=self.name)

    def on_pod(self, old: SchedulingPod | None, new: SchedulingPod | None) -> None:
        """A pod of this node changed; ``new`` None means that it is gone."""
        if new is None:
            if old is not None and (worker := self._workers.pop(old.metadata.uid, None)):
                worker.gone()
        elif worker := self._workers.get(new.metadata.uid):
            worker.update(new)
        elif not is_terminal(new):
            worker = PodWorker(self, new)
            self._workers[new.metadata.uid] = worker
            self._new_pods.put_nowait(worker)

    def on_node(self, node: k.Node) -> None:
        """The node's object changed."""
        self._object = node

    async def admit(self, pod: SchedulingPod) -> admission.Rejection | None:
        """Allocate what each container asks, in order, and look whether the node has the rest."""
        uid = pod.metadata.uid
        async with self._admission:
            if pod.status.phase == "Running" or self._ledger.of_pod(uid):
                return None
            try:
                for container, kind, _ in containers_in_order(pod):
                    if await self._allocate(uid, container):
                        self._write_checkpoint()
                    self._ledger.settle(uid, container.name, kind)
            except AllocationRefused as exc:
                return admission.unexpected(str(exc))
            finally:
                self._ledger.admitted(uid)
            others = (each for each in self._active_pods() if each.metadata.uid != uid)
            return admission.out_of(pod, self._with_what_is_held(), others)

    def _with_what_is_held(self) -> k.Node:
        """The node's object with at least as many devices allocatable as are held: kubelet trusts its own record more than the status."""
        status = self._object.status
        allocatable = dict(status.allocatable or {})
        for resource in self._ledger.resources.keys() & allocatable.keys():
            held = sum(len(each.ids) for each in self._ledger.held if each.resource == resource)
            allocatable[resource] = str(max(held, _count(resource, allocatable[resource])))
        return msgspec.structs.replace(self._object, status=msgspec.structs.replace(status, allocatable=allocatable))

    async def start_container(self, pod: SchedulingPod, life: ContainerLife) -> containers.RunningContainer:
        """Tell the plugins, put together what the container is given, write that down, and start it."""
        uid, container = pod.metadata.uid, life.container
        await self._images.pull(container.image, uid=uid)
        held = self._ledger.of_container(uid, container.name)
        for each in held:
            if self._plugins.needs_pre_start(each.resource):
                try:
                    await self._plugins.pre_start(each.resource, each.ids)
                except AllocationRefused as exc:
                    raise StartFailed("CreateContainerConfigError", str(exc)) from exc
        given = containers.given_to(container, held, self._folder.cdi)
        folder = self._folder.containers / uid
        record = {
            "pod": str(pod_ref(pod)),
            "container": container.name,
            "restarts": life.restarts,
            "deviceIds": {each.resource: each.ids for each in held},
            "given": given,
        }
        containers.write_record(folder / f"{container.name}.json", record)
        running = await containers.start(pod.metadata.annotations, container, life.kind, given, folder, cards=self._folder.cards)
        self.record_event(pod, "Normal", "Started", f"Started container {container.name}")
        return running

    def record_event(self, pod: SchedulingPod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an Event on the pod."""
        self._recorder.record(pod_ref(pod), type_, reason, message)

    def all_pods_seen(self) -> None:
        """Every pod there is has been seen: from now on what others held is free."""
        self._all_seen = True

    async def _allocate(self, uid: str, container: k.Container) -> bool:
        allocated = False
        for resource, amount in (container.resources.limits or {}).items():
            if resource not in self._ledger.resources:
                continue
            if self._all_seen:
                self._ledger.free_others({each.metadata.uid for each in self._active_pods()})
            choice = self._ledger.choices(uid, container.name, resource, _count(resource, amount))
            if choice is None:
                continue
            preferred: Iterable[str] = ()
            if choice.needed:
                size = choice.needed + len(choice.reused)
                preferred = await self._plugins.preferred(resource, available=choice.available, must_include=choice.reused, size=size)
            ids = self._ledger.chosen(choice, tuple(preferred))
            answer = await self._plugins.allocate(resource, ids)
            self._ledger.hold(Held(pod_uid=uid, container=container.name, resource=resource, ids=ids, answer=answer))
            allocated = True
        return allocated

    def _active_pods(self) -> list[SchedulingPod]:
        return [worker.pod for worker in self._workers.values() if not worker.over]

    async def _start_workers(self, group: asyncio.TaskGroup) -> None:
        while True:
            worker = await self._new_pods.get()
            task = group.create_task(self._lead(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _lead(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:  # one pod's fault must not take its node away
            log.exception("pod is given up", pod=str(pod_ref(worker.pod)))
        if self._workers.get(worker.pod.metadata.uid) is worker:
            del self._workers[worker.pod.metadata.uid]

    def _on_devices(self) -> None:
        self._devices_changed.set()
        self._write_checkpoint()

    async def _report_devices(self, stop: asyncio.Event) -> None:
        """Keep the Node object's capacity and allocatable as the plugins report."""
        exists = False
        while not stop.is_set():
            try:
                if not exists:
                    await self._create_node()
                    exists = True
                    self.ready.set()
                if await self._until_due(stop):
                    return
                await self._report_once()
            except ClusterError as exc:
                log.warning("node not written", node=self.name, reason=str(exc))
                await sleep_until(stop, WRITE_AGAIN_SECONDS)
                continue
            waits = [asyncio.ensure_future(each.wait()) for each in (self._devices_changed, stop)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    async def _until_due(self, stop: asyncio.Event) -> bool:
        """Wait as long as kubelet does with a change: no time for a resource that is new, else until the next period; whether to stop."""
        if any(name not in self._reported for name in self._ledger.resources):
            return False
        return await sleep_until(stop, self._status_seconds - self.clock.monotonic() % self._status_seconds)

    async def _create_node(self) -> None:
        body = node_body(self._node, self.clock.utc())
        try:
            self._object = await self.cluster.create(NODES, body)
        except AlreadyExists:
            metadata = {"labels": body["metadata"]["labels"]}
            await self.cluster.patch(NODES, self.name, {"metadata": metadata})
        self._object = await self.cluster.patch(NODES, self.name, {"status": body["status"]}, subresource="status")

    async def _report_once(self) -> None:
        self._devices_changed.clear()
        now = {name: (each.capacity, len(each.healthy)) for name, each in self._ledger.resources.items()}
        changed = {name: now.get(name) for name in {**self._reported, **now} if now.get(name) != self._reported.get(name)}
        if not changed:
            return
        capacity: dict[str, Any] = {name: None if each is None else str(each[0]) for name, each in changed.items()}
        allocatable: dict[str, Any] = {name: None if each is None else str(each[1]) for name, each in changed.items()}
        body = {"status": {"capacity": capacity, "allocatable": allocatable}}
        try:
            self._object = await self.cluster.patch(NODES, self.name, body, subresource="status")
        except ClusterError:
            self._devices_changed.set()
            raise
        self._reported = now

    def _load_ledger(self, rng: random.Random) -> DeviceLedger:
        path = self._folder.device_plugins / checkpoint.FILE_NAME
        try:
            held, resources = checkpoint.decode(path.read_bytes())
        except FileNotFoundError:
            return DeviceLedger(rng=rng)
        except checkpoint.CheckpointError as exc:
            log.warning("the checkpoint is left aside", node=self.name, reason=str(exc))
            return DeviceLedger(rng=rng)
        return DeviceLedger(held, resources, rng=rng)

    def _write_checkpoint(self) -> None:
        path = self._folder.device_plugins / checkpoint.FILE_NAME
        registered = {name: each.healthy for name, each in self._ledger.resources.items()}
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(checkpoint.encode(self._ledger.held, registered))
        temporary.replace(path)


class Fleet:
    """Many kubelets in one process, on one watch of pods and one of nodes."""

    def __init__(self, cluster: Cluster, clock: Clock, kubelets: Iterable[Kubelet]) -> None:
        self._kubelets = {each.name: each for each in kubelets}
        self._pods = Informer(cluster, PODS, clock=clock)
        self._nodes = Informer(cluster, NODES, clock=clock)
        self._pods.subscribe(self._on_pod)
        self._nodes.subscribe(self._on_node)

    async def run(self, stop: asyncio.Event) -> None:
        """Run all until ``stop``."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._pods.run, self._nodes.run, self._tell_all_seen, *(each.run for each in self._kubelets.values())):
                group.create_task(loop(stop))

    async def _tell_all_seen(self, stop: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(each.wait()) for each in (self._pods.synced, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not stop.is_set():
            for kubelet in self._kubelets.values():
                kubelet.all_pods_seen()
            await stop.wait()

    async def restart(self) -> None:
        """Restart the device manager of every node."""
        for each in self._kubelets.values():
            await each.restart()

    def _on_pod(self, old: SchedulingPod | None, new: SchedulingPod | None) -> None:
        pod = new or old
        if pod is not None and (kubelet := self._kubelets.get(pod.spec.node_name)):
            kubelet.on_pod(old, new)

    def _on_node(self, old: k.Node | None, new: k.Node | None) -> None:
        del old
        if new is not None and (kubelet := self._kubelets.get(new.metadata.name)):
            kubelet.on_node(new)


def _count(resource: str, amount: k.Quantity) -> int:
    with suppress(QuantityError):
        return quantities.parse_count(amount, field=resource)
    raise AllocationRefused(f"requested number of devices unavailable for {resource}. Requested: {amount}, Available: 0")

"""One pod's life on its node: admission, init containers in order, sidecars, app containers, restarts, and its end.

::

    bound ─▶ admission ─┬─refused──▶ Failed
                        └─▶ init containers one after the other ─▶ app containers ─▶ Succeeded or Failed
    deleted at any moment ─▶ containers stopped within the grace ─▶ over: the devices are free for the next pod ─▶ gone

The worker writes the pod's status, and nobody else here does. What it cannot write now it writes later: containers do not wait for the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

import structlog

from hami_protocol.devices import ContainerKind
from hami_protocol.pods import containers_in_order, is_terminal, pod_ref
from hami_rig.kubelet import status
from hami_rig.kubelet.admission import Rejection
from hami_rig.kubelet.containers import KILLED_EXIT_CODE, RunningContainer
from hami_rig.kubelet.process_environment import StartFailed
from hami_rig.kubelet.status import ContainerLife
from hami_rig.scheduler.objects import PODS, SchedulingPod
from hami_runtime.clock import Clock
from hami_runtime.kube.cluster import Cluster, ClusterError, Conflict, NotFound

log = structlog.get_logger(__name__)

WRITE_AGAIN_SECONDS = 0.5
FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 300.0
DEFAULT_GRACE_SECONDS = 30


class Host(Protocol):
    """What a pod needs of its node."""

    cluster: Cluster
    clock: Clock
    ip: str

    async def admit(self, pod: SchedulingPod) -> Rejection | None:
        """Give the pod its devices, or say why not."""
        ...

    async def start_container(self, pod: SchedulingPod, life: ContainerLife) -> RunningContainer:
        """Start one container.

        Raises:
            StartFailed: not now.
        """
        ...

    def record_event(self, pod: SchedulingPod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Say what happened to the pod, for people."""
        ...


class PodWorker:
    """Leads one pod through its life."""

    def __init__(self, host: Host, pod: SchedulingPod) -> None:
        self._host = host
        self._pod = pod
        self._lives = [ContainerLife(container=container, kind=kind) for container, kind, _ in containers_in_order(pod)]
        for life in self._lives:
            if life.kind is ContainerKind.APP and not pod.spec.init_containers:
                life.waiting = "ContainerCreating"
        self._rejection: Rejection | None = None
        self._running: dict[str, RunningContainer] = {}
        self._deleting = asyncio.Event()
        self._gone = asyncio.Event()
        self._dirty = asyncio.Event()
        self._written: dict[str, Any] = {}
        self._stopped = False
        self.update(pod)

    @property
    def pod(self) -> SchedulingPod:
        """The pod as last seen."""
        return self._pod

    @property
    def over(self) -> bool:
        """Whether all its containers have ended for good, or it was never let in."""
        return self._stopped or self._rejection is not None or status.phase(self._lives) in ("Succeeded", "Failed")

    def update(self, pod: SchedulingPod) -> None:
        """The pod has changed."""
        self._pod = pod
        if pod.metadata.deletion_timestamp:
            self._deleting.set()

    def gone(self) -> None:
        """The pod is no longer in the API server: nothing is left to be written."""
        self._gone.set()
        self._deleting.set()

    async def run(self) -> None:
        """Lead the pod from admission to its end."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write_status())
            life = group.create_task(self._live())
            deleted = group.create_task(self._deleting.wait())
            await asyncio.wait([life, deleted], return_when=asyncio.FIRST_COMPLETED)
            await deleted
            life.cancel()
            await asyncio.wait([life])
            await self._stop_all([each.container.name for each in self._lives])
            self._mark_over()
            await self._last_status(writer)
        if not self._gone.is_set():
            await self._delete()

    async def _live(self) -> None:
        if is_terminal(self._pod):
            return
        self._rejection = await self._host.admit(self._pod)
        self._dirty.set()
        if self._rejection is not None:
            self._host.record_event(self._pod, "Warning", self._rejection.reason, self._rejection.message)
            return
        async with asyncio.TaskGroup() as sidecars:
            helpers: list[asyncio.Task[None]] = []
            if await self._initialize(sidecars, helpers):
                async with asyncio.TaskGroup() as apps:
                    for life in self._of_kind(ContainerKind.APP):
                        apps.create_task(self._keep_running(life))
            await self._stop_all([life.container.name for life in self._of_kind(ContainerKind.SIDECAR)])
            for helper in helpers:
                helper.cancel()
        for life in self._of_kind(ContainerKind.SIDECAR):
            life.running, life.over = False, True
        self._dirty.set()

    async def _initialize(self, sidecars: asyncio.TaskGroup, helpers: list[asyncio.Task[None]]) -> bool:
        """Run init containers in order; whether the app containers may start."""
        for life in self._lives:
            if life.kind is ContainerKind.SIDECAR:
                started = asyncio.Event()
                helpers.append(sidecars.create_task(self._keep_running(life, started)))
                await started.wait()
            elif life.kind is ContainerKind.INIT:
                await self._keep_running(life)
                if life.exit_code != 0:
                    return False
        for life in self._of_kind(ContainerKind.APP):
            life.waiting = "ContainerCreating"
        self._dirty.set()
        return True

    async def _keep_running(self, life: ContainerLife, started: asyncio.Event | None = None) -> None:
        """Start the container, and again as its policy says, until it is over."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            try:
                container = await self._host.start_container(self._pod, life)
            except StartFailed as exc:
                life.waiting, life.waiting_message = exc.reason, str(exc)
                self._host.record_event(self._pod, "Warning", "Failed", exc.event)
                self._dirty.set()
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, MAX_BACKOFF_SECONDS)
                continue
            self._running[life.container.name] = container
            life.running, life.started_at, life.waiting, life.waiting_message = True, self._host.clock.utc(), "", ""
            self._dirty.set()
            if started is not None:
                started.set()
            life.exit_code = await container.wait()
            del self._running[life.container.name]
            life.running, life.finished_at = False, self._host.clock.utc()
            if not self._runs_again(life):
                life.over = True
                self._dirty.set()
                return
            life.waiting, life.waiting_message = "CrashLoopBackOff", f"back-off {backoff_seconds:.0f}s restarting failed container"
            self._dirty.set()
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(backoff_seconds * 2, MAX_BACKOFF_SECONDS)
            life.restarts += 1

    def _runs_again(self, life: ContainerLife) -> bool:
        policy = self._pod.spec.restart_policy or "Always"
        if life.kind is ContainerKind.SIDECAR:
            return True
        if life.kind is ContainerKind.INIT:
            return life.exit_code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and life.exit_code != 0)

    def _of_kind(self, kind: ContainerKind) -> list[ContainerLife]:
        return [life for life in self._lives if life.kind is kind]

    async def _stop_all(self, names: Sequence[str]) -> None:
        grace = self._pod.metadata.deletion_grace_period_seconds
        seconds = DEFAULT_GRACE_SECONDS if grace is None else grace
        running = [self._running[name] for name in names if name in self._running]
        async with asyncio.TaskGroup() as group:
            for container in running:
                group.create_task(container.stop(seconds))
        async with asyncio.TaskGroup() as group:
            for container in running:
                group.create_task(container.wait())

    def _mark_over(self) -> None:
        self._stopped = True
        for life in self._lives:
            if life.running:
                life.exit_code, life.finished_at = KILLED_EXIT_CODE, self._host.clock.utc()
            life.running, life.over = False, life.over or life.exit_code is not None

    async def _write_status(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            wanted = self._wanted_status()
            if wanted == self._written or is_terminal(self._pod):
                continue
            ref = pod_ref(self._pod)
            try:
                self._pod = await self._host.cluster.patch(
                    PODS, ref.name, {"status": wanted}, namespace=ref.namespace, subresource="status", uid=ref.uid
                )
            except (NotFound, Conflict):
                return
            except ClusterError as exc:
                log.warning("status not written", pod=str(ref), reason=str(exc))
                self._dirty.set()
                await asyncio.sleep(WRITE_AGAIN_SECONDS)
                continue
            self._written = wanted

    def _wanted_status(self) -> dict[str, Any]:
        now = self._host.clock.utc()
        if self._rejection is not None:
            return status.rejected(self._pod, self._rejection.reason, self._rejection.message, now=now)
        return status.report(self._pod, self._lives, now=now, host_ip=self._host.ip, pod_ip=self._host.ip)

    async def _last_status(self, writer: asyncio.Task[None]) -> None:
        writer.cancel()
        await asyncio.wait([writer])
        if self._gone.is_set() or is_terminal(self._pod) or not self._lives:
            return
        ref = pod_ref(self._pod)
        body = {"status": self._wanted_status()}
        with suppress(ClusterError):
            await self._host.cluster.patch(PODS, ref.name, body, namespace=ref.namespace, subresource="status", uid=ref.uid)

    async def _delete(self) -> None:
        """Remove the pod from the API server, for good; again until that has worked."""
        ref = pod_ref(self._pod)
        while not self._gone.is_set():
            try:
                await self._host.cluster.delete(PODS, ref.name, namespace=ref.namespace, uid=ref.uid, grace_seconds=0)
            except (NotFound, Conflict):
                return
            except ClusterError as exc:
                log.warning("pod not removed", pod=str(ref), reason=str(exc))
                with suppress(TimeoutError):
                    async with asyncio.timeout(WRITE_AGAIN_SECONDS):
                        await self._gone.wait()
            else:
                return

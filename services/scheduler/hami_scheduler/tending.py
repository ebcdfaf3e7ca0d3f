"""The leader's chores: reservations that lapse, releases nobody has said, refused pods to wake, and what the log lacks when leading begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube import cluster as api
from hami_runtime.kube.informer import Informer
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry
from hami_scheduler.metrics import Metrics
from hami_scheduler.picture import Picture

log = structlog.get_logger()

CONDITION = "hami.io/RoomChanged"
"""Type of the condition whose change wakes a refused pod; ``preempting`` has another one, and nothing else in a pod's status is changed."""
TICK_SECONDS = 1.0
ATTEMPTS = 3


class Tending:
    """What must be done without anybody asking. Only the leader wakes pods or writes; followers only let their picture age."""

    def __init__(
        self,
        picture: Picture,
        cluster: api.Cluster,
        clock: Clock,
        *,
        pods: Informer[Pod],
        leading: Callable[[], int],
        caught_up: asyncio.Event,
        metrics: Metrics,
        telemetry: Telemetry = OFF,
    ) -> None:
        self._picture = picture
        self._cluster = cluster
        self._clock = clock
        self._pods = pods
        self._leading = leading
        self._caught_up = caught_up
        self._metrics = metrics
        self._isolation = Isolation("tending", clock, telemetry)
        self._told = 0
        """In which time of leading the log was compared with the cluster."""
        self._losses = 0
        """How often the log had lost messages then."""

    async def run(self, stop: asyncio.Event) -> None:
        """Do what time and improvements bring, until ``stop``."""
        waking = self._picture.waking
        while not stop.is_set():
            due = waking.due_seconds() if self._leading() else None  # a follower wakes nobody, however long it is due
            seconds = TICK_SECONDS if due is None else min(TICK_SECONDS, max(0.0, due - self._clock.monotonic()))
            if await sleep_until(stop, seconds):
                return
            with self._isolation.item("tending"):
                self._picture.tend(self._find)
            with self._isolation.item("begin to lead"):
                self._begin_to_lead()
            if not self._leading():
                continue
            for pod in waking.due(now=self._clock.monotonic()):
                with self._isolation.item(f"wake pod {pod}"):
                    await self._wake(pod)

    def _begin_to_lead(self) -> None:
        """Say what the log lacks, once per time of leading, when both the log and the cluster have been read."""
        term = self._leading()
        lost = self._losses != self._picture.log_losses
        if lost and self._caught_up.is_set():
            self._told = 0
        if self._told not in (0, term):  # it may lead again already: what it had not said yet was withdrawn in between
            self._picture.follow()
            self._told = 0
        if term and not self._told and self._caught_up.is_set() and self._pods.synced.is_set():
            self._told = term
            missing = self._picture.lead(self._pods.objects.values())
            log.info("leading", missing_events=len(missing))
            self._picture.publish_again(lost=lost)
            self._losses = self._picture.log_losses

    async def _wake(self, pod: PodRef) -> None:
        now = self._clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "True",
            "reason": "RoomReleased",
            "message": f"room that this pod may use was released at {self._clock.utc():%H:%M:%S.%f}",
            "lastTransitionTime": now,
        }
        for attempt in range(ATTEMPTS):
            try:
                await self._cluster.patch_conditions(pod, [condition])
            except (api.NotFound, api.Conflict):
                return  # gone
            except api.ClusterError as exc:
                log.warning("pod not woken", pod=str(pod), error=str(exc))
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                self._metrics.wakings.add(1)
                log.info("pod woken", pod=str(pod))
                return
        self._picture.waking.not_woken(pod.uid, now=self._clock.monotonic())

    def _find(self, pod: PodRef) -> Pod | None:
        return self._pods.get(pod.name, pod.namespace)

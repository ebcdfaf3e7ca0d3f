"""Filter and bind of one pod, as kube-scheduler asks for them in turn. ``placing`` and ``gathering`` say where, ``binder`` writes it.

A pod may be asked about at any moment of its life: already bound, being bound, bound by a Binding whose answer was lost, a namesake of the one
that was meant. Each of these has one answer here, before anything is judged or charged.
"""

from __future__ import annotations

import asyncio

from hami_devices.catalog import Catalog
from hami_devices.requests import RequestError
from hami_protocol import keys
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal, pod_ref
from hami_runtime.clock import Clock
from hami_runtime.kube import cluster as api
from hami_runtime.kube.informer import Informer
from hami_runtime.telemetry import Telemetry
from hami_scheduler.binder import Binder
from hami_scheduler.gangs import group_of
from hami_scheduler.gathering import Gathering
from hami_scheduler.metrics import Metrics
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Phase, Refusal
from hami_scheduler.placing import Placing
from hami_scheduler.preempting import Preempting
from hami_scheduler.verdicts import INVALID_REQUEST
from hami_scheduler.wire import FilterAnswer


class Verbs:
    """What is done about one pod."""

    def __init__(
        self,
        picture: Picture,
        cluster: api.Cluster,
        clock: Clock,
        *,
        pods: Informer[Pod],
        placing: Placing,
        preempting: Preempting,
        gathering: Gathering,
        binder: Binder,
        metrics: Metrics,
        telemetry: Telemetry,
        bind_timeout_seconds: float,
    ) -> None:
        self._picture = picture
        self._catalog: Catalog = picture.catalog
        self._cluster = cluster
        self._clock = clock
        self._pods = pods
        self._placing = placing
        self._preempting = preempting
        self._gathering = gathering
        self._binder = binder
        self._metrics = metrics
        self._telemetry = telemetry
        self._bind_timeout_seconds = bind_timeout_seconds
        self._running: dict[str, asyncio.Future[str]] = {}
        """Binds that have not been answered, by the pod's UID."""

    def filter(self, pod: Pod, names: list[str]) -> FilterAnswer:
        """Which of ``names`` take the pod; what is asked twice is answered as the first time, as far as it has come."""
        ref = pod_ref(pod)
        picture = self._picture
        uid = ref.uid
        picture.pods.asked(uid)
        self._preempting.keep_on()
        if (node := self._bound_node(ref)) is not None:
            return FilterAnswer(error=f"pod {ref} is bound to {node} already")
        if (node := self._binder.open_node(uid)) is not None:
            if node in names:
                return FilterAnswer(node_names=[node])
            return FilterAnswer(error=f"whether pod {ref} is bound to {node} is not known yet")
        if uid in self._running:
            return FilterAnswer(error=f"pod {ref} is being bound")
        try:
            request = self._catalog.read_pod(pod)
            size = self._placing.group_size(pod)
        except RequestError as exc:
            picture.give_up(ref, INVALID_REQUEST)
            picture.unkeep(uid)
            picture.verdicts.invalid(ref, str(exc), node_count=len(names))
            self._metrics.verdicts.add(1, {"verdict": "invalid"})
            return FilterAnswer(unresolvable=dict.fromkeys(names, INVALID_REQUEST))
        if not request.asks:
            picture.give_up(ref, "the pod asks for nothing any more")
            picture.unkeep(uid)
            return FilterAnswer(node_names=names)
        return self._placing.place(pod, ref, request, names, size)

    async def bind(self, ref: PodRef, node: str) -> str:
        """Bind the pod to ``node``; return an error text, empty when it is bound. A second call for the same pod gets the first one's answer."""
        running = self._running.get(ref.uid)
        if running is not None:
            return await asyncio.shield(running)
        running = self._running[ref.uid] = asyncio.get_running_loop().create_future()
        error = f"bind of pod {ref} was interrupted"
        try:
            error = await self._bind(ref, node)
        finally:
            del self._running[ref.uid]
            running.set_result(error)
        return error

    async def _bind(self, ref: PodRef, node: str) -> str:
        deadline = self._clock.monotonic() + self._bind_timeout_seconds
        pod = await self._current(ref)
        if isinstance(pod, str):
            self._picture.give_up(ref, pod)
            return pod
        self._picture.pods.asked(ref.uid)
        if bound := pod.spec.node_name or self._bound_node(ref):
            return "" if bound == node else f"pod {ref} is bound to {bound} already"
        with self._telemetry.span("bind", pod.metadata.annotations.get(keys.TRACE_PARENT), pod=str(ref), node=node):
            assignments = self._assume(pod, ref, node)
            if isinstance(assignments, str):
                return assignments
            if assignments and (late := await self._gather(pod)):
                self._picture.give_up(ref, late)
                return late
            error = await self._binder.bind(pod, ref, node, assignments, deadline=deadline)
        self._metrics.binds.add(1, {"outcome": "failed" if error else "bound"})
        self._placing.forget(ref.uid)
        return error

    async def _gather(self, pod: Pod) -> str:
        """Wait for enough of the pod's group; an error text where they have not come in time."""
        group = group_of(pod)
        try:
            size = self._placing.group_size(pod)
        except RequestError as exc:
            return str(exc)
        return "" if group is None or size is None or size == 1 else await self._gathering.arrive(group, size)

    def _assume(self, pod: Pod, ref: PodRef, node: str) -> tuple[VendorAssignment, ...] | str:
        """Make sure that room on ``node`` is charged for the pod: what filter reserved, else a fit made now. An error text where there is none."""
        state = self._picture.state
        entry = state.entry(ref.uid)
        if self._binder.open_node(ref.uid) == node and entry is not None:
            return tuple(entry.assignments)
        reservation = self._picture.reservations.get(ref.uid)
        if entry is None or entry.node != node or reservation is None:
            try:
                request = self._catalog.read_pod(pod)
            except RequestError as exc:
                return f"{INVALID_REQUEST}: {exc}"
            if not request.asks:
                return ()
            found = self._picture.judge(ref, request, [node])
            if isinstance(found, Refusal):
                reason = found.failed.get(node) or found.unresolvable.get(node) or found.summary
                self._picture.give_up(ref, f"no room on {node} any more")
                return f"node {node}: {reason}"
            self._placing.reserve(ref, found)
            entry = state.entry(ref.uid)
        if entry is None:
            return f"no room is reserved for pod {ref}"
        state.assume(ref.uid)
        return tuple(entry.assignments)

    async def _current(self, ref: PodRef) -> Pod | str:
        """The pod that ``ref`` means, not bound yet; an error text where there is none."""
        pod = self._pods.get(ref.name, ref.namespace)
        if pod is None or pod.metadata.uid != ref.uid:
            try:
                pod = await self._cluster.get(api.PODS, ref.name, namespace=ref.namespace)
            except api.ClusterError as exc:
                return f"pod {ref} cannot be read: {exc}"
        if pod.metadata.uid != ref.uid:
            return f"pod {ref} was deleted; there is another of its name"
        if is_terminal(pod):
            return f"pod {ref} is {pod.status.phase}"
        return pod

    def _bound_node(self, ref: PodRef) -> str | None:
        """Where the pod is bound, by the watch or, before that has shown it, by our own Binding; None where it is not."""
        pod = self._pods.get(ref.name, ref.namespace)
        if pod is not None and pod.metadata.uid == ref.uid and pod.spec.node_name:
            return pod.spec.node_name
        entry = self._picture.state.entry(ref.uid)
        return entry.node if entry is not None and entry.phase in {Phase.BOUND, Phase.SHRUNK} else None

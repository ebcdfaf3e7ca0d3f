"""Outcomes that agents publish, checked before they reach the log of grants. Runs on the leader alone.

Where agents have an account of their own on the bus, what they publish on outcome subjects waits in a queue (``HAMI_REPORTS``), of which each node
has a bounded part. An outcome passes if it is of a pod that was granted on the node whose user published it: the log says so, or, where the log
does not go back so far, the pod itself. Readers of the log thus never see one node's agent on another node's pod.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Final

import structlog

from hami_protocol import envelope, subjects
from hami_protocol.envelope import Message
from hami_protocol.errors import EventError
from hami_protocol.events import GrantEvent, OutcomeEvent
from hami_runtime.bus.port import Bus, BusError, Delivery, MessageRefused
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.cluster import PODS, Cluster, ClusterError, NotFound
from hami_runtime.lifecycle import run_until, until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
DURABLE: Final = "registry-reports"
ACK_WAIT_SECONDS: Final = 60.0
_WORKERS: Final = 32
"""A node's reports are checked one after the other, in order; those of many nodes beside each other."""
_WAITING: Final = 64
_REMEMBERED_PODS: Final = 50_000
_QUIET_SECONDS: Final = 60.0
"""One node's refusals are logged once in so long."""
_QUIET_NODES: Final = 10_000
_RETRY_SECONDS: Final = 1.0
_MOST_ATTEMPTS: Final = 5
"""After which a report whose check fails with a fault of ours is refused."""
_HEADERS: Final = frozenset({"ce-specversion", "ce-type", envelope.EVENT_ID, "ce-time", "content-type", envelope.TRACE_PARENT})
"""What an agent's message may keep. Any other header could ask something of the server in the registry's name."""
_MOST_HEADER: Final = 512


class ReportGate:
    """Moves outcomes from the queue to the log."""

    def __init__(self, bus: Bus, cluster: Cluster, clock: Clock, *, telemetry: Telemetry = OFF) -> None:
        """Check by the log on ``bus`` and the pods of ``cluster``."""
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._node_of: OrderedDict[str, str] = OrderedDict()
        """By UID, the node on which the pod was granted; that never changes."""
        self._logged: OrderedDict[str, float] = OrderedDict()
        self._isolation = Isolation("reports", clock, telemetry)
        self._results = telemetry.counter(
            "hami_registry_reports", "outcomes of agents that were checked before they reach the log, by result"
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Check until ``stop``."""
        waiting: list[asyncio.Queue[Delivery]] = [asyncio.Queue(_WAITING) for _ in range(_WORKERS)]
        async with (
            self._bus.consume(
                subjects.REPORTS, subjects=(subjects.ALL_REPORTS,), durable=DURABLE, ack_wait_seconds=ACK_WAIT_SECONDS
            ) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            for queue in waiting:
                group.create_task(run_until(stop, self._check_for_ever(queue)))
            async for delivery in until(stop, deliveries):
                await waiting[hash(delivery.message.subject) % _WORKERS].put(delivery)

    async def _check_for_ever(self, queue: asyncio.Queue[Delivery]) -> None:
        while True:
            delivery = await queue.get()
            name = f"report {delivery.sequence}"
            with self._isolation.item(name):
                await self._check(delivery)
            if self._isolation.times(name) >= _MOST_ATTEMPTS:
                self._isolation.forget(name)
                await self._refuse(delivery, "its check has failed too often")
            elif self._isolation.times(name):
                await delivery.nak(delay_seconds=self._isolation.pause_seconds(name))

    async def _check(self, delivery: Delivery) -> None:
        try:
            node, event = read(delivery.message)
            if (reason := await self._refusal(node, event)) is not None:
                await self._refuse(delivery, reason)
                return
            await self._bus.publish(checked(delivery.message, event))
        except (EventError, MessageRefused) as exc:
            await self._refuse(delivery, str(exc))
        except (BusError, ClusterError) as exc:
            self._results.add(1, {"result": "again"})
            log.info("report has to wait", subject=delivery.message.subject, reason=str(exc))
            await delivery.nak(delay_seconds=_RETRY_SECONDS)
        else:
            self._results.add(1, {"result": "passed"})
            await delivery.ack()

    async def _refusal(self, node: str, event: OutcomeEvent) -> str | None:
        """Why ``event``, published by the agent of ``node``, does not count."""
        granted = self._node_of.get(event.pod.uid) or await self._look_up(node, event)
        if granted == node:
            self._node_of[event.pod.uid] = node
            self._node_of.move_to_end(event.pod.uid)
            if len(self._node_of) > _REMEMBERED_PODS:
                self._node_of.popitem(last=False)
            return None
        return f"pod {event.pod} (uid {event.pod.uid}) was granted on {granted or 'no node'}; accepted: an outcome of a pod of {node}"

    async def _look_up(self, node: str, event: OutcomeEvent) -> str:
        pod = event.pod
        last = await self._bus.last(subjects.ALLOCATIONS, subjects.grant(node, pod.namespace, pod.name))
        if last is not None and grants(last, event):
            return node
        try:
            found = await self._cluster.get(PODS, pod.name, namespace=pod.namespace)
        except NotFound:
            return ""
        return found.spec.node_name if found.metadata.uid == pod.uid else ""

    async def _refuse(self, delivery: Delivery, reason: str) -> None:
        self._results.add(1, {"result": "refused"})
        now, subject = self._clock.monotonic(), delivery.message.subject
        if now - self._logged.get(subject, float("-inf")) >= _QUIET_SECONDS:
            self._logged[subject] = now
            self._logged.move_to_end(subject)
            if len(self._logged) > _QUIET_NODES:
                self._logged.popitem(last=False)
            log.warning("report refused", subject=subject, sequence=delivery.sequence, reason=reason)
        await delivery.term(reason)


def read(report: Message) -> tuple[str, OutcomeEvent]:
    """The node whose agent published ``report``, and the outcome in it.

    Raises:
        EventError: there is none of that node in it.
    """
    node = subjects.name_of(report.subject.rpartition(".")[2])
    event = envelope.decode(report)
    if not isinstance(event, OutcomeEvent):
        raise EventError(f"on {report.subject}: {type(event).__name__}; accepted: an outcome")
    if event.node != node:
        raise EventError(f"on {report.subject}: an outcome of node {event.node}; accepted: of {node}")
    return node, event


def grants(last: Message, outcome: OutcomeEvent) -> bool:
    """Whether ``last``, the last event on a grant subject of the outcome's node, is of the outcome's pod."""
    try:
        event = envelope.open_message(last)
    except EventError:
        return False
    return isinstance(event, GrantEvent) and event.pod.uid == outcome.pod.uid


def checked(report: Message, event: OutcomeEvent) -> Message:
    """``report`` as it goes into the log.

    Raises:
        EventError: its names cannot be part of a subject.
    """
    try:
        subject = subjects.subject_of(event, subjects.agent_source(event.node))
    except ValueError as exc:
        raise EventError(f"on {report.subject}: {exc}") from exc
    headers = {key: value for key, value in report.headers.items() if key in _HEADERS and len(value) <= _MOST_HEADER}
    headers["ce-source"] = subjects.agent_source(event.node)
    identity = f"{subject} {envelope.event_id(report)} {hashlib.sha256(report.data).hexdigest()}"
    headers[envelope.MESSAGE_ID] = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return Message(subject=subject, data=report.data, headers=headers)

"""What agents publish reaches the log of grants only where it is of a pod of their own node."""

from __future__ import annotations

import asyncio

import pytest

from hami_protocol import envelope, events, subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message
from hami_protocol.errors import EventError
from hami_registry import reports
from hami_runtime.bus import BusUnavailable
from hami_runtime.bus.filters import matches
from hami_runtime.telemetry import Telemetry
from tests.contract.registry.conftest import Scenario, World

POD = PodRef(namespace="default", name="p", uid="u")
GRANT = events.PodAllocating(pod=POD, node="n1", assignments=(), bind_time_seconds=1)
MAPPING = subjects.Mapping("hami.v1.allocations.*.*.*.outcome", subjects.REPORTS.subjects[0])
"""As the agents' account maps what they publish."""


async def report(world: World, event: events.OutcomeEvent, *, by: str = "n1", headers: dict[str, str] | None = None) -> None:
    """What the agent of node ``by`` publishes on a subject that its user may publish on."""
    sealed = envelope.seal(event, event_id=f"{event.pod.uid}/{type(event).__name__}", source="/forged", time="2026-01-01T00:00:00Z")
    subject = MAPPING(subjects.outcome(by, event.pod.namespace, event.pod.name))
    await world.bus.publish(Message(subject=subject, data=sealed.data, headers={**sealed.headers, **(headers or {})}))


def logged(world: World) -> list[tuple[str, str]]:
    return [
        (message.subject, type(envelope.open_message(message)).__name__)
        for message in world.bus.kept(subjects.ALLOCATIONS)
        if matches(subjects.ALL_OUTCOMES, message.subject)
    ]


async def grant(world: World, event: events.GrantEvent = GRANT) -> None:
    await world.bus.publish(envelope.seal(event, event_id="g", source="/hami/scheduler/s", time="2026-01-01T00:00:00Z"))


def test_the_outcome_of_a_granted_pod_passes_and_the_queue_is_empty_then(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            await grant(world)
            await report(world, events.AllocationSucceeded(pod=POD, node="n1"))
            await report(world, events.PodReleased(pod=POD, node="n1"))
            await asyncio.sleep(5)
            subject = subjects.outcome("n1", "default", "p")
            assert logged(world) == [(subject, "AllocationSucceeded"), (subject, "PodReleased")]
            assert world.bus.kept(subjects.REPORTS) == ()

    play(scenario)


def test_one_nodes_agent_says_nothing_of_another_nodes_pod(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("test")
        async with world.registry(telemetry=telemetry):
            await asyncio.sleep(5)
            await grant(world)
            lies: tuple[events.OutcomeEvent, ...] = (
                events.PodReleased(pod=POD, node="n2"),
                events.AllocationFailed(pod=POD, node="n2", reason="no"),
                events.AllocationSucceeded(pod=POD, node="n2"),
                events.ShareResizeApplied(pod=POD, node="n2", assignments=(), generation=1),
                events.ShareResizeRefused(pod=POD, node="n2", generation=1, reason="no"),
                events.ContainerServed(pod=POD, node="n2", container="c", vendor="NVIDIA", to_allocate=";"),
            )
            for event in lies:
                await report(world, event, by="n2")
            await report(world, events.PodReleased(pod=POD, node="n1"), by="n2")
            await asyncio.sleep(5)
            assert logged(world) == []
            assert world.bus.kept(subjects.REPORTS) == ()
            assert 'hami_registry_reports_total{result="refused"} 7.0' in telemetry.prometheus_text().decode()

    play(scenario)


def test_a_pod_older_than_the_log_is_known_by_its_own_node(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            pod = world.add_pod("p")
            await report(world, events.PodReleased(pod=pod, node="n2"), by="n2")
            await report(world, events.PodReleased(pod=PodRef(namespace="default", name="p", uid="earlier"), node="n1"))
            await report(world, events.AllocationSucceeded(pod=pod, node="n1"))
            await asyncio.sleep(5)
            assert [what for _, what in logged(world)] == ["AllocationSucceeded"]

    play(scenario)


def test_nothing_that_an_agent_adds_to_a_message_reaches_the_log(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            await grant(world)
            await report(
                world,
                events.AllocationSucceeded(pod=POD, node="n1"),
                headers={
                    "Nats-Rollup": "all",
                    "Nats-Trace-Dest": "hami.v1.devices.n2.nvidia",
                    "Nats-Msg-Id": "chosen",
                    "ce-time": "x" * 600,
                },
            )
            await asyncio.sleep(5)
            (message,) = (each for each in world.bus.kept(subjects.ALLOCATIONS) if each.subject.endswith(".outcome"))
            assert message.headers.keys() <= {"ce-specversion", "ce-type", "ce-id", "ce-source", "content-type", envelope.MESSAGE_ID}
            assert (message.headers["ce-source"], message.headers[envelope.MESSAGE_ID]) == (
                "/hami/node-agent/n1",
                message.headers[envelope.MESSAGE_ID],
            )
            assert message.headers[envelope.MESSAGE_ID] != "chosen"

    play(scenario)


def test_a_node_fills_its_own_part_of_the_queue_and_no_other(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        await world.bus.ensure_streams((subjects.REPORTS,))
        for _ in range(subjects.MOST_REPORTS):
            await report(world, events.PodReleased(pod=POD, node="n1"))
        with pytest.raises(BusUnavailable):
            await report(world, events.PodReleased(pod=POD, node="n1"))
        await report(world, events.PodReleased(pod=POD, node="n2"), by="n2")

    play(scenario)


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"stream":"HAMI_DEVICES","seq":1}', b"\xff"])
def test_what_is_no_outcome_is_refused(data: bytes) -> None:
    with pytest.raises(EventError):
        reports.read(Message(subject="hami.v1.reports.n1", data=data))

"""What the registry writes onto pods, through its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hami_protocol import keys, subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import Message
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed, Event
from hami_registry.service import BURST_PER_SECOND
from hami_runtime.bursts import LONGEST_WAIT_SECONDS
from hami_runtime.kube.cluster import Unavailable
from hami_runtime.kube.store_resources import NODES, PODS
from hami_runtime.telemetry import Telemetry

from .conftest import Scenario, World, a_grant

KEY = "hami.io/vgpu-devices-to-allocate"
A, B = "GPU-n1,NVIDIA,3000,0:", "GPU-n1,NVIDIA,5000,0:"
BOUND = {keys.BIND_PHASE: "allocating", KEY: f"{A};{B};"}


def succeeded(pod: PodRef, node: str = "n1") -> AllocationSucceeded:
    return AllocationSucceeded(pod=pod, node=node)


def failed(pod: PodRef) -> AllocationFailed:
    return AllocationFailed(pod=pod, node="n1", reason="no such device")


def served(pod: PodRef, text: str) -> ContainerServed:
    return ContainerServed(pod=pod, node="n1", container="c0", vendor="NVIDIA", to_allocate=text)


def test_success_costs_one_call_and_empties_what_was_to_allocate(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        world.add_node()
        async with world.registry():
            await asyncio.sleep(5)
            pod = world.add_pod(**BOUND)
            await world.say(a_grant(pod, 3000, 5000))
            await world.say(succeeded(pod))
            await asyncio.sleep(1)
            assert world.pod_annotations() == {keys.BIND_PHASE: "success", KEY: ";;"}
            assert (world.calls("patch", "pods"), world.calls("get", "pods")) == (1, 0)

    play(scenario)


def test_container_by_container_and_then_success(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            pod = world.add_pod(**BOUND)
            await world.say(a_grant(pod, 3000, 5000))
            await world.say(served(pod, f";{B};"))
            await asyncio.sleep(5)
            assert world.pod_annotations()[KEY] == f";{B};"
            await world.say(served(pod, ";;"))
            await world.say(succeeded(pod))
            await asyncio.sleep(1)
            assert world.pod_annotations() == {keys.BIND_PHASE: "success", KEY: ";;"}

    play(scenario)


def test_failure_is_written_and_never_becomes_success(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            pod = world.add_pod(**BOUND)
            await world.say(a_grant(pod, 3000, 5000))
            await world.say(AllocationFailed(pod=pod, node="n1", reason="no card"))
            await world.say(succeeded(pod))
            await asyncio.sleep(5)
            assert world.pod_annotations()[keys.BIND_PHASE] == "failed"

    play(scenario)


def test_a_registry_that_was_away_goes_on_where_it_was(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        pod = world.add_pod(**BOUND)
        async with world.registry("r1"):
            await world.say(a_grant(pod, 3000, 5000))
            await asyncio.sleep(5)
        await world.say(succeeded(pod))
        async with world.registry("r2"):
            await asyncio.sleep(10)
            assert world.pod_annotations() == {keys.BIND_PHASE: "success", KEY: ";;"}

    play(scenario)


def test_a_pod_that_is_gone_is_done(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("registry")
        async with world.registry(telemetry=telemetry):
            await world.say(succeeded(PodRef(namespace="default", name="gone", uid="u")))
            await asyncio.sleep(60)
            assert world.calls("get", "pods") == 1
            assert b'result="done",type="AllocationSucceeded"} 1.0' in telemetry.prometheus_text()
        telemetry.close()

    play(scenario)


def test_a_namesake_is_never_written_to(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            old = world.add_pod(**BOUND)
            await world.say(a_grant(old, 3000, 5000))
            await asyncio.sleep(5)
            world.store.delete(PODS, "p1", "default", {"gracePeriodSeconds": 0})
            world.add_pod(**BOUND)
            await world.say(succeeded(old))
            await asyncio.sleep(30)
            assert world.pod_annotations() == BOUND

    play(scenario)


def test_an_agent_cannot_speak_for_another_nodes_pod(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            pod = world.add_pod(**BOUND)
            await world.say(succeeded(pod, node="n2"))
            await asyncio.sleep(30)
            assert world.pod_annotations() == BOUND

    play(scenario)


@pytest.mark.parametrize("known", [True, False])
def test_what_fails_comes_again_until_it_is_done(play: Scenario, known: bool) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            pod = world.add_pod(**BOUND)
            if known:
                await world.say(a_grant(pod, 3000, 5000))
            await asyncio.sleep(5)
            world.clusters[0].down()
            await world.say(succeeded(pod))
            await asyncio.sleep(20)
            assert world.pod_annotations() == BOUND
            world.clusters[0].up()
            await asyncio.sleep(40)
            assert world.pod_annotations() == {keys.BIND_PHASE: "success", KEY: ";;"}

    play(scenario)


def test_a_write_whose_answer_was_lost_is_not_made_worse_by_its_repetition(play: Scenario, monkeypatch: Any) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            pod = world.add_pod(**BOUND)
            await world.say(a_grant(pod, 3000, 5000))
            await asyncio.sleep(5)
            cluster = world.clusters[0]
            patch, lost = cluster.patch, []

            async def losing(kind: Any, name: str, *args: Any, **kwargs: Any) -> Any:
                answer = await patch(kind, name, *args, **kwargs)
                if kind.plural == "pods" and not lost:
                    lost.append(name)
                    raise Unavailable("lost", maybe_applied=True)
                return answer

            monkeypatch.setattr(cluster, "patch", losing)
            await world.say(served(pod, f";{B};"))
            await world.say(succeeded(pod))
            await asyncio.sleep(30)
            assert lost
            assert world.pod_annotations() == {keys.BIND_PHASE: "success", KEY: ";;"}

    play(scenario)


def test_many_pods_at_once(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        async with world.registry():
            await asyncio.sleep(5)
            pods = [world.add_pod(f"p{place}", **BOUND) for place in range(100)]
            for pod in pods:
                await world.say(a_grant(pod, 3000, 5000))
                await world.say(served(pod, f";{B};"))
                await world.say(succeeded(pod))
            await asyncio.sleep(2)
            assert all(world.pod_annotations(pod.name) == {keys.BIND_PHASE: "success", KEY: ";;"} for pod in pods)

    play(scenario)


class TestInABurst:
    """While pods are placed fast, the API server's time is theirs."""

    async def place(self, world: World, name: str, *outcomes: Callable[[PodRef], Event]) -> None:
        """One pod of many: 50 a second."""
        pod = world.add_pod(name, **BOUND)
        await world.say(a_grant(pod, 3000, 5000))
        for outcome in outcomes or (succeeded,):
            await world.say(outcome(pod))
        await asyncio.sleep(0.02)

    async def burst(self, world: World, count: int, *outcomes: Callable[[PodRef], Event]) -> None:
        """So many pods, each with these outcomes, or with success."""
        for number in range(count):
            await self.place(world, f"p{number}", *outcomes)

    def phases(self, world: World, count: int) -> list[str]:
        return [world.pod_annotations(f"p{number}")[keys.BIND_PHASE] for number in range(count)]

    def test_success_is_written_once_it_is_over(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            async with world.registry():
                await asyncio.sleep(5)
                await self.burst(world, 150)
                early = self.phases(world, 150).count("success")
                assert 0 < early <= BURST_PER_SECOND + 1  # before anybody could know that there would be many
                await asyncio.sleep(1.1)
                assert self.phases(world, 150) == ["success"] * 150
                assert (world.calls("patch", "pods"), world.calls("get", "pods")) == (150, 0)

        play(scenario)

    def test_it_waits_for_a_bounded_time(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            async with world.registry():
                await asyncio.sleep(5)
                await self.burst(world, 600)
                phases = self.phases(world, 600)
                written_up_to = round((12 - LONGEST_WAIT_SECONDS) * 50)
                assert phases[: written_up_to - 5] == ["success"] * (written_up_to - 5)
                assert phases[written_up_to + 5 :] == ["allocating"] * (595 - written_up_to)

        play(scenario)

    def test_failure_is_written_at_once(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            async with world.registry():
                await asyncio.sleep(5)
                await self.burst(world, 100)
                await self.place(world, "p100", failed)
                assert self.phases(world, 101)[-2:] == ["allocating", "failed"]

        play(scenario)

    def test_one_pods_outcomes_stay_in_order(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            async with world.registry():
                await asyncio.sleep(5)
                await self.burst(world, 100, succeeded, failed)
                await asyncio.sleep(2)
                assert self.phases(world, 100) == ["success"] * 100

        play(scenario)

    def test_what_waits_when_its_registry_ends_is_written_by_the_next_at_once(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            async with world.registry():
                await asyncio.sleep(5)
                await self.burst(world, 100)
            assert self.phases(world, 100).count("success") <= BURST_PER_SECOND + 1
            async with world.registry():
                await asyncio.sleep(3)
                assert self.phases(world, 100) == ["success"] * 100

        play(scenario)


class TestLocksOfTheReferencesScheduler:
    LOCK = "2026-01-01T00:00:00Z,default,p1"

    @pytest.mark.parametrize(
        ("lock", "left"),
        [(LOCK, None), ("2026-01-01T00:00:00Z,default,other", "2026-01-01T00:00:00Z,default,other"), ("garbage", "garbage")],
    )
    def test_it_is_released_if_it_is_this_pods(self, play: Scenario, lock: str, left: str | None) -> None:
        async def scenario(world: World) -> None:
            world.add_node(**{keys.NODE_LOCK: lock})
            async with world.registry():
                pod = world.add_pod(**BOUND)
                await world.say(succeeded(pod))
                await asyncio.sleep(10)
                assert world.annotations().get(keys.NODE_LOCK) == left

        play(scenario)

    def test_one_of_our_own_schedulers_is_left_to_it(self, play: Scenario) -> None:
        async def scenario(world: World) -> None:
            world.add_node(**{keys.NODE_LOCK: self.LOCK})
            async with world.registry():
                pod = world.add_pod(**BOUND)
                await world.say(a_grant(pod, 3000, 5000))
                await world.say(succeeded(pod))
                await asyncio.sleep(10)
                assert world.annotations()[keys.NODE_LOCK] == self.LOCK

        play(scenario)

    def test_it_is_released_although_the_node_changed_meanwhile(self, play: Scenario, monkeypatch: Any) -> None:
        async def scenario(world: World) -> None:
            world.add_node(**{keys.NODE_LOCK: self.LOCK})
            async with world.registry():
                await asyncio.sleep(5)
                cluster = world.clusters[0]
                patch = cluster.patch

                async def behind(kind: Any, name: str, *args: Any, **kwargs: Any) -> Any:
                    if kind.plural == "nodes" and kwargs.get("resource_version"):
                        monkeypatch.setattr(cluster, "patch", patch)
                        world.store.merge_patch(NODES, name, {"metadata": {"labels": {"changed": "yes"}}})
                    return await patch(kind, name, *args, **kwargs)

                monkeypatch.setattr(cluster, "patch", behind)
                pod = world.add_pod(**BOUND)
                await world.say(succeeded(pod))
                await asyncio.sleep(10)
                assert keys.NODE_LOCK not in world.annotations()

        play(scenario)


def test_a_message_that_does_not_decode_is_terminated_and_counted(play: Scenario) -> None:
    async def scenario(world: World) -> None:
        telemetry = Telemetry("registry")
        async with world.registry(telemetry=telemetry):
            pod = world.add_pod(**BOUND)
            subject = subjects.outcome("n1", "default", "p1")
            for data in (b"", b"\xff", b'{"type":"allocation_succeeded"}', b"{}"):
                await world.bus.publish(Message(subject=subject, data=data))
            await world.say(a_grant(pod, 3000, 5000))
            await world.say(succeeded(pod))
            await asyncio.sleep(10)
            assert world.pod_annotations()[keys.BIND_PHASE] == "success"
            assert b'hami_registry_unreadable_messages_total{stream="HAMI_ALLOCATIONS"} 4.0' in telemetry.prometheus_text()
        telemetry.close()

    play(scenario)

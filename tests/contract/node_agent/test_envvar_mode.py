"""``envvar``: found by lock and pending grants; never guessed, and verified before the container starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from hami_node_agent.granting import GrantPolicy
from hami_node_agent.refusals import Refusal, RefusalKind, Refused
from hami_protocol import keys
from hami_protocol.devices import AllocationMode
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed
from hami_protocol.pods import pod_ref
from hami_runtime.kube.cluster import NODES
from tests.contract.node_agent.world import World, play

ENVVAR = AllocationMode.ENVVAR


async def refusal(awaitable: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refused) as caught:
        await awaitable
    return caught.value.refusal


def test_what_is_left_to_allocate_is_emptied_container_by_container_then_success() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c0=[("GPU-a", 1000, 10)], none=[], c1=[("GPU-b", 2000, 20)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.outbox.wait_empty()
        assert [event.to_allocate for event in world.said(ContainerServed)] == [";;GPU-b,NVIDIA,2000,20:;", ";;;"]
        assert [type(event) for event in world.said(ContainerServed, AllocationSucceeded)] == [
            ContainerServed,
            ContainerServed,
            AllocationSucceeded,
        ]

    play(scenario, ENVVAR)


def test_the_answer_names_the_cards_and_mounts_the_containers_own_folder() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c0=[("GPU-a", 1000, 10), ("GPU-b", 500, 5)])
        answer = (await world.kubelet.admit(world.agent, pod))["c0"]
        assert answer.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
        assert answer.cdi_devices == ()
        assert f"/usr/local/vgpu/containers/{pod.metadata.uid}_c0" in {bind.host_path for bind in answer.mounts}

    play(scenario, ENVVAR)


def test_without_a_lock_different_grants_are_refused_and_nobody_has_failed() -> None:
    async def scenario(world: World) -> None:
        big = await world.pod("big", main=[("GPU-a", 24576, 100)])
        await world.pod("small", main=[("GPU-b", 600, 10)])
        assert (await refusal(world.kubelet.admit(world.agent, big))).kind is RefusalKind.AMBIGUOUS
        assert world.said(AllocationFailed, ContainerServed) == []

    play(scenario, ENVVAR)


def test_a_lock_that_is_seen_before_its_pod_keeps_others_from_being_served_in_its_place() -> None:
    async def scenario(world: World) -> None:
        await world.pod("older", main=[("GPU-a", 24576, 100)])
        await world.lock("newer")
        asking = asyncio.create_task(world.agent.allocate(["GPU-b-0"]))
        await asyncio.sleep(2)
        assert not asking.done()
        await world.pod("newer", main=[("GPU-b", 600, 10)])
        assert (await asking).environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "600m"

    play(scenario, ENVVAR)


def test_a_lock_of_a_pod_that_never_comes_is_no_lock() -> None:
    async def scenario(world: World) -> None:
        await world.lock("vanished")
        pod = await world.pod("p", main=[("GPU-b", 600, 10)])
        assert (await world.kubelet.admit(world.agent, pod))["main"].environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "600m"

    play(scenario, ENVVAR)


@pytest.mark.parametrize("text", ["", "junk", "a,b", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z,a,b,c"])
def test_a_lock_that_nobody_can_read_or_that_names_nobody_is_no_lock(text: str) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-b", 600, 10)])
        await world.admin.patch(NODES, "n1", {"metadata": {"annotations": {keys.NODE_LOCK: text}}})
        assert "main" in await world.kubelet.admit(world.agent, pod)

    play(scenario, ENVVAR)


def test_a_count_that_differs_fails_the_locked_pod() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", main=[("GPU-b", 600, 10)])
        await world.lock("p")
        found = await refusal(world.agent.allocate(["GPU-a-0", "GPU-a-1"]))
        assert found.kind is RefusalKind.COUNT_DIFFERS
        await world.agent.outbox.wait_empty()
        assert [event.pod.name for event in world.said(AllocationFailed)] == ["p"]

    play(scenario, ENVVAR)


@pytest.mark.parametrize(
    "written",
    [
        {keys.BIND_PHASE: "success"},
        {keys.BIND_PHASE: "failed"},
        {keys.ASSIGNED_NODE: "elsewhere"},
        {"hami.io/vgpu-devices-to-allocate": ";"},
    ],
    ids=["succeeded", "failed", "another node's", "nothing left"],
)
def test_a_pod_that_does_not_wait_is_never_a_candidate(written: dict[str, str]) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", written=written, main=[("GPU-b", 600, 10)])
        assert (await refusal(world.kubelet.admit(world.agent, pod))).kind is RefusalKind.UNKNOWN_POD

    play(scenario, ENVVAR)


def test_more_left_to_allocate_than_was_assigned_is_refused() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", written={"hami.io/vgpu-devices-to-allocate": "GPU-b,NVIDIA,24576,10:;"}, main=[("GPU-b", 600, 10)])
        await world.lock("p")
        assert (await refusal(world.kubelet.admit(world.agent, pod))).kind is RefusalKind.UNREADABLE

    play(scenario, ENVVAR)


def test_a_restart_between_two_containers_serves_none_of_them_twice() -> None:
    async def scenario(world: World) -> None:
        await world.pod("p", c0=[("GPU-a", 1000, 10)], c1=[("GPU-b", 2000, 20)])
        first = await world.agent.allocate(["GPU-a-0"])
        await world.kill()
        await world.start()
        second = await world.agent.allocate(["GPU-a-1"])
        assert [answer.environment["CUDA_DEVICE_MEMORY_LIMIT_0"] for answer in (first, second)] == ["1000m", "2000m"]
        assert (await refusal(world.agent.allocate(["GPU-a-2"]))).kind is RefusalKind.UNKNOWN_POD

    play(scenario, ENVVAR)


def test_that_a_pod_has_failed_is_said_though_the_agent_dies_before_the_bus_is_back() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", publish=world.assignment({}, {"main": [("GPU-a", 999, 10)]}, ()), main=[("GPU-a", 1000, 10)])
        world.bus.down()
        assert (await refusal(world.agent.allocate(["GPU-a-0"]))).kind is RefusalKind.GRANT_DIFFERS
        await world.kill()
        await world.start()
        world.bus.up()
        await asyncio.sleep(30.0)
        assert [event.pod for event in world.said(AllocationFailed)] == [pod_ref(pod)]

    play(scenario, ENVVAR)


def test_twins_may_be_served_in_either_order_and_both_start() -> None:
    async def scenario(world: World) -> None:
        pods = [await world.pod(name, bind_time=time, main=[("GPU-a", 600, 10)]) for name, time in (("first", 1), ("second", 2))]
        for pod in reversed(pods):
            await world.kubelet.admit(world.agent, pod)
        for pod in pods:
            await world.agent.pre_start(world.kubelet.ids(pod, "main"))
        # What was written for `first` is in `second`'s container: it outlives `first`.
        await world.delete(pods[0])
        world.kubelet.end(pods[0])
        await asyncio.sleep(120)
        assert f"/usr/local/vgpu/containers/{pods[0].metadata.uid}_main" in world.files.folders
        await world.delete(pods[1])
        world.kubelet.end(pods[1])
        await asyncio.sleep(120)
        assert not any("_main" in path for path in world.files.folders)

    play(scenario, ENVVAR)


def test_an_answer_that_reached_another_pod_never_starts() -> None:
    async def scenario(world: World) -> None:
        small = await world.pod("small", main=[("GPU-b", 600, 10)])
        await world.kubelet.admit(world.agent, small)  # matched rightly
        big = await world.pod("big", main=[("GPU-a", 24576, 100)])
        await world.kubelet.admit(world.agent, big)
        # As if kubelet had meant them the other way round.
        held = {one.pod_uid: one for one in world.kubelet.ledger.held}
        for one, other in ((small, big), (big, small)):
            mine, theirs = held[one.metadata.uid], held[other.metadata.uid]
            world.kubelet.ledger.hold(type(mine)(**{**{key: getattr(mine, key) for key in mine.__slots__}, "answer": theirs.answer}))
        found = await refusal(world.agent.pre_start(world.kubelet.ids(small, "main")))
        assert found.kind is RefusalKind.SWAPPED
        assert found.final
        assert "CUDA_DEVICE_MEMORY_LIMIT_0" in found.reason

    play(scenario, ENVVAR)


def test_preferred_slots_are_of_the_granted_cards_and_none_where_it_is_not_certain_whose() -> None:
    async def scenario(world: World) -> None:
        available = ["GPU-00000000-0000-0000-0000-000000000001-0", "GPU-00000000-0000-0000-0000-000000000002-0"]
        card = available[1].removesuffix("-0")
        await world.pod("p", main=[(card, 600, 10)])
        assert await world.agent.preferred(available, [], 1) == (available[1],)
        assert await world.agent.preferred(available, [], 2) == ()
        await world.pod("q", main=[("GPU-b", 600, 10)])
        assert await world.agent.preferred(available, [], 1) == ()

    play(scenario, ENVVAR)


def test_beside_the_references_scheduler_no_event_is_asked_for() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", granted=False, main=[("GPU-b", 600, 10)])
        assert "main" in await world.kubelet.admit(world.agent, pod)

    play(scenario, ENVVAR, policy=GrantPolicy(require_event=False))


SHORT = "GPU-a,NVIDIA,1000,10:;"


@pytest.mark.parametrize(
    ("pod", "record", "left"),
    [
        pytest.param({"inits": {"i0": []}, "main": [("GPU-a", 1000, 10)]}, SHORT, ";", id="an init container without"),
        pytest.param({"first": [], "main": [("GPU-a", 1000, 10)]}, SHORT, ";", id="an application before it without"),
        pytest.param({"inits": {"side": []}, "sidecars": ["side"], "main": [("GPU-a", 1000, 10)]}, SHORT, ";", id="a sidecar without"),
        pytest.param(
            {"inits": {"i0": []}, "main": [("GPU-a", 1000, 10)], "last": []}, f"{SHORT};", ";;", id="v2.7: an entry per application"
        ),
    ],
)
def test_a_pod_whose_record_the_reference_has_shortened_is_served_and_its_record_keeps_its_form(
    pod: dict[str, Any], record: str, left: str
) -> None:
    async def scenario(world: World) -> None:
        written = {"hami.io/vgpu-devices-allocated": record, "hami.io/vgpu-devices-to-allocate": record}
        bound = await world.pod("p", granted=False, written=written, **pod)
        await world.lock("p")
        answers = await world.kubelet.admit(world.agent, bound)
        assert answers["main"].environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
        await world.agent.outbox.wait_empty()
        (event,) = world.said(ContainerServed)
        assert (event.container, event.to_allocate) == ("main", left)
        assert world.said(AllocationSucceeded)

    play(scenario, ENVVAR, policy=GrantPolicy(require_event=False))


def test_two_containers_of_a_shortened_record_are_served_one_after_the_other() -> None:
    async def scenario(world: World) -> None:
        record = "GPU-a,NVIDIA,1000,10:;GPU-b,NVIDIA,2000,20:;"
        written = {"hami.io/vgpu-devices-allocated": record, "hami.io/vgpu-devices-to-allocate": record}
        pod = await world.pod(
            "p", granted=False, written=written, inits={"i0": []}, c0=[("GPU-a", 1000, 10)], none=[], c1=[("GPU-b", 2000, 20)]
        )
        await world.lock("p")
        answers = await world.kubelet.admit(world.agent, pod)
        assert [answers[name].environment["CUDA_DEVICE_MEMORY_LIMIT_0"] for name in ("c0", "c1")] == ["1000m", "2000m"]
        await world.agent.outbox.wait_empty()
        assert [event.to_allocate for event in world.said(ContainerServed)] == [";GPU-b,NVIDIA,2000,20:;", ";;"]

    play(scenario, ENVVAR, policy=GrantPolicy(require_event=False))

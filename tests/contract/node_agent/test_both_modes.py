"""What holds in both modes (HAMi#382): every container gets exactly what it was granted, whatever the order of calls."""

from __future__ import annotations

import asyncio

import pytest

from hami_node_agent import grant_file
from hami_node_agent.node_pods import annotated
from hami_node_agent.refusals import RefusalKind, Refused
from hami_protocol.devices import AllocationMode
from hami_protocol.events import AllocationFailed, AllocationSucceeded, ContainerServed, PodReleased
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from tests.contract.node_agent.world import World, play

CDI, ENVVAR = AllocationMode.CDI, AllocationMode.ENVVAR
both_modes = pytest.mark.parametrize("mode", [CDI, ENVVAR])


async def run_pod(world: World, pod: Pod, *containers: str) -> dict[str, dict[str, str]]:
    """Admit the pod and start its containers; what each finds in its environment."""
    answers = await world.kubelet.admit(world.agent, pod)
    for container in containers or answers:
        await world.agent.pre_start(tuple(reversed(world.kubelet.ids(pod, container))))
    return {name: world.environment(answer) for name, answer in answers.items()}


async def refused(awaitable: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await awaitable  # type: ignore[misc]
    return caught.value


@both_modes
def test_two_pods_of_the_same_count_get_their_own_limits_although_kubelet_asks_in_reverse_order(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        big = await world.pod("big", bind_time=1, main=[("GPU-a", 24576, 100)])
        if mode is ENVVAR:
            await world.lock("small")
        small = await world.pod("small", bind_time=2, main=[("GPU-b", 600, 10)])
        second = await run_pod(world, small)
        if mode is ENVVAR:
            await world.lock("big")
        first = await run_pod(world, big)
        assert second["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "600m"
        assert first["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"
        await world.agent.outbox.wait_empty()
        assert [event.pod.name for event in world.said(AllocationSucceeded)] == ["small", "big"]

    play(scenario, mode)


@both_modes
def test_three_containers_each_get_their_own_grants(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        one = await world.pod("one", c0=[("GPU-a", 1000, 10)], c1=[("GPU-a", 2000, 20), ("GPU-b", 2500, 25)], c2=[("GPU-b", 3000, 30)])
        if mode is ENVVAR:
            await world.lock("two")
        two = await world.pod("two", c0=[("GPU-b", 100, 1)], c1=[("GPU-b", 200, 2), ("GPU-a", 250, 3)], c2=[("GPU-a", 300, 4)])
        found = {"two": await run_pod(world, two)}
        if mode is ENVVAR:
            await world.lock("one")
        found["one"] = await run_pod(world, one)
        limits = {
            pod: [[env[key] for key in sorted(env) if key.startswith("CUDA_DEVICE_MEMORY_LIMIT")] for env in containers.values()]
            for pod, containers in found.items()
        }
        assert limits == {"one": [["1000m"], ["2000m", "2500m"], ["3000m"]], "two": [["100m"], ["200m", "250m"], ["300m"]]}
        caches = {env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for containers in found.values() for env in containers.values()}
        assert len(caches) == 6

    play(scenario, mode)


@both_modes
def test_init_containers_and_sidecars_get_their_own_grants_although_kubelet_gives_ids_again(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        if mode is ENVVAR:
            await world.lock("p")
        pod = await world.pod(
            "p",
            inits={"i0": [("GPU-a", 100, 1)], "sidecar": [("GPU-a", 200, 2)], "i2": [("GPU-a", 300, 3), ("GPU-b", 301, 3)]},
            sidecars=["sidecar"],
            c=[("GPU-b", 400, 4)],
            none=[],
            d=[("GPU-a", 500, 5), ("GPU-b", 501, 5)],
        )
        found = await run_pod(world, pod)
        assert {name: env["CUDA_DEVICE_MEMORY_LIMIT_0"] for name, env in found.items()} == {
            "i0": "100m",
            "sidecar": "200m",
            "i2": "300m",
            "c": "400m",
            "d": "500m",
        }
        assert set(world.kubelet.ids(pod, "i0")) == set(world.kubelet.ids(pod, "sidecar"))  # what makes it hard

    play(scenario, mode)


@both_modes
def test_a_pod_whose_only_request_is_in_an_init_container_is_served(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", inits={"i0": [("GPU-a", 100, 1)]}, main=[])
        found = await run_pod(world, pod)
        assert found["i0"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "100m"
        await world.agent.outbox.wait_empty()
        assert len(world.said(AllocationSucceeded)) == 1

    play(scenario, mode)


@both_modes
def test_grant_files_say_what_the_environment_says(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c0=[("GPU-a", 1000, 10), ("GPU-b", 2000, 0)], c1=[("GPU-b", 24576, 100)])
        await run_pod(world, pod)
        uid = pod.metadata.uid
        grants = {name: grant_file.decode(world.files.contents[f"/usr/local/vgpu/grants/{uid}_{name}"]) for name in ("c0", "c1")}
        assert [(one.uuid, one.memory_limit_mib, one.sm_percent, one.whole) for one in grants["c0"].devices] == [
            ("GPU-a", 1000, 10, False),
            ("GPU-b", 2000, 0, False),
        ]
        assert grants["c1"].devices[0].whole
        assert world.files.folders[f"/usr/local/vgpu/containers/{uid}_c0"] == 0o777

    play(scenario, mode)


@both_modes
def test_a_changed_annotation_is_refused_with_an_event_and_the_pod_has_failed(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        honest = world.assignment({}, {"main": [("GPU-a", 500, 10)]}, ())
        pod = await world.pod("p", publish=honest, main=[("GPU-a", 24000, 10)])
        error = await refused(run_pod(world, pod))
        assert error.refusal.kind is RefusalKind.GRANT_DIFFERS
        assert world.specs() == {}
        assert not any("/grants/" in path for path in world.files.contents)
        await world.agent.outbox.wait_empty()
        assert [event.pod.name for event in world.said(AllocationFailed)] == ["p"]
        assert [(name, reason) for name, reason, _ in await world.complaints()] == [("p", "AllocationRefused")]

    play(scenario, mode)


@both_modes
def test_an_annotation_that_no_grant_event_backs_is_refused(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("forged", granted=False, main=[("GPU-a", 24000, 100)])
        assert (await refused(run_pod(world, pod))).refusal.kind is RefusalKind.NO_GRANT
        assert world.said(AllocationSucceeded) == []

    play(scenario, mode)


@both_modes
def test_a_grant_of_a_namesake_backs_nobody_else(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        old = await world.pod("p", main=[("GPU-a", 500, 10)])
        await world.delete(old)
        new = await world.pod("p", granted=False, main=[("GPU-a", 500, 10)])
        assert (await refused(run_pod(world, new))).refusal.kind is RefusalKind.NO_GRANT

    play(scenario, mode)


@both_modes
def test_a_grant_that_is_a_little_late_is_waited_for(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", granted=False, main=[("GPU-a", 500, 10)])

        async def later() -> None:
            await asyncio.sleep(3)
            await world.grant(pod_ref(pod), world.assignment({}, {"main": [("GPU-a", 500, 10)]}, ()))

        granting = asyncio.create_task(later())
        found = await run_pod(world, pod)
        await granting
        assert found["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"

    play(scenario, mode)


@both_modes
def test_with_the_bus_down_annotations_decide_and_outcomes_go_out_once_it_is_back(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", granted=False, main=[("GPU-a", 500, 10)])
        world.bus.down()
        found = await run_pod(world, pod)
        assert found["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"
        world.bus.up()
        await asyncio.sleep(60)
        assert world.said(AllocationSucceeded, ContainerServed) == []  # not before the grant, which a leader publishes
        held = annotated(pod, world.agent.vendor)
        assert held is not None
        await world.grant(pod_ref(pod), held)
        await world.agent.outbox.wait_empty()
        expected = [AllocationSucceeded] if mode is CDI else [ContainerServed, AllocationSucceeded]
        assert [type(event) for event in world.said(AllocationSucceeded, ContainerServed)] == expected

    play(scenario, mode)


@both_modes
def test_with_the_api_server_down_pods_that_are_known_are_served(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        world.client.down()
        found = await run_pod(world, pod)
        assert found["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"

    play(scenario, mode)


@both_modes
@pytest.mark.parametrize(
    "text",
    ["GPU-a,NVIDIA,5", "GPU-a,NVIDIA,-5,0:;", "GPU-a,NVIDIA,1e400,0:;", ",,,:;", "GPU-a,NVIDIA,5,0:;" * 9, "\x00;" * 1000],
    ids=["short", "negative", "huge", "empty fields", "too many containers", "control characters"],
)
def test_a_hostile_annotation_is_refused_and_others_are_served(mode: AllocationMode, text: str) -> None:
    async def scenario(world: World) -> None:
        written = {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-devices-to-allocate": text}
        hostile = await world.pod("hostile", written=written, main=[("GPU-a", 500, 10)])
        if mode is ENVVAR:
            await world.lock("hostile")
        assert (await refused(run_pod(world, hostile))).refusal.kind is RefusalKind.UNREADABLE
        await world.lock(None)
        good = await world.pod("good", main=[("GPU-a", 500, 10)])
        assert (await run_pod(world, good))["main"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"

    play(scenario, mode)


@both_modes
def test_calls_cost_no_api_calls(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        before = dict(world.client.calls)
        await run_pod(world, pod)
        assert dict(world.client.calls) == before

    play(scenario, mode)


@both_modes
def test_an_ended_pod_is_released_once_and_leaves_nothing_behind(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        other = await world.pod("other", main=[("GPU-b", 600, 10)]) if mode is CDI else None
        await run_pod(world, pod)
        if other is not None:
            await run_pod(world, other)
        await world.phase(pod, "Succeeded")
        world.kubelet.end(pod)
        await world.agent.sweep()
        await world.delete(pod)
        await world.agent.sweep()
        await world.agent.outbox.wait_empty()
        assert [event.pod.uid for event in world.said(PodReleased)] == [pod.metadata.uid]
        left = [path for path in (*world.files.contents, *world.files.folders) if pod.metadata.uid in path]
        assert left == []
        assert pod.metadata.uid not in world.agent.journal.pods
        if other is not None:
            assert len(world.specs()) == 1

    play(scenario, mode)


@both_modes
def test_a_pod_that_ended_while_the_agent_was_away_is_released_by_its_journal(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        await run_pod(world, pod)
        await world.kill()
        await world.delete(pod)
        world.kubelet.end(pod)
        await world.start()
        await world.agent.outbox.wait_empty()
        assert [event.pod.uid for event in world.said(PodReleased)] == [pod.metadata.uid]

    play(scenario, mode)


@both_modes
def test_what_a_killed_agent_had_not_said_is_said_by_the_next_one(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        world.bus.down()
        await run_pod(world, pod)
        await world.kill()
        world.bus.up()
        assert world.said(AllocationSucceeded) == []
        await world.start()
        await world.agent.outbox.wait_empty()
        assert [event.pod.name for event in world.said(AllocationSucceeded)] == ["p"]

    play(scenario, mode)


@both_modes
def test_a_required_shim_that_is_not_there_serves_nobody(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", main=[("GPU-a", 500, 10)])
        assert (await refused(run_pod(world, pod))).refusal.kind is RefusalKind.NOT_READY
        assert "shim is not installed" in (world.agent.not_ready() or "")

    play(scenario, mode, shim_required=True)


@both_modes
def test_no_ids_are_refused(mode: AllocationMode) -> None:
    async def scenario(world: World) -> None:
        assert (await refused(world.agent.allocate([]))).refusal.kind is RefusalKind.EMPTY_REQUEST

    play(scenario, mode)

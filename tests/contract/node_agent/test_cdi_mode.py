"""``cdi``: Allocate waits for nobody; the start of a container finds out whose it is, or does not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami_node_agent.identity import ListedPod
from hami_node_agent.refusals import RefusalKind, Refused
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode
from hami_protocol.events import AllocationFailed, AllocationSucceeded
from tests.contract.node_agent.world import World, play


async def refusal_of(world: World, ids: Any) -> RefusalKind:
    with pytest.raises(Refused) as caught:
        await world.agent.pre_start(ids)
    return caught.value.refusal.kind


def test_allocate_answers_for_a_pod_that_nobody_has_seen_with_a_new_name_each_time() -> None:
    async def scenario(world: World) -> None:
        answers = [await world.agent.allocate(["GPU-a-0"]) for _ in range(3)]
        names = [answer.cdi_devices for answer in answers]
        assert len(set(names)) == 3
        assert all(len(name) == 1 and name[0].startswith("hami.io/gpu=c") for name in names)
        assert all(answer.environment == {} and answer.mounts == () for answer in answers)

    play(scenario)


def test_the_first_start_writes_the_specs_of_all_containers_and_says_so_once() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", inits={"i": [("GPU-a", 100, 1)]}, c=[("GPU-a", 200, 2)], d=[("GPU-b", 300, 3)])
        await world.kubelet.admit(world.agent, pod)
        assert world.specs() == {}
        await world.agent.pre_start(world.kubelet.ids(pod, "i"))
        assert len(world.specs()) == 3
        written = dict(world.files.contents)
        for container in ("i", "c", "d", "c", "c"):  # the others, and restarts
            await world.agent.pre_start(world.kubelet.ids(pod, container))
        assert world.files.contents == written
        await world.agent.outbox.wait_empty()
        assert len(world.said(AllocationSucceeded)) == 1

    play(scenario)


def test_a_container_is_void_for_nvidias_own_runtime_and_limited_by_the_shim() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        answers = await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        edits = world.specs()[answers["c"].cdi_devices[0]]
        assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
        assert "CUDA_DEVICE_MEMORY_LIMIT_0=200m" in edits["env"]
        assert {mount["containerPath"] for mount in edits["mounts"]} == {
            "/usr/local/vgpu",
            "/usr/local/vgpu/region",
            "/usr/local/vgpu/grant",
        }

    play(scenario)


def test_many_pods_at_once_in_any_order_each_get_their_own() -> None:
    async def scenario(world: World) -> None:
        pods = [await world.pod(f"p{place}", c=[("GPU-a", place, 0)], d=[("GPU-b", 500 + place, 0)]) for place in range(1, 8)]
        answers = {pod.metadata.name: await world.kubelet.admit(world.agent, pod) for pod in pods}
        starts = [world.agent.pre_start(world.kubelet.ids(pod, container)) for pod in reversed(pods) for container in ("d", "c")]
        await asyncio.gather(*starts)
        for place, pod in enumerate(pods, start=1):
            found = answers[pod.metadata.name]
            assert world.environment(found["c"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{place}m"
            assert world.environment(found["d"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{500 + place}m"

    play(scenario)


def test_a_start_that_the_informer_has_not_seen_yet_waits_for_it() -> None:
    async def scenario(world: World) -> None:
        world.client.down()
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        starting = asyncio.create_task(world.agent.pre_start(world.kubelet.ids(pod, "c")))
        await asyncio.sleep(1)
        assert not starting.done()
        world.client.up()
        await starting
        assert len(world.specs()) == 1

    play(scenario)


def test_ids_that_kubelet_gave_to_nobody_are_refused() -> None:
    async def scenario(world: World) -> None:
        assert await refusal_of(world, ["GPU-a-3"]) is RefusalKind.UNKNOWN_POD

    play(scenario)


def test_where_pod_resources_disagrees_the_start_is_refused_with_an_event_and_may_come_right() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        world.kubelet.lies = lambda listed: tuple(
            ListedPod(namespace=one.namespace, name=one.name, containers={"c": frozenset({"GPU-b-9"})}) for one in listed
        )
        assert await refusal_of(world, world.kubelet.ids(pod, "c")) is RefusalKind.KUBELET_DISAGREES
        assert [reason for _, reason, _ in await world.complaints()] == ["AllocationRefused"]
        assert world.said(AllocationFailed) == []
        world.kubelet.lies = lambda listed: listed
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))

    play(scenario)


def test_pod_resources_that_cannot_be_asked_stops_nobody() -> None:
    async def scenario(world: World) -> None:
        world.kubelet.silent = True
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))

    play(scenario)


@pytest.mark.parametrize("broken", [b"{", b'{"Data":{"Entries":[]}}'], ids=["truncated", "another version"])
def test_without_a_readable_checkpoint_pod_resources_and_our_calls_decide_also_after_a_restart(broken: bytes) -> None:
    async def scenario(world: World) -> None:
        pods = [
            await world.pod(name, inits={"i": [("GPU-a", mib, 1)]}, c=[("GPU-a", mib + 1, 2)]) for name, mib in (("p", 100), ("q", 200))
        ]
        answers = [await world.kubelet.admit(world.agent, pod) for pod in pods]
        world.kubelet.broken_checkpoint = broken
        await world.kill()
        await world.start()
        for pod, found, mib in zip(pods, answers, (100, 200), strict=True):
            await world.agent.pre_start(world.kubelet.ids(pod, "c"))
            assert world.environment(found["i"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{mib}m"
            assert world.environment(found["c"])["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{mib + 1}m"

    play(scenario)


def test_without_checkpoint_and_pod_resources_nothing_starts() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        world.kubelet.broken_checkpoint, world.kubelet.silent = b"{", True
        assert await refusal_of(world, world.kubelet.ids(pod, "c")) is RefusalKind.UNKNOWN_POD

    play(scenario)


def test_a_grant_of_more_devices_than_kubelet_gave_is_refused() -> None:
    async def scenario(world: World) -> None:
        two = "GPU-a,NVIDIA,100,1:GPU-b,NVIDIA,100,1:;"
        held = world.assignment({}, {"c": [("GPU-a", 100, 1), ("GPU-b", 100, 1)]}, ())
        pod = await world.pod("p", written={"hami.io/vgpu-devices-allocated": two}, publish=held, c=[("GPU-a", 100, 1)])
        await world.kubelet.admit(world.agent, pod)
        assert await refusal_of(world, world.kubelet.ids(pod, "c")) is RefusalKind.COUNT_DIFFERS

    play(scenario)


def test_a_long_running_pod_restarts_although_the_log_of_grants_is_no_longer_kept() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        await world.bus.purge(subjects.ALLOCATIONS, subjects.ALL_ALLOCATIONS)
        await world.kill()
        await world.start()
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        await world.annotate(pod, {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,24000,2:;"})
        assert await refusal_of(world, world.kubelet.ids(pod, "c")) is RefusalKind.NO_GRANT

    play(scenario)


def test_a_container_restarts_although_the_api_server_has_been_away_since_the_agents_own_start() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        other = await world.pod("other", c=[("GPU-b", 300, 3)])
        for one in (pod, other):
            await world.kubelet.admit(world.agent, one)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        await world.kill()
        world.client.down()
        await world.start()
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        assert await refusal_of(world, world.kubelet.ids(other, "c")) is RefusalKind.UNKNOWN_POD  # never served: nobody knows its grant

    play(scenario)


def test_what_a_container_left_where_grant_and_shim_are_mounted_is_no_way_around_them() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        folder = f"/usr/local/vgpu/containers/{pod.metadata.uid}_c"
        del world.files.contents[f"{folder}/grant"]
        world.files.write(f"{folder}/grant/a-folder-of-the-tenant", b"x")
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        assert world.files.read(f"{folder}/grant") == b""
        assert world.files.names(folder) == ["grant", "libvgpu.so", "region"]

    play(scenario)


def test_a_pod_that_was_served_before_the_node_changed_to_cdi_restarts_with_what_it_was_granted() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.kill()
        world.mode = AllocationMode.CDI
        world.agent = world.new_agent()
        await world.start()
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        assert world.specs() == {}

    play(scenario, AllocationMode.ENVVAR)


def test_a_pod_that_was_given_a_name_before_the_node_changed_to_envvar_gets_what_the_name_stands_for() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.kill()
        world.mode = AllocationMode.ENVVAR
        world.agent = world.new_agent()
        await world.start()
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        assert len(world.specs()) == 1

    play(scenario)


def test_the_cluster_is_not_asked_again_and_again_about_ended_pods_that_nobody_deletes() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        await world.phase(pod, "Succeeded")
        world.kubelet.end(pod)
        await asyncio.sleep(120)
        before = world.client.calls["list", "pods"]
        await asyncio.sleep(3600)
        assert world.client.calls["list", "pods"] == before
        assert world.specs() == {}

    play(scenario)


def test_specs_of_a_pod_that_was_deleted_by_force_stay_while_kubelet_lists_it() -> None:
    async def scenario(world: World) -> None:
        pod = await world.pod("p", c=[("GPU-a", 200, 2)])
        await world.kubelet.admit(world.agent, pod)
        await world.agent.pre_start(world.kubelet.ids(pod, "c"))
        await world.delete(pod)
        await world.agent.sweep()
        assert len(world.specs()) == 1
        world.kubelet.end(pod)
        await world.agent.sweep()
        assert world.specs() == {}

    play(scenario)


def test_specs_and_folders_of_pods_that_nobody_knows_go_after_a_grace_period() -> None:
    async def scenario(world: World) -> None:
        world.files.write("/var/run/cdi/hami-lost.json", b"{}")
        world.files.write("/var/run/cdi/nvidia.json", b"{}")
        world.files.make_folder("/usr/local/vgpu/containers/lost_c")
        await world.agent.sweep()
        assert "/var/run/cdi/hami-lost.json" in world.files.contents
        await asyncio.sleep(75)
        assert set(world.files.contents) & {"/var/run/cdi/hami-lost.json", "/var/run/cdi/nvidia.json"} == {"/var/run/cdi/nvidia.json"}
        assert "/usr/local/vgpu/containers/lost_c" not in world.files.folders

    play(scenario)


def test_nothing_is_taken_away_while_the_api_server_cannot_say_that_the_pod_is_gone() -> None:
    async def scenario(world: World) -> None:
        world.files.write("/var/run/cdi/hami-lost.json", b"{}")
        world.client.down()
        await asyncio.sleep(300)
        assert "/var/run/cdi/hami-lost.json" in world.files.contents

    play(scenario)

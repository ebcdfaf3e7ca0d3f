"""What kubelet's device manager does with a device plugin, over real sockets: one suite for the rig's kubelet and for a real one."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_node_agent.api import podresources_pb2 as resources_pb
from hami_node_agent.api import podresources_pb2_grpc as resources_rpc
from hami_runtime.kube.cluster import PODS

from .conftest import IDS, Plugin, World, in_phase, is_ready

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_node_counts_what_the_plugin_reports(kubelet: World) -> None:
    async with kubelet.running():
        kubelet.plugin.devices[IDS[0]] = "Unhealthy"
        kubelet.plugin.changed.set()
        await kubelet.node_has("7")
        kubelet.plugin.devices[IDS[0]] = "Healthy"
        kubelet.plugin.changed.set()
        await kubelet.node_has("8")
        await kubelet.plugin.stop()
        await kubelet.node_has("0")


async def test_a_registration_that_makes_no_sense_is_refused(kubelet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_rig.kubelet.plugins.DIAL_SECONDS", 0.2)
    nonsense = ({"version": "v1alpha"}, {"resource_name": "gpu"}, {"endpoint": "../test.sock"}, {"endpoint": "gone.sock"})
    async with kubelet.running():
        answers = await asyncio.gather(*(kubelet.plugin.register(**changes) for changes in nonsense), return_exceptions=True)
    for changes, answer in zip(nonsense, answers, strict=True):
        assert isinstance(answer, grpc.aio.AioRpcError), (changes, answer)


async def test_a_socket_that_is_connected_is_refused_and_the_next_one_is_taken(kubelet: World) -> None:
    async with kubelet.running():
        if kubelet.minor >= 37:
            with pytest.raises(grpc.aio.AioRpcError, match="device plugin already connected"):
                await kubelet.plugin.register()
        await kubelet.plugin.stop()
        await kubelet.plugin.start()
        await kubelet.plugin.register()
        await kubelet.node_has("8")
        kubelet.plugin.devices[IDS[0]] = "Unhealthy"
        kubelet.plugin.changed.set()
        await kubelet.node_has("7")


async def test_of_two_plugins_side_by_side_the_newer_one_is_called_and_either_may_end_alone(kubelet: World) -> None:
    if kubelet.minor < 37:
        pytest.skip("kubelet knows one plugin per resource; from 1.37 on it knows several")
    async with kubelet.running():
        newer = Plugin(kubelet.folder.device_plugins)
        await newer.start()
        await newer.register()
        try:
            await kubelet.bind("p")
            await kubelet.until("p", is_ready)
            assert [name for name, _ in kubelet.plugin.calls] == []
            assert [name for name, _ in newer.calls] == ["prefer", "allocate", "start"]
            await kubelet.plugin.stop()
            await kubelet.bind("q")
            await kubelet.until("q", is_ready)
            await kubelet.plugin.start()
            await kubelet.plugin.register()
        finally:
            await newer.stop()
        await kubelet.bind("r")
        await kubelet.until("r", is_ready)
        await kubelet.plugin.stop()
        await kubelet.node_has("0")


async def test_a_plugin_may_come_to_offer_less_than_is_held(kubelet: World) -> None:
    async with kubelet.running():
        await kubelet.bind("holder", counts=(8,))
        await kubelet.until("holder", is_ready)
        for each in IDS[:2]:
            del kubelet.plugin.devices[each]
        kubelet.plugin.changed.set()
        await kubelet.node_has("6", "6")
        pod = await kubelet.bind("more", counts=(1,))
        pod = await kubelet.until("more", in_phase("Failed"))
        assert pod.status.reason in ("UnexpectedAdmissionError", "OutOfnvidia.com/gpu")
        assert (await kubelet.until("holder", is_ready)).status.phase == "Running"


async def test_containers_are_allocated_in_order_checkpointed_and_announced_before_they_start(kubelet: World) -> None:
    seen: list[dict[tuple[str, str], set[str]]] = []
    kubelet.plugin.before_start = lambda: seen.append(kubelet.checkpointed())
    async with kubelet.running():
        await kubelet.bind("p", counts=(1, 2))
        pod = await kubelet.until("p", is_ready)
        held = kubelet.checkpointed()
        first, second = held[pod.metadata.uid, "c0"], held[pod.metadata.uid, "c1"]
        assert [name for name, _ in kubelet.plugin.calls] == ["prefer", "allocate", "prefer", "allocate", "start", "start"]
        assert {frozenset(ids) for name, ids in kubelet.plugin.calls if name == "start"} == {frozenset(first), frozenset(second)}
        assert first == {IDS[-1]}, "the plugin's preference is followed"
        assert seen[0] == held, "the checkpoint is complete before the first container starts"
        await kubelet.eventually(lambda: kubelet.environment(pod, "c1").get("LIMIT") == "3000m")


async def test_a_name_that_no_cdi_spec_has_keeps_the_container_waiting_until_it_is_written(kubelet: World) -> None:
    kubelet.plugin.answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="hami.io/share=x")])
    async with kubelet.running():
        await kubelet.bind("p")
        await kubelet.until("p", lambda pod: "CreateContainerError" in str(pod.status.container_statuses))
        spec = kubelet.folder.cdi / "x.json"
        spec.write_text(
            '{"cdiVersion": "0.6.0", "kind": "hami.io/share", "devices": [{"name": "x", "containerEdits": {"env": ["SHARE=1"]}}]}'
        )
        try:
            pod = await kubelet.until("p", in_phase("Running"))
            await kubelet.eventually(lambda: kubelet.environment(pod, "c0").get("SHARE") == "1")
        finally:
            spec.unlink()


async def test_pod_resources_lists_an_entry_per_id_and_no_init_containers(kubelet: World) -> None:
    async with kubelet.running():
        init = [kubelet.a_container("i", 1, run_seconds=0.05), kubelet.a_container("s", 1, restartPolicy="Always")]
        await kubelet.bind("p", counts=(2,), init=init)
        await kubelet.until("p", is_ready)
        async with grpc.aio.insecure_channel(f"unix:{kubelet.folder.pod_resources_socket}") as channel:
            listed = await resources_rpc.PodResourcesListerStub(channel).List(resources_pb.ListPodResourcesRequest())
    (pod,) = listed.pod_resources
    assert {each.name for each in pod.containers} == {"s", "c0"}
    assert [len(each.devices) for each in pod.containers if each.name == "c0"] == [2]
    assert all(len(device.device_ids) == 1 for each in pod.containers for device in each.devices)


async def test_ids_of_init_containers_are_given_to_later_containers_again(kubelet: World) -> None:
    async with kubelet.running():
        init = [kubelet.a_container("i", 2, run_seconds=0.05)]
        await kubelet.bind("p", counts=(1, 1), init=init)
        pod = await kubelet.until("p", is_ready)
        held = {name: ids for (uid, name), ids in kubelet.checkpointed().items() if uid == pod.metadata.uid}
        assert held["c0"] | held["c1"] == held["i"]


async def test_a_refused_allocate_fails_the_pod_for_good_and_gives_its_ids_back(kubelet: World) -> None:
    async with kubelet.running():
        kubelet.plugin.refusal = "no grant"
        await kubelet.bind("p")
        pod = await kubelet.until("p", in_phase("Failed"))
        assert pod.status.reason == "UnexpectedAdmissionError"
        assert pod.status.message == (
            "Pod was rejected: Allocate failed due to rpc error: code = InvalidArgument desc = no grant, which is unexpected"
        )
        assert pod.metadata.uid not in {uid for uid, _ in kubelet.checkpointed()}


async def test_a_container_that_restarts_is_announced_again_with_the_same_ids_and_not_allocated_again(kubelet: World) -> None:
    async with kubelet.running():
        await kubelet.bind("p", run_seconds=0.05, exit_code=3)
        await kubelet.until("p", lambda pod: any(each.restart_count >= 1 for each in pod.status.container_statuses or ()))
        await kubelet.eventually(lambda: len([name for name, _ in kubelet.plugin.calls if name == "start"]) >= 2)
    names = [name for name, _ in kubelet.plugin.calls]
    assert names.count("allocate") == 1
    assert len({ids for name, ids in kubelet.plugin.calls if name == "start"}) == 1


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_a_pod_that_ends_by_itself_says_how(kubelet: World, exit_code: int, phase: str) -> None:
    async with kubelet.running():
        await kubelet.bind("p", restartPolicy="Never", run_seconds=0.05, exit_code=exit_code)
        pod = await kubelet.until("p", in_phase(phase))
        assert pod.status.phase == phase


async def test_what_an_ended_pod_held_stays_recorded_until_the_next_one_asks(kubelet: World) -> None:
    async with kubelet.running():
        await kubelet.bind("p", restartPolicy="Never", run_seconds=0.05)
        first = await kubelet.until("p", in_phase("Succeeded"))
        assert {uid for uid, _ in kubelet.checkpointed()} == {first.metadata.uid}
        await kubelet.bind("next", counts=(8,))
        second = await kubelet.until("next", is_ready)
        assert {uid for uid, _ in kubelet.checkpointed()} == {second.metadata.uid}


async def test_a_deleted_pod_ends_within_its_grace_and_is_gone(kubelet: World) -> None:
    async with kubelet.running():
        await kubelet.bind("p", deaf=True)
        await kubelet.until("p", in_phase("Running"))
        await kubelet.cluster.delete(PODS, "p", namespace="default")
        assert kubelet.checkpointed(), "its devices are held until its containers have ended"
        await kubelet.gone()
        await kubelet.bind("next", counts=(8,))
        await kubelet.until("next", is_ready)


async def test_a_restarted_kubelet_remembers_who_holds_what(kubelet: World) -> None:
    async with kubelet.running():
        await kubelet.bind("p", counts=(2,))
        await kubelet.until("p", is_ready)
        before = kubelet.checkpointed()
        await kubelet.restart()
        await kubelet.node_has("0", "0")
        assert not kubelet.plugin.socket.exists(), "kubelet removes every socket at its start"
        await kubelet.plugin.stop()
        await kubelet.plugin.start()
        await kubelet.plugin.register()
        await kubelet.node_has("8")
        assert kubelet.checkpointed() == before
        await kubelet.bind("q", counts=(6,))
        await kubelet.until("q", is_ready)

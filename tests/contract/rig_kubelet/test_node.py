"""A fake kubelet does with a device plugin what a real kubelet 1.37 was seen to do, over real sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_node_agent.api import podresources_pb2 as resources_pb
from hami_node_agent.api import podresources_pb2_grpc as resources_rpc
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_rig.kubelet import checkpoint
from hami_rig.kubelet.kubelet import Fleet, Kubelet, NodeFolder
from hami_rig.kubelet.node import NodeDescription
from hami_runtime.clock import SystemClock
from hami_runtime.kube.cluster import NODES, PODS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from tests.contract.rig_kubelet.conftest import GPU, IDS, Plugin


class World:
    """One node with a plugin on a cluster in memory."""

    def __init__(self, folder: Path, cluster: MemoryCluster | None = None) -> None:
        self.clock = SystemClock()
        self.cluster = cluster or MemoryCluster(ObjectStore(now=self.clock.utc, rng=random.Random(1)))
        self.folder = NodeFolder(folder / "n1")
        self.kubelet = Kubelet(self.cluster, self.clock, NodeDescription(name="n1"), self.folder, rng=random.Random(2))
        self.fleet = Fleet(self.cluster, self.clock, [self.kubelet])
        self.plugin = Plugin(self.folder.device_plugins)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(self.fleet.run(stop))
        try:
            await self.kubelet.ready.wait()
            await self.plugin.start()
            await self.plugin.register()
            await self.node_has("8")
            yield
        finally:
            stop.set()
            await task
            await self.plugin.stop()

    async def node_has(self, allocatable: str, capacity: str = "8") -> None:
        await eventually(lambda: self._counts() == (capacity, allocatable))

    def _counts(self) -> tuple[Any, Any]:
        status = self.kubelet.node.status
        return (status.capacity or {}).get(GPU), (status.allocatable or {}).get(GPU)

    async def bind(self, name: str, *, counts: Sequence[int] = (1,), init: Sequence[dict[str, Any]] = (), **spec: Any) -> Pod:
        annotations = spec.pop("annotations", {})
        containers = [a_container(f"c{place}", count) for place, count in enumerate(counts)]
        body = {
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"containers": containers, "initContainers": list(init), "terminationGracePeriodSeconds": 2, **spec},
            "status": {"phase": "Pending"},
        }
        pod = await self.cluster.create(PODS, body, namespace="default")
        await self.cluster.bind(pod_ref(pod), "n1", annotations={}, labels={})
        return pod

    async def until(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        async with asyncio.timeout(10), self.cluster.watch(PODS, since="0") as changes:
            async for change in changes:
                if change.object and change.object.metadata.name == name and holds(change.object):
                    return change.object
        raise AssertionError("the watch ended")

    async def gone(self) -> None:
        async with asyncio.timeout(10):
            while (await self.cluster.list(PODS)).items:  # noqa: ASYNC110 - as in eventually
                await asyncio.sleep(0.01)

    def record(self, pod: Pod, container: str) -> dict[str, Any]:
        record: dict[str, Any] = msgspec.json.decode((self.folder.containers / pod.metadata.uid / f"{container}.json").read_bytes())
        return record

    def checkpointed(self) -> dict[tuple[str, str], set[str]]:
        held, _ = checkpoint.decode((self.folder.device_plugins / checkpoint.FILE_NAME).read_bytes())
        return {(each.pod_uid, each.container): set(each.ids) for each in held}


def a_container(name: str, count: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", **({"resources": {"limits": {GPU: str(count)}}} if count else {}), **more}


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - sockets and files are looked at, and they set no asyncio.Event
            await asyncio.sleep(0.01)


def in_phase(phase: str) -> Callable[[Pod], bool]:
    return lambda pod: pod.status.phase == phase


def is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_node_counts_what_the_plugin_reports(world: World) -> None:
    async with world.running():
        world.plugin.devices[IDS[0]] = "Unhealthy"
        world.plugin.changed.set()
        await world.node_has("7")
        await world.plugin.stop()
        await world.node_has("0")
    node = await world.cluster.get(NODES, "n1")
    assert any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())


@pytest.mark.parametrize(
    "changes", [{"version": "v1alpha"}, {"resource_name": "gpu"}, {"endpoint": "../test.sock"}, {"endpoint": "gone.sock"}]
)
async def test_a_registration_that_makes_no_sense_is_refused(
    world: World, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_rig.kubelet.plugins.DIAL_SECONDS", 0.2)
    async with world.running():
        with pytest.raises(grpc.aio.AioRpcError):
            await world.plugin.register(**changes)


async def test_containers_are_allocated_in_order_checkpointed_and_announced_before_they_start(world: World) -> None:
    seen: list[dict[tuple[str, str], set[str]]] = []
    world.plugin.before_start = lambda: seen.append(world.checkpointed())
    async with world.running():
        await world.bind("p", counts=(1, 2))
        pod = await world.until("p", is_ready)
        held = world.checkpointed()
        first, second = held[pod.metadata.uid, "c0"], held[pod.metadata.uid, "c1"]
        assert [name for name, _ in world.plugin.calls] == ["prefer", "allocate", "prefer", "allocate", "start", "start"]
        assert {frozenset(ids) for name, ids in world.plugin.calls if name == "start"} == {frozenset(first), frozenset(second)}
        assert first == {IDS[-1]}, "the plugin's preference is followed"
        assert seen[0] == held, "the checkpoint is complete before the first container starts"
        assert world.record(pod, "c1")["given"]["env"] == {"LIMIT": "3000m"}


async def test_pod_resources_lists_an_entry_per_id_and_no_init_containers(world: World) -> None:
    async with world.running():
        await world.bind("p", counts=(2,), init=[a_container("i", 1), a_container("s", 1, restartPolicy="Always")])
        await world.until("p", in_phase("Running"))
        async with grpc.aio.insecure_channel(f"unix:{world.folder.pod_resources_socket}") as channel:
            listed = await resources_rpc.PodResourcesListerStub(channel).List(resources_pb.ListPodResourcesRequest())
    (pod,) = listed.pod_resources
    assert {each.name: [list(device.device_ids) for device in each.devices] for each in pod.containers}.keys() == {"s", "c0"}
    assert [len(each.devices) for each in pod.containers if each.name == "c0"] == [2]


async def test_a_refused_allocate_fails_the_pod_for_good_and_gives_its_ids_back(world: World) -> None:
    async with world.running():
        world.plugin.refusal = "no grant"
        await world.bind("p")
        pod = await world.until("p", in_phase("Failed"))
        assert pod.status.reason == "UnexpectedAdmissionError"
        assert pod.status.message == (
            "Pod was rejected: Allocate failed due to rpc error: code = InvalidArgument desc = no grant, which is unexpected"
        )
        assert world.checkpointed() == {}


async def test_a_container_that_restarts_is_announced_again_with_the_same_ids_and_not_allocated_again(world: World) -> None:
    async with world.running():
        await world.bind("p", annotations={"rig.hami.io/run-seconds": "0.05", "rig.hami.io/exit-code": "3"})
        pod = await world.until("p", lambda pod: any(each.restart_count >= 1 for each in pod.status.container_statuses or ()))
        await eventually(lambda: len([name for name, _ in world.plugin.calls if name == "start"]) >= 2)
    names = [name for name, _ in world.plugin.calls]
    assert names.count("allocate") == 1
    assert len({ids for name, ids in world.plugin.calls if name == "start"}) == 1
    assert pod.status.phase == "Running"


@pytest.mark.parametrize(("exit_code", "phase"), [("0", "Succeeded"), ("3", "Failed")])
async def test_a_pod_that_ends_by_itself_says_how_and_gives_its_ids_back(world: World, exit_code: str, phase: str) -> None:
    async with world.running():
        await world.bind("p", restartPolicy="Never", annotations={"rig.hami.io/run-seconds": "0.05", "rig.hami.io/exit-code": exit_code})
        await world.until("p", in_phase(phase))
        await eventually(lambda: world.checkpointed() == {})


async def test_a_deleted_pod_ends_within_its_grace_and_is_gone(world: World) -> None:
    async with world.running():
        await world.bind("p", annotations={"rig.hami.io/stop-seconds": "0.3"})
        await world.until("p", in_phase("Running"))
        await world.cluster.delete(PODS, "p", namespace="default")
        held = world.checkpointed()
        assert held, "its devices are held until its containers have ended"
        await world.gone()
        await eventually(lambda: world.checkpointed() == {})


async def test_a_restarted_kubelet_remembers_who_holds_what(world: World) -> None:
    async with world.running():
        await world.bind("p", counts=(2,))
        await world.until("p", in_phase("Running"))
        before = world.checkpointed()
        await world.fleet.restart()
        await world.node_has("0", "0")
        assert not (world.folder.device_plugins / "test.sock").exists(), "kubelet removes every socket at its start"
        await world.plugin.stop()
        await world.plugin.start()
        await world.plugin.register()
        await world.node_has("8")
        assert world.checkpointed() == before
        await world.bind("q", counts=(6,))
        await world.until("q", in_phase("Running"))


async def test_what_pods_held_that_went_while_kubelet_was_away_is_free(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        for name in ("stays", "goes"):
            await world.bind(name, counts=(4,))
            await world.until(name, is_ready)
    await world.cluster.delete(PODS, "goes", namespace="default", grace_seconds=0)
    again = World(tmp_path, world.cluster)
    async with again.running():
        await again.bind("next", counts=(4,))
        await again.until("next", is_ready)
        stays = await again.until("stays", is_ready)
        assert len(again.checkpointed()[stays.metadata.uid, "c0"]) == 4


async def test_a_name_that_no_cdi_spec_has_keeps_the_container_waiting_until_it_is_written(world: World) -> None:
    world.plugin.answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="hami.io/share=x")])
    async with world.running():
        await world.bind("p")
        pod = await world.until(
            "p", lambda pod: bool((state := (pod.status.container_statuses or (None,))[0]) and state.state and state.state.waiting)
        )
        await world.until("p", lambda pod: "CreateContainerError" in str(pod.status.container_statuses))
        (world.folder.cdi / "x.json").write_text(
            '{"cdiVersion": "0.6.0", "kind": "hami.io/share", "devices": [{"name": "x", "containerEdits": {"env": ["A=1"]}}]}'
        )
        pod = await world.until("p", in_phase("Running"))
        assert world.record(pod, "c0")["given"]["env"] == {"A": "1"}

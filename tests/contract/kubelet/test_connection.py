"""The agent at kubelet's sockets, over real gRPC: registration, devices, calls, and kubelet's restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from hami_node_agent import profile
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.api import podresources_pb2
from hami_node_agent.api.deviceplugin_pb2_grpc import DevicePluginStub
from hami_node_agent.hostfiles import RealFiles
from hami_node_agent.identity import ListedPod
from hami_node_agent.kubelet import KubeletConnection
from hami_node_agent.kubelet_records import LocalKubelet, listed_pod
from hami_protocol import subjects
from hami_protocol.devices import AllocationMode
from hami_rig.kubelet import checkpoint as rig_checkpoint
from hami_rig.kubelet.devices import AllocationRefused, DeviceLedger, Held
from hami_rig.kubelet.plugins import DevicePlugins
from hami_rig.kubelet.pod_resources import PodResources
from hami_runtime.kube.cluster import NODES
from tests.contract.node_agent.world import CARDS, GPU, NODE, World

SICK = CARDS.replace("uuid: GPU-a,", "uuid: GPU-a, healthy: false,")


class Node:
    """A kubelet's device manager and an agent, on real sockets in one folder."""

    def __init__(self, folder: Path, world: World, **options: Any) -> None:
        self.folder = folder
        self.world = world
        self.ledger = DeviceLedger(rng=random.Random(3))
        self.changed = asyncio.Event()
        self.plugins = DevicePlugins(folder, self.ledger, on_change=self.changed.set)
        self.connection = KubeletConnection(world.agent, world.clock, folder=folder, poll_seconds=0.02, **options)

    @property
    def socket(self) -> Path:
        """Where the agent listens."""
        (found,) = self.folder.glob("nvidia-gpu-*.sock")
        return found

    @property
    def healthy(self) -> int:
        return len(self.ledger.resources[GPU].healthy) if GPU in self.ledger.resources else 0

    async def until_healthy(self, count: int, seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while self.healthy != count:
                self.changed.clear()
                await self.changed.wait()

    async def until_registered(self, times: int, seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while self.connection.registrations < times:  # noqa: ASYNC110 - it is counted, and sets no asyncio.Event
                await asyncio.sleep(0.01)

    async def restart_kubelet(self) -> None:
        await self.plugins.stop()
        self.ledger.restart()
        await self.plugins.start()


@asynccontextmanager
async def a_node(mode: AllocationMode = AllocationMode.CDI, *, kubelet_first: bool = True) -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory(prefix="hami") as name:  # pytest's own folders are too long for a socket's path
        world = World(mode)
        await world.bus.ensure_streams(subjects.STREAMS)
        await world.admin.create(NODES, {"metadata": {"name": NODE}})
        await world.start()
        node = Node(Path(name), world)
        stop = asyncio.Event()
        if kubelet_first:
            await node.plugins.start()
        running = asyncio.create_task(node.connection.run(stop))
        try:
            yield node
        finally:
            stop.set()
            await running
            await node.plugins.stop()
            await world.stop()


async def test_all_shares_reach_kubelet_and_calls_are_answered() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        assert node.plugins.needs_pre_start(GPU)
        answer = api.ContainerAllocateResponse.FromString(await node.plugins.allocate(GPU, ["GPU-a-0"]))
        assert answer.cdi_devices[0].name.startswith("hami.io/gpu=c")


async def test_a_sick_card_reaches_every_open_stream_at_once() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        async with grpc.aio.insecure_channel(f"unix://{node.socket}") as channel:
            other = DevicePluginStub(channel).ListAndWatch(api.Empty())
            first = await other.read()
            assert isinstance(first, api.ListAndWatchResponse)
            node.world.hardware.become(profile.read(SICK))
            await node.until_healthy(10)
            second = await other.read()
            assert isinstance(second, api.ListAndWatchResponse)
            assert sorted({device.health for device in second.devices}) == ["Healthy", "Unhealthy"]
            other.cancel()


async def test_a_refusal_reaches_kubelet_with_its_reason() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        with pytest.raises(AllocationRefused, match=r"InvalidArgument.*empty request"):
            await node.plugins.allocate(GPU, [])


async def test_an_agent_that_starts_before_kubelet_registers_once_it_is_there() -> None:
    async with a_node(kubelet_first=False) as node:
        await asyncio.sleep(0.1)
        assert node.connection.registrations == 0
        await node.plugins.start()
        await node.until_healthy(20)


@pytest.mark.parametrize("hasty", [False, True])
async def test_a_hundred_restarts_of_kubelet_are_followed_with_never_two_servers(hasty: bool) -> None:
    async with a_node() as node:
        rng = random.Random(5)
        for _ in range(50):
            await node.restart_kubelet()
            if hasty:
                await asyncio.sleep(rng.random() * 0.1)
            else:
                await node.until_healthy(20)
            assert node.connection.servers <= 1
            assert node.connection.plugin.streams <= 2  # the one that ends and the one that begins
        await node.until_healthy(20)
        assert node.connection.servers == 1
        assert set(node.folder.iterdir()) == {node.folder / "kubelet.sock", node.socket}


async def test_a_kubelet_that_lost_our_stream_is_registered_with_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_node_agent.kubelet.UNWATCHED_SECONDS", 0.1)
    async with a_node() as node:
        await node.until_healthy(20)
        await node.plugins._let_go(GPU)
        node.ledger.disconnect(GPU)
        await node.until_healthy(20)
        assert node.connection.registrations == 2


async def test_a_socket_that_somebody_removed_is_made_again() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        node.socket.unlink()
        await node.until_registered(2)
        await node.until_healthy(20)
        assert node.connection.servers == 1


async def test_a_kubelet_that_is_slow_to_watch_is_offered_another_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a socket that it takes for connected, and would refuse it for ever."""
    monkeypatch.setattr("hami_node_agent.kubelet.UNWATCHED_SECONDS", 0.0)
    async with a_node() as node:
        await node.until_registered(1)
        monkeypatch.setattr(KubeletConnection, "registered", False)
        await node.until_registered(3)
        monkeypatch.setattr(KubeletConnection, "registered", True)
        await node.until_healthy(20)


async def test_a_stopped_agent_leaves_no_socket() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        folder = node.folder
        ours = node.socket
        assert ours.is_socket()
    assert not folder.exists()


async def test_sockets_that_an_agent_before_has_left_are_removed_and_those_of_living_ones_stay() -> None:
    async with a_node() as node:
        await node.until_healthy(20)
        ours = node.socket
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as living:
            living.bind(str(node.folder / "nvidia-gpu-0123ab.sock"))
            living.listen()
            for name in ("nvidia-gpu.sock", "nvidia-gpu-ffffff.sock", "nvidia-gpumem.sock"):
                with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
                    left.bind(str(node.folder / name))
            ours.unlink()
            await node.until_registered(2)
            names = {path.name for path in node.folder.iterdir()}
        assert names >= {"nvidia-gpu-0123ab.sock", "nvidia-gpumem.sock"}
        assert names.isdisjoint({"nvidia-gpu.sock", "nvidia-gpu-ffffff.sock"})


async def test_the_local_kubelets_records_are_read_from_checkpoint_and_pod_resources() -> None:
    async with a_node() as node:
        pod = await node.world.pod("p", main=[("GPU-a", 500, 10), ("GPU-a", 500, 10)])
        uid = pod.metadata.uid
        held = Held(pod_uid=uid, container="main", resource=GPU, ids=("x", "y"), answer=api.ContainerAllocateResponse().SerializeToString())
        node.ledger.hold(held)
        (node.folder / rig_checkpoint.FILE_NAME).write_bytes(rig_checkpoint.encode(node.ledger.held, {}))
        server = PodResources(node.folder / "pr.sock", node.ledger, pods=lambda: [pod])  # type: ignore[list-item, return-value]
        local = LocalKubelet(RealFiles(), plugin_folder=str(node.folder), pod_resources_socket=str(node.folder / "pr.sock"))
        assert await local.listed(GPU) is None  # nobody listens yet
        await server.start()
        try:
            listed = await local.listed(GPU)
        finally:
            await server.stop()
        assert listed == (ListedPod(namespace="default", name="p", containers={"main": frozenset({"x", "y"})}),)
        found = local.checkpoint()
        assert [(one.pod_uid, one.device_ids) for one in found.held] == [(uid, {"x", "y"})]  # type: ignore[union-attr]


def test_pod_resources_entries_per_id_are_united() -> None:
    pod = podresources_pb2.PodResources(
        name="p",
        namespace="n",
        containers=[
            podresources_pb2.ContainerResources(
                name="c",
                devices=[
                    podresources_pb2.ContainerDevices(resource_name=GPU, device_ids=["a"]),
                    podresources_pb2.ContainerDevices(resource_name=GPU, device_ids=["b"]),
                    podresources_pb2.ContainerDevices(resource_name="other.com/x", device_ids=["z"]),
                ],
            )
        ],
    )
    assert listed_pod(pod, GPU).containers == {"c": frozenset({"a", "b"})}

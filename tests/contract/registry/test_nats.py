"""The registry on a real NATS server: what it promises must not rest on the bus in memory being kind."""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import envelope, keys, subjects
from hami_protocol.envelope import Message
from hami_protocol.events import AllocationSucceeded, Event
from hami_registry.service import Registry
from hami_runtime.bus.jetstream import JetStreamBus, connect
from hami_runtime.clock import SystemClock
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from tests.contract.bus.conftest import NatsServer

from .conftest import World, a_grant, a_report

pytestmark = pytest.mark.nats
KEY = "hami.io/vgpu-devices-to-allocate"


@asynccontextmanager
async def running(world: World, bus: JetStreamBus, **options: bool) -> AsyncIterator[Registry]:
    registry = Registry(bus, MemoryCluster(world.store), SystemClock(), Catalog(), identity="r1", namespace="kube-system", **options)
    stop = asyncio.Event()
    task = asyncio.create_task(registry.run(stop))
    try:
        yield registry
    finally:
        stop.set()
        await task


async def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        await asyncio.sleep(0.025)
    assert holds()


async def liveness(bus: JetStreamBus) -> bytes:
    for _ in range(400):
        if (kept := await bus.last(subjects.DEVICES, subjects.liveness("n1", "nvidia"))) is not None:
            return kept.data
        await asyncio.sleep(0.025)
    raise AssertionError("no verdict on the bus")


def sealed(event: Event, event_id: str) -> Message:
    return envelope.seal(event, event_id=event_id, source="/test", time="2026-01-01T00:00:00Z")


async def test_records_outcomes_poison_restarts_and_a_server_that_lost_its_data(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    world = World()
    world.store = ObjectStore(now=lambda: datetime.now(UTC), rng=random.Random(1))
    try:
        async with connect(server.url, name="test") as bus:
            await bus.wait_connected()
            await bus.ensure_streams(subjects.STREAMS)
            world.add_node()
            one, two = world.add_pod("p1", **{KEY: "x;"}), world.add_pod("p2", **{KEY: "GPU-n1,NVIDIA,3000,0:;"})
            await bus.publish(sealed(a_report(), "beat-1"))
            async with running(world, bus):
                await eventually(lambda: keys.register("nvidia") in world.annotations())
                await eventually(lambda: world.annotations()[keys.handshake("nvidia")].startswith("Reported"))
                await bus.publish(Message(subject=subjects.outcome("n1", "default", "p1"), data=b"\xff"))
                await bus.publish(Message(subject=subjects.devices("n1", "nvidia"), data=b"{}"))
                await bus.publish(sealed(a_grant(one, 3000), "grant-1"))
                await bus.publish(sealed(AllocationSucceeded(pod=one, node="n1"), "success-1"))
                await eventually(lambda: world.pod_annotations("p1") == {keys.BIND_PHASE: "success", KEY: ";"})
            await bus.publish(sealed(AllocationSucceeded(pod=two, node="n1"), "success-2"))
            async with running(world, bus) as registry:
                await eventually(lambda: world.pod_annotations("p2") == {keys.BIND_PHASE: "success", KEY: ";"})
                assert await bus.request(subjects.ASK_INVENTORY, b"", timeout_seconds=2)
                await server.kill()
                await eventually(lambda: registry.lacking == "not connected to the bus")
                await server.start()
                await eventually(lambda: registry.lacking is None)
                await bus.publish(sealed(a_report(generation=2), "beat-2"))
                await eventually(lambda: world.annotations()[keys.generation("nvidia")] == "2")

                await server.kill()
                shutil.rmtree(tmp_path / "data")
                await server.start()
                await eventually(lambda: registry.lacking is None)
                await bus.publish(sealed(a_report(generation=3), "beat-3"))
                await eventually(lambda: world.annotations()[keys.generation("nvidia")] == "3")
                kept = await liveness(bus)
                assert b'"alive":true' in kept
    finally:
        await server.kill()


async def test_a_phase_that_a_restored_backup_has_forgotten_is_written_again_once_the_log_is_read_anew(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    world = World()
    world.store = ObjectStore(now=lambda: datetime.now(UTC), rng=random.Random(1))
    done = {keys.BIND_PHASE: "success", KEY: ";"}
    try:
        async with connect(server.url, name="test") as bus:
            await bus.wait_connected()
            await bus.ensure_streams(subjects.STREAMS)
            world.add_node()
            pod = world.add_pod("p1", **{keys.BIND_PHASE: "allocating", KEY: "GPU-n1,NVIDIA,3000,0:;"})
            backup = copy.deepcopy(world.store)
            await bus.publish(sealed(a_grant(pod, 3000), "grant-1"))
            await bus.publish(sealed(AllocationSucceeded(pod=pod, node="n1"), "success-1"))
            async with running(world, bus):
                await eventually(lambda: world.pod_annotations("p1") == done)
            world.store = backup
            assert world.pod_annotations("p1")[keys.BIND_PHASE] == "allocating"
            async with running(world, bus, outcomes_anew=True):
                await eventually(lambda: world.pod_annotations("p1") == done)
    finally:
        await server.kill()

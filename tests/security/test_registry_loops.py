"""Each loop of the registry and of the webhook: an item whose handler raises keeps the next item from nothing, and the process goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_protocol import subjects
from hami_protocol.devices import PodRef
from hami_protocol.envelope import seal
from hami_protocol.events import AllocationSucceeded, DevicesReported
from hami_registry.service import Registry
from hami_runtime import virtual
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.cluster import NODES
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import VirtualClock
from tests.builders import a_device
from tests.security.failing import ERRORS, fail

errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Registry, MemoryBus, MemoryCluster]]:
    clock, bus = VirtualClock(), MemoryBus()
    cluster = MemoryCluster(ObjectStore(now=clock.utc, rng=random.Random(1)))
    await bus.ensure_streams(subjects.STREAMS)
    for node in ("bad", "good"):
        await cluster.create(NODES, {"metadata": {"name": node}})
    registry, stop = Registry(bus, cluster, clock, Catalog(), identity="r1", namespace="kube-system"), asyncio.Event()
    task = asyncio.create_task(registry.run(stop))
    await asyncio.sleep(10)
    yield registry, bus, cluster
    assert not task.done()  # no loop has ended the process
    stop.set()
    await task


def reported(node: str) -> Any:
    event = DevicesReported(node=node, device_type="nvidia", generation=1, devices=(a_device(f"GPU-{node}"),))
    return seal(event, event_id=f"{node}/1", source="test", time="2026-01-01T00:00:00Z")


def succeeded(name: str) -> Any:
    event = AllocationSucceeded(pod=PodRef(namespace="default", name=name, uid=name), node="good")
    return seal(event, event_id=f"{name}/succeeded", source="test", time="2026-01-01T00:00:00Z")


async def written(cluster: MemoryCluster, node: str) -> bool:
    return bool((await cluster.get(NODES, node)).metadata.annotations)


@errors
@pytest.mark.parametrize("where", ["reported", "due", "settle", "_do", "nodes_synced"])
def test_a_node_that_fails_keeps_no_other_from_being_recorded(where: str, error: Exception) -> None:
    """Read from the bus, decided, carried out and settled; what is due and the sources fail as a whole, and come again."""

    async def main() -> None:
        async with running() as (registry, bus, cluster):
            rules = registry.mirror.rules
            if where == "reported":
                fail(rules, "reported", lambda event, *_: event.node == "bad", error=error)
            elif where == "_do":
                fail(registry.mirror, "_do", lambda command: command.key.node == "bad", error=error)
            elif where == "settle":
                fail(rules, "settle", lambda command, *_: command.key.node == "bad", error=error)
            else:
                fail(rules, where, times=2, error=error)
            for node in ("bad", "good"):
                await bus.publish(reported(node))
            await asyncio.sleep(30)
            assert await written(cluster, "good")

    virtual.run(main())


def is_bad(*args: Any, **_: Any) -> bool:
    return any(getattr(getattr(each, "pod", None), "name", "") == "bad" for each in args)


@errors
@pytest.mark.parametrize("where", ["_judge", "_settle"])
def test_an_outcome_that_fails_keeps_no_other_from_being_carried_out(where: str, error: Exception) -> None:
    async def main() -> None:
        async with running() as (registry, bus, _):
            outcomes = registry._outcomes
            passed = fail(outcomes, where, is_bad, error=error)
            for name in ("bad", "good"):
                await bus.publish(succeeded(name))
            await asyncio.sleep(5)
            assert passed

    virtual.run(main())

"""Our scheduler behind the real kube-scheduler: where all fitting nodes are answered (``ranked``), its own spread constraints count too."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_protocol import keys, registration
from hami_protocol.devices import PodRef
from hami_runtime.bus.memory import MemoryBus
from hami_runtime.kube.cluster import NODES, PODS
from hami_scheduler import wire
from hami_scheduler.service import Options, Scheduler
from hami_scheduler.settings import PlacementMode
from tests.builders import a_device

from .conftest import GPU, World, _on_real

PODS_MADE = 4
SECONDS = 60.0


def spreading(name: str) -> dict[str, Any]:
    """A pod that would rather not share a node with its likes."""
    limits = {GPU: "1"}
    rule = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "schedulerName": "hami-scheduler",
            "topologySpreadConstraints": [rule],
            "containers": [{"name": "c", "image": "x", "resources": {"limits": limits, "requests": limits}}],
        },
    }


def ask(world: World, scheduler: Scheduler) -> None:
    """Our scheduler answers the world's extender calls."""

    def decoded(answer: bytes) -> Any:
        return msgspec.json.decode(answer)

    async def bind(body: dict[str, Any]) -> dict[str, Any]:
        args = wire.decode_binding(msgspec.json.encode(body))
        return {"Error": await scheduler.bind(PodRef(namespace=args.pod_namespace, name=args.pod_name, uid=args.pod_uid), args.node)}

    world.filter = lambda body: decoded(wire.encode_filter(scheduler.filter(wire.decode_args(msgspec.json.encode(body)))))
    world.prioritize = lambda body: decoded(wire.encode_priorities(scheduler.prioritize(wire.decode_args(msgspec.json.encode(body)))))
    world.bind = bind


@pytest.mark.cluster
@pytest.mark.parametrize(("mode", "on_nodes"), [(PlacementMode.PINNED, [4]), (PlacementMode.RANKED, [2, 2])])
def test_spread_constraints_count_where_all_fitting_nodes_are_answered(
    quiet_kubeconfig: Path, tmp_path: Path, mode: PlacementMode, on_nodes: list[int]
) -> None:
    async def story(world: World) -> None:
        for name in ("m1", "m2"):
            await world.add_node(name)
            listed = registration.encode_text(tuple(a_device(f"GPU-{name}-{place}", index=place) for place in range(PODS_MADE)))
            annotations = {keys.register("nvidia"): listed, keys.ALLOCATION_MODE: "cdi"}
            await world.cluster.patch(NODES, name, {"metadata": {"annotations": annotations, "labels": {"kubernetes.io/hostname": name}}})
        scheduler = Scheduler(
            cluster=world.cluster,
            bus=MemoryBus(),
            clock=world.clock,
            catalog=Catalog(),
            identity="s1",
            options=Options(placement=mode),
        )
        ask(world, scheduler)
        stop = asyncio.Event()
        running = asyncio.create_task(scheduler.run(stop))
        try:
            async with world.running():
                for number in range(PODS_MADE):
                    await world.cluster.create(PODS, spreading(f"web{number}"), namespace="default")
                    await bound(world, f"web{number}")
        finally:
            stop.set()
            await running
        nodes = Counter([(await world.pod(f"web{number}")).spec.node_name for number in range(PODS_MADE)])
        assert sorted(nodes.values()) == on_nodes

    asyncio.run(_on_real(story, quiet_kubeconfig, tmp_path))


async def bound(world: World, name: str) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not (await world.pod(name)).spec.node_name:
                await world.pause(0.0)
    except TimeoutError:
        pytest.fail(f"{name} is not bound: {await world.condition(name)}, after {[verb for verb, _, _ in world.calls]}")

"""From the reference to us and back, on objects as the reference leaves them: what ran stays charged, what is new is placed by us."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from hami_protocol import assignment, keys
from hami_protocol.envelope import seal
from hami_protocol.events import AllocationSucceeded
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_rig.service_settings import REGISTRY, SCHEDULER, WEBHOOK
from hami_runtime.bus import jetstream
from tests.cluster.conftest import CARD_MIB
from tests.cluster.world import ALLOCATED, TO_ALLOCATE, World, a_container, a_pod, waits

pytestmark = pytest.mark.asyncio(loop_scope="session")
NODE = "old"
CARDS = ("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", "GPU-1a2b3c4d-0000-4000-8000-000000000001")
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


def registration(form: str) -> str:
    """What the reference's plugin writes onto its node: the text of old releases, or the JSON of new ones."""
    if form == "text":
        return "".join(f"{uuid},10,{CARD_MIB},100,NVIDIA-Tesla V100-PCIE-32GB,0,true:" for uuid in CARDS)
    fields = {"count": 10, "devmem": CARD_MIB, "devcore": 100, "type": "NVIDIA-Tesla V100-PCIE-32GB", "numa": 0, "mode": "hami-core"}
    return json.dumps([{"id": uuid, "index": index, **fields, "health": True} for index, uuid in enumerate(CARDS)])


async def call(world: World, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Ask the API server as an administrator."""
    async with (
        world.installation.plane.session() as session,
        session.request(method, path, data=json.dumps(body), headers=headers or {"Content-Type": "application/json"}) as answer,
    ):
        assert answer.status in (200, 201), await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def a_node_of_the_reference(world: World, form: str) -> None:
    """A node whose plugin is the reference's."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    annotations = {"hami.io/node-nvidia-register": registration(form), keys.LEGACY_HANDSHAKE: f"Requesting_{now}"}
    body = {"metadata": {"name": NODE, "labels": {"pool": NODE}, "annotations": annotations}}
    async with asyncio.timeout(30), world.installation.plane.session() as session:
        status = 0
        while status != 201:  # a policy that is gone holds for a moment
            async with session.post("/api/v1/nodes", json=body) as answer:
                status = answer.status
            await asyncio.sleep(0.2)
    resources = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "20"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    said = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    await call(world, "PATCH", f"/api/v1/nodes/{NODE}/status", {"status": said}, STRATEGIC)
    await call(world, "PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}}, MERGE)


async def a_pod_of_the_reference(world: World, name: str, uuid: str, mib: int) -> None:
    """A running pod, as the reference's scheduler and plugin leave it: its record has no entry for the init container without a card."""
    value = f"{uuid},NVIDIA,{mib},30:;"
    seconds = str(int(datetime.now(UTC).timestamp()))
    annotations = {
        keys.ASSIGNED_NODE: NODE,
        keys.ASSIGNED_TIME: seconds,
        keys.BIND_TIME: seconds,
        keys.BIND_PHASE: "success",
        ALLOCATED: value,
        TO_ALLOCATE: ";",
    }
    pod = a_pod(
        name, a_container(mib=mib, cores=30), pool=NODE, metadata={"annotations": annotations, "labels": {keys.ASSIGNED_NODE: NODE}}
    )
    pod["spec"]["initContainers"] = [{"name": "init", "image": "pause"}]
    pod["spec"]["schedulerName"] = "hami-scheduler"
    pod["spec"]["nodeName"] = NODE
    await call(world, "POST", "/api/v1/namespaces/default/pods", pod)
    over = {"name": "init", "image": "pause", "imageID": "", "ready": True, "restartCount": 0}
    over["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    status = {"phase": "Running", "initContainerStatuses": [over]}
    await call(world, "PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}, MERGE)


async def served(world: World, pod: Pod) -> None:
    """Say for the node's agent, which is not there, that the pod has its share: the node's lock is free for the next one."""
    event = AllocationSucceeded(pod=pod_ref(pod), node=NODE)
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    async with jetstream.connect(world.installation.nats_url, name="node-agent-old") as bus:
        await bus.wait_connected()
        await bus.publish(seal(event, event_id=f"{pod.metadata.uid}-success", source="/hami/node-agent/old", time=now))
    await world.until(pod.metadata.name, lambda each: each.metadata.annotations.get(keys.BIND_PHASE) == "success")


@pytest_asyncio.fixture(loop_scope="session")
async def before(world: World) -> AsyncIterator[World]:
    """The cluster as it was before: no webhook and no policy of ours, our services stopped. Afterwards they run, even if the test failed."""
    services = [world.installation.processes[name] for name in (WEBHOOK, SCHEDULER, REGISTRY)]
    for service in services:
        await service.stop(grace_seconds=10)
    await world.installation.remove_admission()
    yield world
    await world.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    await world.kubectl("delete", "node", NODE, "--ignore-not-found")
    if not all(service.pid for service in services):
        await install(world)


async def install(world: World) -> None:
    """Install ours."""
    await world.installation.apply_deployment()
    for name in (WEBHOOK, SCHEDULER, REGISTRY):
        await world.installation.restart(name)
        await world.installation.able(name)


@pytest.mark.parametrize("form", ["json", "text"])
async def test_what_the_reference_placed_stays_charged_and_new_pods_are_placed_by_us(before: World, form: str) -> None:
    world = before
    await a_node_of_the_reference(world, form)
    await a_pod_of_the_reference(world, "ref-0", CARDS[0], 30000)
    await a_pod_of_the_reference(world, "ref-1", CARDS[1], 20000)
    await install(world)

    await world.apply(a_pod("new", a_container(mib=12000, cores=10), pool=NODE))
    new = await world.until("new", lambda each: bool(each.spec.node_name))
    await served(world, new)
    ((share,),) = assignment.decode_entries(new.metadata.annotations[ALLOCATED])
    assert (new.spec.node_name, share.uuid, share.memory_mib) == (NODE, CARDS[1], 12000)
    await world.apply(a_pod("much", a_container(mib=10000), pool=NODE))
    refused = await world.until("much", waits)
    assert any("2/2 CardInsufficientMemory" in (each.message or "") for each in refused.status.conditions or ())

    await world.kubectl("delete", "pod", "ref-0", "--force", "--grace-period=0")
    placed = await world.until("much", lambda each: bool(each.spec.node_name))
    ((share,),) = assignment.decode_entries(placed.metadata.annotations[ALLOCATED])
    assert share.uuid == CARDS[0]


async def test_on_the_way_back_everything_is_where_the_reference_looks_for_it(world: World) -> None:
    await world.apply(a_pod("ours", a_container(mib=3000, cores=20), pool="locked"))
    (pod,) = await world.running("ours")
    node = json.loads(await world.kubectl("get", "node", "locked", "-o", "json"))
    registered = node["metadata"]["annotations"]["hami.io/node-nvidia-register"]
    cards = [entry.split(",") for entry in registered.rstrip(":").split(":")]
    assert [card[:4] for card in cards] == [[uuid, "40", str(CARD_MIB), "100"] for uuid in world.installation.cards["locked"]]
    annotations = pod.metadata.annotations
    assert annotations[ALLOCATED].count(",") == 3
    assert annotations[ALLOCATED].endswith(":;")
    assert annotations[keys.BIND_PHASE] == "success"
    assert annotations[keys.ASSIGNED_NODE] == "locked"
    assert keys.NODE_LOCK not in node["metadata"]["annotations"], "no lock is left for the reference to wait for"
    try:
        await world.installation.remove_admission()
        for name in (WEBHOOK, SCHEDULER, REGISTRY):
            await world.installation.processes[name].stop(grace_seconds=10)
        await asyncio.sleep(1)
        left = await world.pod("ours")
        assert (left.status.phase, left.metadata.annotations) == ("Running", annotations)
        await world.check_grant(left)
    finally:
        await install(world)

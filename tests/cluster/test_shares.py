"""A container gets exactly its share: environment, mounts, devices and grant, whoever else starts at the same moment."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hami_protocol import events, keys
from hami_rig.service_settings import WEBHOOK
from tests.cluster.conftest import CARD_MIB, CARDS
from tests.cluster.harness import building, images
from tests.cluster.world import (
    ALLOCATED,
    SETTLE_SECONDS,
    SHOW,
    STAY,
    TO_ALLOCATE,
    World,
    a_container,
    a_pod,
    eventually,
    held_mib,
    of_pod,
    runs,
    shares_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
PODS_AT_ONCE = 40
GATED = [{"name": "test.hami.io/wait"}]
"""A pod with this is not scheduled yet."""


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_a_pod_is_admitted_placed_bound_and_started_with_exactly_its_share(world: World, pool: str) -> None:
    async with world.log() as log:
        await world.apply(a_pod("one", a_container(mib=3000, cores=20), pool=pool))
        (pod,) = await world.running("one")
        assert pod.spec.scheduler_name == "hami-scheduler"
        annotations = pod.metadata.annotations
        ((share,),) = shares_of(pod).values()
        assert (share.type, share.memory_mib, share.cores) == ("NVIDIA", 3000, 20)
        assert annotations[TO_ALLOCATE] == ";"
        assert annotations[keys.ASSIGNED_NODE] == pod.spec.node_name == pool
        label = pod.metadata.labels.get(keys.ASSIGNED_NODE)  # servers before 1.35 leave a Binding's labels
        assert label == (pool if building.minor(building.version()) >= 35 else None)
        await world.check_grant(pod)
        await world.gone("pod", "one")
        await eventually(lambda: events.PodReleased in of_pod(log, pod.metadata.uid))
    mine = of_pod(log, pod.metadata.uid)
    assert mine[:2] == [events.PodAssigned, events.PodAllocating]
    assert events.AllocationSucceeded in mine


async def test_a_pod_that_asks_for_nothing_of_ours_is_left_alone(world: World) -> None:
    await world.apply(a_pod("plain", a_container()))
    pod = await world.until("plain", lambda each: each.status.phase == "Running")
    seen = await world.seen(pod)
    assert pod.spec.scheduler_name == "default-scheduler"
    assert seen.grant is None
    assert not any("vgpu" in path for path in seen.mounts)
    assert not any(path.startswith("/dev/nvidia") for path in seen.devices)


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_forty_pods_of_two_containers_at_once_each_get_their_own(world: World, pool: str) -> None:
    manifests = [
        a_pod(f"p{number}", a_container("a", mib=200 + number, cores=1), a_container("b", mib=400 + number, cores=2), pool=pool)
        for number in range(PODS_AT_ONCE)
    ]
    await world.apply(*manifests)
    pods = await world.running(*(f"p{number}" for number in range(PODS_AT_ONCE)), seconds=200)
    caches = set()
    for number, pod in enumerate(pods):
        shares = shares_of(pod)
        assert [(share.memory_mib, share.cores) for (share,) in shares.values()] == [(200 + number, 1), (400 + number, 2)]
        for container in ("a", "b"):
            seen = await world.check_grant(pod, container)
            caches.add(seen.environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"])
    assert len(caches) == 2 * PODS_AT_ONCE
    held = held_mib(pods)
    assert len(held) <= CARDS
    assert all(mib <= CARD_MIB for mib in held.values())


async def test_two_cards_for_one_container(world: World) -> None:
    await world.apply(a_pod("two", a_container(mib=5000, cores=10, count=2)))
    (pod,) = await world.running("two")
    seen = await world.check_grant(pod)
    assert len({device.uuid for device in seen.grant.devices}) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_init_containers_and_sidecars_keep_their_own_shares_though_kubelet_gives_their_ids_again(world: World, pool: str) -> None:
    names = [f"mixed{number}" for number in range(3)]
    init = [
        a_container("i0", mib=1100, command=SHOW),
        a_container("sidecar", mib=1200, restartPolicy="Always"),
        a_container("i2", mib=1300, count=2, command=SHOW),
    ]
    await world.apply(
        *(
            a_pod(name, a_container("c", mib=1400 + number), a_container("d", mib=1500 + number, count=2), init=init, pool=pool)
            for number, name in enumerate(names)
        )
    )
    for pod in await world.running(*names, seconds=120):
        for container in ("i0", "sidecar", "i2", "c", "d"):
            await world.check_grant(pod, container)


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_a_request_in_an_init_container_alone_is_served(world: World, pool: str) -> None:
    await world.apply(a_pod("initonly", a_container("main"), init=[a_container("prepare", mib=2000, command=SHOW)], pool=pool))
    (pod,) = await world.running("initonly")
    assert list(shares_of(pod)) == ["prepare"]
    await world.check_grant(pod, "prepare")
    assert (await world.seen(pod, "main")).grant is None


async def test_the_limit_holds_in_a_real_container(world: World) -> None:
    node = world.installation.nodes["cdi"]
    command = (
        "export NVIDIA_VISIBLE_DEVICES=$(grep -a -o 'GPU-[0-9a-f-]*' /usr/local/vgpu/grant | sed -n 1p) FAKE_GPU_STATE=/tmp/cards.state; "
        f"vgpu-alloc --mib 2000 --step-mib 100; {STAY}"
    )
    container = a_container(mib=1000, command=command, image=images.TOOLS)
    container["env"] = [{"name": "FAKE_GPU_CONFIG", "value": "/cards.conf"}]
    container["volumeMounts"] = [{"name": "cards", "mountPath": "/cards.conf"}]
    volumes = [{"name": "cards", "hostPath": {"path": str(node.folder.cards), "type": "File"}}]
    await world.apply(a_pod("enforced", container, volumes=volumes))
    (pod,) = await world.running("enforced")
    said = ""
    async with asyncio.timeout(SETTLE_SECONDS):
        while not said:
            said = next((line for line in (await world.output(pod)).splitlines() if line.startswith("{")), "")
            await asyncio.sleep(0.1)
    result = json.loads(said)
    assert result["allocated_mib"] <= 1000 < result["asked_mib"], result
    assert result["total_mib"] == 1000


async def patch_pod(world: World, name: str, body: dict[str, Any], *, query: str = "") -> int:
    """What the API server answers to somebody who may change pods."""
    headers = {"Content-Type": "application/merge-patch+json"}
    url = f"/api/v1/namespaces/default/pods/{name}{query}"
    async with world.installation.plane.session("tenant") as session, session.patch(url, data=json.dumps(body), headers=headers) as answer:
        return answer.status


async def answered(world: World, name: str, annotations: dict[str, str], status: int) -> None:
    """Wait until annotating a pod would be answered with ``status``: policies that come or go take a moment to hold."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while await patch_pod(world, name, {"metadata": {"annotations": annotations}}, query="?dryRun=All") != status:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_forged_assignment_never_becomes_a_grant(world: World) -> None:
    forged = {ALLOCATED: f"{world.installation.cards['cdi'][0]},NVIDIA,32768,100:;", keys.ASSIGNED_NODE: "cdi"}
    refusal = await world.refusal(a_pod("forged", metadata={"annotations": forged}))
    assert "denied the request" in refusal
    assert ALLOCATED in refusal or keys.ASSIGNED_NODE in refusal
    await world.apply(a_pod("later", a_container(mib=700), schedulingGates=GATED))
    assert await patch_pod(world, "later", {"metadata": {"annotations": forged}}) == 403
    assert not (await world.pod("later")).metadata.annotations.keys() & forged.keys()


async def test_an_assignment_that_came_in_all_the_same_is_overwritten_by_the_binding(world: World) -> None:
    forged = {
        ALLOCATED: f"{world.installation.cards['cdi'][0]},NVIDIA,32768,100:;",
        TO_ALLOCATE: f"{world.installation.cards['cdi'][0]},NVIDIA,32768,100:;",
        keys.ASSIGNED_NODE: "locked",
        keys.BIND_PHASE: "success",
    }
    await world.apply(a_pod("later", a_container(mib=700), schedulingGates=GATED))
    await world.installation.processes[WEBHOOK].stop(grace_seconds=10)
    await world.installation.remove_admission()
    try:
        await answered(world, "later", forged, 200)
        assert await patch_pod(world, "later", {"metadata": {"annotations": forged}}) == 200
        assert (await world.pod("later")).metadata.annotations[ALLOCATED] == forged[ALLOCATED]
        assert await patch_pod(world, "later", {"spec": {"schedulingGates": None}}) == 200
        pod = await world.until("later", lambda each: runs(each) and each.metadata.annotations[TO_ALLOCATE] == ";")
    finally:
        await world.installation.apply_deployment()
        await world.installation.restart(WEBHOOK)
        await world.installation.able(WEBHOOK)
        await answered(world, "later", forged, 403)
    assert pod.metadata.annotations[keys.ASSIGNED_NODE] == pod.spec.node_name == "cdi"
    assert [share.memory_mib for (share,) in shares_of(pod).values()] == [700]
    await world.check_grant(pod)


async def test_nobody_but_the_scheduler_brings_an_assignment_in_a_binding(world: World) -> None:
    await world.apply(a_pod("bound", a_container(mib=700), schedulingGates=GATED))
    forged = {ALLOCATED: f"{world.installation.cards['cdi'][0]},NVIDIA,32768,100:;"}
    binding = {"metadata": {"name": "bound", "annotations": forged}, "target": {"kind": "Node", "name": "cdi"}}
    path = "/api/v1/namespaces/default/pods/bound/binding"
    async with world.installation.plane.session("tenant") as session, session.post(path, json=binding) as answer:
        assert answer.status == 403, await answer.text()
    assert not (await world.pod("bound")).spec.node_name

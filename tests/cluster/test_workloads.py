"""What clusters are used for: Deployments that are scaled, Jobs that end, pods that wait for the room that another gives back."""

from __future__ import annotations

import json

import pytest

from hami_protocol import events
from tests.cluster.conftest import CARD_MIB, CARDS
from tests.cluster.world import World, a_container, a_deployment, a_pod, a_spec, eventually, of_pod, runs, waits

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_deployment_of_twenty_is_scaled_up_and_down(world: World) -> None:
    await world.apply(a_deployment("web", a_container(mib=1500, cores=5), replicas=1))
    await world.kubectl("scale", "deployment/web", "--replicas=20")
    await world.kubectl("rollout", "status", "deployment/web", "--timeout=120s", timeout_seconds=130)
    pods = await world.serving(20, runs, app="web")
    assert len(pods) == 20
    for pod in pods:
        await world.check_grant(pod)
    async with world.log() as log:
        await world.kubectl("scale", "deployment/web", "--replicas=2")
        await world.kubectl("wait", "--for=jsonpath={.status.replicas}=2", "deployment/web", "--timeout=60s")
        await eventually(lambda: sum(events.PodReleased in of_pod(log, pod.metadata.uid) for pod in pods) == 18)
    await world.apply(*(a_pod(f"half{number}", a_container(mib=CARD_MIB // 2)) for number in range(CARDS)))
    await world.running(*(f"half{number}" for number in range(CARDS)))


async def test_a_job_gives_its_share_back_when_it_is_complete(world: World) -> None:
    spec = a_spec(a_container(mib=CARD_MIB, count=CARDS, command="exit 0"), restartPolicy="Never")
    await world.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "once", "namespace": "default"},
            "spec": {"completions": 3, "parallelism": 2, "template": {"metadata": {"labels": {"app": "once"}}, "spec": spec}},
        }
    )
    await world.kubectl("wait", "--for=condition=complete", "job/once", "--timeout=120s", timeout_seconds=130)
    assert {pod.status.phase for pod in await world.pods(app="once")} == {"Succeeded"}
    await world.apply(a_pod("next", a_container(mib=CARD_MIB, count=CARDS)))
    (pod,) = await world.running("next")
    await world.check_grant(pod)


async def test_a_waiting_pod_is_placed_soon_after_the_release_that_it_waits_for(world: World) -> None:
    holders = [a_pod(f"holder{number}", a_container(mib=CARD_MIB)) for number in range(CARDS)]
    await world.apply(*holders)
    await world.running(*(f"holder{number}" for number in range(CARDS)))
    await world.apply(a_pod("late", a_container(mib=CARD_MIB)))
    refused = await world.until("late", waits)
    message = next(each.message for each in refused.status.conditions or () if each.type == "PodScheduled")
    assert f"{CARDS}/{CARDS} CardInsufficientMemory" in (message or "")
    assert "FilteringFailed" in await world.told("late")
    await world.kubectl("delete", "pod", "holder0", "--wait=false")
    (pod,) = await world.running("late")  # kube-scheduler by itself would look again after five minutes
    await world.check_grant(pod)


async def test_what_nobody_can_read_is_refused_with_the_fields_path(world: World) -> None:
    pod = a_pod("odd", a_container(mib=1000))
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "-1"
    assert "spec.containers[0].resources.limits" in await world.refusal(pod)


async def test_a_quota_counts_what_is_held(world: World) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "devices", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "3000"}},
    }
    await world.apply(quota)
    try:
        await world.apply(a_pod("first", a_container(mib=2000)))
        await world.running("first")
        assert "gpumem" in await world.refusal(a_pod("second", a_container(mib=2000)))
    finally:
        await world.gone("resourcequota", "devices")


async def test_kubelet_counts_the_shares_that_the_agent_offers(world: World) -> None:
    node = json.loads(await world.kubectl("get", "node", "cdi", "-o", "json"))
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(CARDS * 40)
    assert node["metadata"]["annotations"]["hami.io/node-allocation-mode"] == "cdi"

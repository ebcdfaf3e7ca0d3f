"""What goes wrong on nodes: crashes, restarts of kubelet and agent, reboots, lost checkpoints, missing images. Shares stay what they are."""

from __future__ import annotations

import asyncio
import signal

import pytest

from hami_protocol import events
from hami_protocol.kubernetes import Pod
from hami_rig.service_settings import SCHEDULER, agent_process
from tests.cluster.conftest import CARD_MIB, CARDS
from tests.cluster.world import SHOW, World, a_container, a_deployment, a_pod, eventually, held_mib, of_pod, runs, waits

pytestmark = pytest.mark.asyncio(loop_scope="session")


def restarts(pod: Pod) -> int:
    """How often the first container was started again."""
    return (pod.status.container_statuses or ())[0].restart_count if pod.status.container_statuses else 0


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_a_container_that_crashes_gets_the_same_grant_at_every_start(world: World, pool: str) -> None:
    signs = world.installation.nodes[pool].root / "signs"
    signs.mkdir(exist_ok=True)
    until_told = "trap exit TERM; until [ -e /signs/crash ]; do sleep 0.1; done; rm /signs/crash; exit 1"
    container = a_container(mib=900, command=f"{SHOW}\n{until_told}", volumeMounts=[{"name": "signs", "mountPath": "/signs"}])
    await world.apply(a_pod("crashing", container, pool=pool, volumes=[{"name": "signs", "hostPath": {"path": str(signs)}}]))
    for restart in range(3):
        pod = await world.until("crashing", lambda each, count=restart: runs(each) and restarts(each) == count)
        await world.check_grant(pod, restart=restart)
        (signs / "crash").touch()


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_kubelet_restarted_while_pods_run_keeps_their_grants_and_serves_new_ones(world: World, pool: str) -> None:
    await world.apply(a_pod("before", a_container(mib=1000), pool=pool))
    (before,) = await world.running("before")
    await world.installation.nodes[pool].restart_kubelet()
    await world.apply(a_pod("after", a_container(mib=1100), pool=pool))
    (after,) = await world.running("after")
    await world.check_grant(after)
    still = await world.pod("before")
    assert runs(still)
    assert restarts(still) == 0
    assert still.metadata.annotations == before.metadata.annotations


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="removed"),
        pytest.param(b'{"Data":{"PodDeviceEntries":[{"PodUID":"', id="truncated"),
        pytest.param(b'{"Data":{"Entries":{}},"Version":"v9","Checksum":1}', id="unknown version"),
    ],
)
async def test_kubelets_checkpoint_is_lost(world: World, content: bytes | None) -> None:
    node = world.installation.nodes["cdi"]
    await world.apply(a_pod("before", a_container(mib=1000)))
    await world.running("before")
    await node.stop_kubelet()
    if content is None:
        node.checkpoint.unlink()
    else:
        node.checkpoint.write_bytes(content)
    await node.start_kubelet()
    await world.apply(a_pod("after", a_container("a", mib=1200), a_container("b", mib=1300)))
    (after,) = await world.running("after", seconds=120)
    await world.check_grant(after, "a")
    await world.check_grant(after, "b")
    assert (await world.pod("before")).status.phase == "Running"


@pytest.mark.parametrize("pool", ["cdi", "locked"])
async def test_a_node_whose_power_was_cut_serves_its_pods_or_their_successors_again(world: World, pool: str) -> None:
    """Kubelet refuses pods with devices that it meets again before the agent has registered; whoever made them makes others."""
    await world.apply(a_deployment("web", a_container(mib=CARD_MIB), replicas=CARDS, pool=pool))
    await world.kubectl("rollout", "status", "deployment/web", "--timeout=120s", timeout_seconds=130)
    before = {pod.metadata.uid for pod in await world.pods(app="web")}
    await world.installation.reboot(pool)

    def serves_again(pod: Pod) -> bool:
        return runs(pod) and (restarts(pod) > 0 or pod.metadata.uid not in before)

    serving = await world.serving(CARDS, serves_again, app="web")
    assert sorted(held_mib(serving).values()) == [CARD_MIB] * CARDS
    for pod in serving:
        await world.check_grant(pod, restart=restarts(pod))


async def test_a_pod_deleted_between_binding_and_allocation_gives_everything_back(world: World) -> None:
    kubelet = world.installation.processes["kubelet-cdi"]
    kubelet.send(signal.SIGSTOP)  # it still watches the agent's devices, so that the node takes pods, and allocates nothing
    try:
        async with world.log() as log:
            await world.apply(a_pod("early", a_container(mib=CARD_MIB, count=CARDS)))
            early = await world.until("early", lambda each: bool(each.spec.node_name))
            await world.kubectl("delete", "pod", "early", "--force", "--grace-period=0")
            await eventually(lambda: events.PodReleased in of_pod(log, early.metadata.uid))
    finally:
        kubelet.send(signal.SIGCONT)
    await world.apply(a_pod("next", a_container(mib=CARD_MIB, count=CARDS)))
    (pod,) = await world.running("next")
    await world.check_grant(pod)


async def test_a_node_without_kubelet_takes_no_pod_until_it_is_back(world: World) -> None:
    node = world.installation.nodes["cdi"]
    await node.stop_kubelet()
    try:
        await world.apply(a_pod("later", a_container(mib=1000)))
        refused = await world.until("later", waits)
        assert any("1 node agent not serving" in (each.message or "") for each in refused.status.conditions or ())
    finally:
        await node.start_kubelet()
    (pod,) = await world.running("later")
    await world.check_grant(pod)


async def test_the_agent_killed_while_pods_start_gives_nobody_another_share(world: World) -> None:
    await world.apply(a_deployment("many", a_container(mib=800, cores=3), replicas=10))
    await asyncio.sleep(1.5)
    agent = world.installation.processes[agent_process("cdi")]
    agent.send(signal.SIGKILL)
    await agent.wait()
    await world.installation.restart(agent.name)
    await world.kubectl("rollout", "status", "deployment/many", "--timeout=120s", timeout_seconds=130)
    for pod in await world.serving(10, runs, app="many"):
        await world.check_grant(pod)


async def test_the_scheduler_killed_while_pods_wait_places_them_once(world: World) -> None:
    names = [f"p{number}" for number in range(8)]
    await world.apply(*(a_pod(name, a_container(mib=CARD_MIB // 2)) for name in names))
    scheduler = world.installation.processes[SCHEDULER]
    scheduler.send(signal.SIGKILL)
    await scheduler.wait()
    await world.installation.restart(SCHEDULER)
    pods = await world.running(*names, seconds=120)
    assert sorted(held_mib(pods).values()) == [CARD_MIB] * CARDS


@pytest.mark.parametrize(
    ("pool", "image", "policy", "reasons"),
    [
        pytest.param("locked", "docker.io/local/nowhere:1", "Never", {"ErrImageNeverPull"}, id="locked"),
        pytest.param("cdi", "127.0.0.1:1/nowhere:1", "Always", {"ErrImagePull", "ImagePullBackOff"}, id="cdi"),
    ],
)
async def test_an_image_that_is_not_there_holds_up_nobody_else(world: World, pool: str, image: str, policy: str, reasons: set[str]) -> None:
    missing = a_container("b", mib=700, image=image, imagePullPolicy=policy)
    await world.apply(a_pod("broken", a_container("a", mib=600), missing, pool=pool), a_pod("fine", a_container(mib=800), pool=pool))
    (fine,) = await world.running("fine")
    await world.check_grant(fine)

    def no_image(pod: Pod) -> bool:
        waiting = [each.state.waiting for each in pod.status.container_statuses or () if each.state and each.state.waiting]
        return any(each.get("reason") in reasons for each in waiting)

    broken = await world.until("broken", no_image)
    await world.check_grant(broken, "a")
    async with world.log() as log:
        await world.gone("pod", "broken")
        await eventually(lambda: events.PodReleased in of_pod(log, broken.metadata.uid))

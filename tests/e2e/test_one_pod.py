"""The way of one pod: applied, admitted, placed, bound, allocated, started with exactly what was booked, and gone."""

from __future__ import annotations

import json
import re
import signal

import pytest

from hami_protocol import assignment, events, keys
from hami_protocol.kubernetes import Pod
from hami_rig.kubectl import KubectlFailed
from tests.e2e.conftest import CARD_MIB, World, a_pod, eventually, of_pod, runs, waits

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
RESTARTED = "device manager started again"


def all_started(pod: Pod) -> bool:
    """Whether each of its containers has started: a pod is said to run as soon as its first one does."""
    statuses = pod.status.container_statuses or ()
    return len(statuses) == len(pod.spec.containers) and all(each.state is not None and each.state.running is not None for each in statuses)


@pytest.mark.parametrize("pool", ["locked", "cdi"])
async def test_a_pod_gets_exactly_the_share_that_it_asked_for(world: World, pool: str) -> None:
    async with world.log() as log:
        await world.apply(a_pod("one", mib=3000, cores=20, pool=pool))
        (pod,) = await world.running("one")
        annotations = pod.metadata.annotations
        ((share,),) = assignment.decode_entries(annotations[ALLOCATED])
        assert (share.type, share.memory_mib, share.cores) == ("NVIDIA", 3000, 20)
        assert annotations[TO_ALLOCATE] == ";"
        assert annotations[keys.ASSIGNED_NODE] == pod.metadata.labels[keys.ASSIGNED_NODE] == pod.spec.node_name == pool
        env = world.given(pod)["env"]
        assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "20")
        assert env["NVIDIA_VISIBLE_DEVICES"] == ("void" if pool == "cdi" else share.uuid)
        await world.kubectl("delete", "pod", "one", "--timeout=20s")
        await eventually(lambda: events.PodReleased in of_pod(log, pod.metadata.uid), 10)
    mine = of_pod(log, pod.metadata.uid)
    assert mine[:2] == [events.PodAssigned, events.PodAllocating]
    assert events.AllocationSucceeded in mine


async def test_a_pod_waits_for_room_and_is_placed_when_another_has_ended(world: World) -> None:
    fillers = [a_pod(f"filler-{number}", mib=CARD_MIB, annotations={"rig.hami.io/stop-seconds": "1"}) for number in range(4)]
    await world.apply(*fillers)
    await world.running(*(f"filler-{number}" for number in range(4)))
    await world.apply(a_pod("late", mib=CARD_MIB))
    refused = await world.until("late", waits)
    message = next(each.message for each in refused.status.conditions or () if each.type == "PodScheduled")
    assert message is not None
    assert message.startswith("0/2 nodes are available: 2 2/2 CardInsufficientMemory.")
    await world.kubectl("delete", "pod", "filler-2", "--wait=false")
    await world.until("late", runs, seconds=10)


async def test_every_container_of_a_pod_gets_its_own_share(world: World) -> None:
    def container(name: str, mib: int, **more: str) -> dict[str, object]:
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        return {"name": name, "image": "busybox", "resources": {"limits": limits}, **more}

    manifest = a_pod("several", pool="cdi")
    manifest["spec"]["initContainers"] = [container("prepare", 2000), container("proxy", 1000, restartPolicy="Always")]
    manifest["spec"]["containers"] = [container("main", 4000), {"name": "plain", "image": "busybox"}, container("second", 5000)]
    await world.apply(manifest)
    pod = await world.until("several", lambda each: runs(each) and all_started(each))
    for name, limit in (("prepare", "2000m"), ("proxy", "1000m"), ("main", "4000m"), ("second", "5000m")):
        assert world.given(pod, name)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == limit
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in world.given(pod, "plain")["env"]


async def test_pods_bound_almost_together_never_swap_their_limits(world: World) -> None:
    sizes = {f"twin-{number}": 600 + 100 * number for number in range(8)}
    await world.apply(*(a_pod(name, mib=mib, pool="cdi" if number % 2 else "locked") for number, (name, mib) in enumerate(sizes.items())))
    for pod in await world.running(*sizes):
        assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{sizes[pod.metadata.name]}m"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (a_pod("bad", mib=-5), r"nvidia.com/gpumem"),
        (a_pod("forged", annotations={"hami.io/vgpu-node": "cdi"}), r"hami.io/vgpu-node"),
    ],
)
async def test_what_cannot_be_served_is_refused_at_the_door(world: World, manifest: dict[str, object], message: str) -> None:
    with pytest.raises(KubectlFailed, match=message):
        await world.apply(manifest)


async def test_a_restarted_kubelet_has_its_devices_back_and_running_pods_keep_theirs(world: World) -> None:
    await world.apply(a_pod("before", mib=2000, pool="cdi"))
    (before,) = await world.running("before")

    kubelets = world.rig.processes["kubelets"]
    restarts = kubelets.log.read_text().count(RESTARTED)
    kubelets.send(signal.SIGHUP)
    await eventually(lambda: kubelets.log.read_text().count(RESTARTED) == restarts + 2, 10)
    await world.node_lists("cdi", "20")
    await world.apply(a_pod("after", mib=2500, pool="cdi"))
    (after,) = await world.running("after")
    assert world.given(after)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2500m"
    assert (await world.pod("before")).status == before.status


async def test_kubectl_shows_what_a_user_of_kubernetes_expects(world: World) -> None:
    await world.apply(a_pod("seen", mib=1500), a_pod("huge", mib=CARD_MIB + 1))
    await world.running("seen")
    await world.until("huge", waits)
    assert re.search(r"seen\s+1/1\s+Running\s+0", await world.kubectl("get", "pods"))
    described = await world.kubectl("describe", "pod", "huge")
    assert "FailedScheduling" in described
    assert "CardInsufficientMemory" in described
    assert "nvidia.com/gpu" in await world.kubectl("describe", "node", "cdi")


@pytest.mark.parametrize("pool", ["locked", "cdi"])
async def test_a_program_is_held_to_its_share_by_the_real_shim(world: World, pool: str) -> None:
    manifest = a_pod("enforced", mib=1000, pool=pool, annotations={"rig.hami.io/process": "true"})
    manifest["spec"]["containers"][0]["command"] = ["vgpu-alloc", "--mib", "2000", "--step-mib", "100", "--hold-seconds", "-1"]
    await world.apply(manifest)
    (pod,) = await world.running("enforced")
    log = world.rig.node_folder(pool).containers / pod.metadata.uid / "main.log"
    await eventually(lambda: log.exists() and "{" in log.read_text(), 10)
    said = json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))
    assert (said["total_mib"], said["result"]) == (1000, 2)
    assert 900 <= said["allocated_mib"] <= 1000

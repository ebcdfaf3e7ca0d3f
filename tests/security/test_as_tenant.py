"""A tenant who may make pods, and bind and change its own: what it can try against a rig of real processes. Each test prints how much it tried.

The rig's API server has neither RBAC nor admission policies, so this tenant may write what production's policies refuse: what holds here holds
without them. ``attacked`` sees to it that each test leaves all services running, and a next pod served.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_node_agent import region
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import pod_ref
from hami_runtime.kube.cluster import EVENTS, PODS, QUOTAS, ClusterError
from tests.e2e.conftest import CARD_MIB, a_pod, eventually, held, runs
from tests.security.conftest import Attacked

pytestmark = [pytest.mark.nats, pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

Body = dict[str, Any]
CATALOG = Catalog()
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
ODD_QUANTITIES = (
    *(
        "-1",
        "-0.5",
        "0.5",
        "1.5",
        "1e400",
        "1e-400",
        "NaN",
        "Inf",
        "-Inf",
        "0x10",
        "1_000",
        "1,000",
        "\uff11",
        "\u0663",
        " 1",
        "1 ",
        "",
        "+",
        ".",
    ),
    *("9" * 80, "9223372036854775808", "18446744073709551616", "2147483648", "4398046511104", "1Ei", "1E", "8Qi", "1Ki", "1m", "16.5"),
    *("1e3e3", "--1", "1;2", "1:2", "\u202e1", "1\n", "1\x00"),
)
OURS = ("hami-scheduler", "default-scheduler")
VICTIM_CARD = "GPU-00000000-0000-0000-0000-000000000000"


def tried(count: int, what: str) -> None:
    print(f"as tenant: {count} times tried {what}")


def system_keys() -> tuple[str, ...]:
    """Every pod annotation that only our services write."""
    of_vendors = {key for vendor in CATALOG.vendors for key in (vendor.allocated_key, vendor.to_allocate_key) if key}
    return tuple(sorted(keys.SYSTEM_POD_KEYS | of_vendors))


def with_spec(pod: Body, **spec: Any) -> Body:
    pod["spec"] |= spec
    return pod


def with_container(pod: Body, **fields: Any) -> Body:
    pod["spec"]["containers"][0] |= fields
    return pod


async def create(world: Attacked, body: Body) -> Pod | ClusterError:
    try:
        return await world.cluster.create(PODS, body, namespace="default")
    except ClusterError as exc:
        return exc


async def settled(world: Attacked) -> list[Pod]:
    """All pods, once kube-scheduler has tried each that is its own."""
    async with asyncio.timeout(60):
        while True:
            pods = await world.pods()
            if all(pod.spec.node_name or pod.status.conditions or pod.spec.scheduler_name not in OURS for pod in pods):
                return pods
            await asyncio.sleep(0.1)


async def within_the_cards(world: Attacked) -> None:
    """No card has more booked than it has, and nothing runs with a card that it was not granted."""
    booked: dict[str, int] = {}
    for pod in await world.pods():
        if pod.status.phase in {"Failed", "Succeeded"} or not pod.spec.node_name:
            continue
        for uuid, mib in held(CATALOG.read_assignments(pod)).items():
            booked[uuid] = booked.get(uuid, 0) + mib
    assert all(mib <= CARD_MIB for mib in booked.values()), booked


def forged() -> Iterator[Body]:
    """Records that only our services write, on pods with a share and without."""
    values = (f"{VICTIM_CARD},NVIDIA,1000,10:;", "success", "cdi", "", "\x00\u202e", "[]", "x" * 100_000)
    for number, (key, value) in enumerate(itertools.product(system_keys(), values)):
        yield a_pod(f"forged-{number}", annotations={key: value})
        bare = a_pod(f"forged-bare-{number}", annotations={key: value}, labels={keys.WEBHOOK: keys.WEBHOOK_IGNORE})
        bare["spec"]["containers"][0].pop("resources")
        yield bare


async def test_no_pod_is_made_with_a_record_of_ours(attacked: Attacked) -> None:
    count = 0
    for body in forged():
        found = await create(attacked, body)
        assert isinstance(found, ClusterError), body["metadata"]
        count += 1
    tried(count, "to make a pod with an assignment")


async def test_an_odd_quantity_is_refused_or_booked_as_what_it_says(attacked: Attacked) -> None:
    count = 0
    for number, (resource, value) in enumerate(itertools.product((GPU, MEMORY, CORES), ODD_QUANTITIES)):
        limits: dict[str, Any] = {GPU: 1, MEMORY: 1000, CORES: 10} | {resource: value}
        for name, form in ((f"odd-{number}", "limits"), (f"odd-r-{number}", "requests")):
            body = with_container(a_pod(name), resources={"limits": limits, form: limits})
            await create(attacked, body)
            count += 1
    await settled(attacked)
    await within_the_cards(attacked)
    tried(count, "an odd quantity")


def loosening() -> Iterator[Body]:
    """Pods whose environment asks for another limit, or for none."""
    for number, value in enumerate(("true", "True", "1", "TRUE", "yes")):
        yield with_container(a_pod(f"off-{number}"), env=[{"name": "CUDA_DISABLE_CONTROL", "value": value}])
    for name, variable, value in (
        ("visible", "NVIDIA_VISIBLE_DEVICES", "all"),
        ("limit", "CUDA_DEVICE_MEMORY_LIMIT_0", "32768m"),
        ("limit-all", "CUDA_DEVICE_MEMORY_LIMIT", "32768m"),
        ("cores", "CUDA_DEVICE_SM_LIMIT", "100"),
        ("preload", "LD_PRELOAD", ""),
        ("cache", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "/proc/self/mem"),
        ("policy", "GPU_CORE_UTILIZATION_POLICY", "disable"),
        ("devices", "HAMI_DEVICES", VICTIM_CARD),
    ):
        yield with_container(a_pod(f"env-{name}"), env=[{"name": variable, "value": value}])


async def test_no_environment_of_its_own_loosens_a_limit(attacked: Attacked) -> None:
    bodies = list(loosening())
    await attacked.apply(*bodies)
    for pod in await attacked.running(*(body["metadata"]["name"] for body in bodies)):
        given = attacked.given(pod)
        assert "/etc/ld.so.preload" in {mount["containerPath"] for mount in given["mounts"]}, pod.metadata.name
        assert given["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m", pod.metadata.name
        assert given["env"]["NVIDIA_VISIBLE_DEVICES"] in {*held(CATALOG.read_assignments(pod)), "void"}, pod.metadata.name
    tried(len(bodies), "to loosen a limit by the environment")


def crafted() -> Iterator[Body]:
    """Pods that ask for a share in ways that must get no more than it, or nothing."""
    bare: Body = {"privileged": True}
    for name, labels in (("p", {}), ("p-ignored", {keys.WEBHOOK: keys.WEBHOOK_IGNORE})):
        yield with_container(a_pod(f"{name}-main", labels=labels), securityContext=bare)
        yield with_spec(
            a_pod(f"{name}-init", labels=labels),
            initContainers=[
                {"name": "i", "image": "busybox", "securityContext": bare, "resources": {"limits": {GPU: 1, MEMORY: 100}}},
            ],
        )
        for node in ("locked", "cdi", "none", ""):
            yield with_spec(a_pod(f"{name}-on-{node or 'empty'}", labels=labels), nodeName=node)
        for scheduler in ("volcano", "default-scheduler", "hami-scheduler", "x" * 60, "kube-batch"):
            yield with_spec(a_pod(f"{name}-by-{scheduler[:20]}", labels=labels), schedulerName=scheduler)
            on_node = with_spec(a_pod(f"{name}-by-{scheduler[:20]}-on", labels=labels), schedulerName=scheduler, nodeName="cdi")
            yield with_container(on_node, securityContext=bare)
    for path in ("/usr/local/vgpu", "/usr/local/vgpu/grant", "/etc/ld.so.preload", "/etc", "/usr/local", "/"):
        body = with_spec(a_pod(f"over{path.replace('/', '-').replace('.', '-')}x"), volumes=[{"name": "v", "emptyDir": {}}])
        yield with_container(body, volumeMounts=[{"name": "v", "mountPath": path}])
    for key, value in (
        (keys.NODE_POLICY, "everything"),
        (keys.DEVICE_POLICY, "binpack," * 1000),
        (keys.SCORING_WEIGHTS, "slot=-1,core=nan,memory=1e400"),
        (keys.GROUP_SIZE, "-5"),
        (keys.GROUP_SIZE, "9" * 60),
        (keys.VOLCANO_GROUP, "x" * 5000),
        (keys.TRACE_PARENT, "00-" + "f" * 5000),
        ("nvidia.com/use-gpuuuid", "," * 50_000),
        ("nvidia.com/nouse-gpuuuid", VICTIM_CARD + "\u202e"),
        ("nvidia.com/use-gputype", "(((((((((a+)+)+)+)+)+)+)+)+)+$" * 50),
        ("nvidia.com/vgpu-mode", "mig"),
        ("nvidia.com/numa-bind", "maybe"),
    ):
        yield a_pod(f"hint-{abs(hash((key, value)))}", annotations={key: value})
    for containers in (128, 129, 2000):
        many = [{"name": f"c{n}", "image": "busybox", "resources": {"limits": {GPU: 1, MEMORY: 1}}} for n in range(containers)]
        yield with_spec(a_pod(f"many-{containers}"), containers=many)
    for count in (0, 3, 100, 2**31 - 1):
        yield a_pod(f"cards-{count}", count=count)
    for mib in (0, 1, CARD_MIB, CARD_MIB + 1, 2**31 - 1):
        yield a_pod(f"mib-{mib}", mib=mib)


async def test_crafted_pods_get_no_more_than_their_share(attacked: Attacked) -> None:
    refused, made, ungranted = 0, 0, set[str]()
    for body in crafted():
        found = await create(attacked, body)
        name = body["metadata"]["name"]
        if "privileged" in str(body["spec"]) or body["spec"].get("nodeName"):
            # The webhook leaves pods of a scheduler like Volcano to it; nothing is granted to one that we have not adopted.
            assert isinstance(found, ClusterError) or body["spec"]["schedulerName"] not in OURS, name
            ungranted.add(name)
        refused, made = (refused + 1, made) if isinstance(found, ClusterError) else (refused, made + 1)
    await settled(attacked)
    await within_the_cards(attacked)
    for pod in await attacked.pods():
        assert not (pod.metadata.name in ungranted and runs(pod)), pod.metadata.name
    tried(refused + made, f"to get more than a share with a crafted pod; {refused} were refused")


async def test_a_pod_that_its_tenant_binds_itself_gets_no_card(attacked: Attacked) -> None:
    record = f"{VICTIM_CARD},NVIDIA,1000,10:;"
    annotations: tuple[dict[str, str], ...] = (
        {},
        {keys.ASSIGNED_NODE: "cdi", keys.BIND_PHASE: "allocating", "hami.io/vgpu-devices-allocated": record},
        {keys.ASSIGNED_NODE: "cdi", keys.BIND_PHASE: "success", "hami.io/vgpu-devices-to-allocate": record},
        {keys.BIND_PHASE: "success"},
    )
    bound = []
    for number, (node, forged_record) in enumerate(itertools.product(("locked", "cdi"), annotations)):
        body = with_spec(a_pod(f"self-bound-{number}"), nodeSelector={"pool": "nowhere"})
        pod = await create(attacked, body)
        assert isinstance(pod, Pod)
        try:
            await attacked.cluster.bind(pod_ref(pod), node, annotations=forged_record, labels={})
        except ClusterError:
            continue
        bound.append(pod.metadata.name)
    for name in bound:
        await attacked.until(name, lambda pod: pod.status.phase == "Failed" or bool(pod.status.container_statuses))
        assert not runs(await attacked.pod(name)), name
    tried(2 * len(annotations), "to bind a pod of its own")


async def test_a_quota_holds_against_many_pods_at_once(attacked: Attacked) -> None:
    quota = {"metadata": {"name": "three"}, "spec": {"hard": {f"limits.{MEMORY}": "3000"}}}
    await attacked.cluster.create(QUOTAS, quota, namespace="default")
    try:
        count = 24
        await asyncio.gather(*(create(attacked, a_pod(f"quota-{number}", mib=1000)) for number in range(count)))
        pods = await settled(attacked)
        taken = sum(sum(held(CATALOG.read_assignments(pod)).values()) for pod in pods if pod.spec.node_name)
        assert 0 < taken <= 3000
    finally:
        await attacked.cluster.delete(QUOTAS, "three", namespace="default")
    tried(count, "to get past a quota")


async def test_what_it_leaves_and_grows_on_the_host_is_bounded_and_stops_nobody(attacked: Attacked) -> None:
    await attacked.apply(a_pod("grows", pool="cdi"))
    (pod,) = await attacked.running("grows")
    vgpu = attacked.rig.node_folder("cdi").root / "hook" / "vgpu"
    name = f"{pod.metadata.uid}_main"
    regions, folder = vgpu / "regions" / name, vgpu / "containers" / name
    count = 0
    for _ in range(5):
        with regions.open("r+b") as file:
            file.truncate(2**36)
        await eventually(lambda: regions.stat().st_size == len(region.EMPTY))
        count += 1
    await asyncio.to_thread(nest, folder, 1500)
    (folder / "elsewhere").symlink_to("/etc")
    for number in range(2000):
        (folder / f"f{number}").touch()
    await attacked.kubectl("delete", "pod", "grows", "--grace-period=1", "--timeout=30s")
    await eventually(lambda: not folder.exists() and not regions.exists(), seconds=100)
    assert os.access("/etc/passwd", os.R_OK)
    events = [each for each in (await attacked.cluster.list(EVENTS, namespace="default")).items if each["reason"] == "RegionTooLarge"]
    assert [each["involvedObject"]["name"] for each in events] == ["grows"]
    tried(count + 3500, "to fill its node's disk")


def nest(folder: Path, depth: int) -> None:
    """Folders in folders, deeper than a path may be long."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)

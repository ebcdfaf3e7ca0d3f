"""What a namespace may have (HAMi#2558, HAMi#1579, HAMi#3052)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_protocol import assignment
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.kubernetes import ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus, ResourceQuotaSpec
from tests import builders as b

from .conftest import Desk, a_container, a_pod, a_quota


def desk_with(**hard: Any) -> Desk:
    desk = Desk()
    desk.quotas.quota_changed(None, a_quota(**hard))
    return desk


def place(desk: Desk, name: str, *containers: Any, inits: tuple[Any, ...] = (), **fields: Any) -> Any:
    status = fields.pop("status", PodStatus())
    pod = b.a_pod(name, *containers, inits=inits, namespace="team-a", **{"node_name": "n1", **fields})
    pod = msgspec.structs.replace(pod, status=status)
    desk.quotas.pod_changed(None, pod)
    return pod


def test_an_init_container_counts_alone(  # HAMi#2558
) -> None:
    decision = desk_with(limits_mem="1000").mutate(a_pod(a_container(), inits=(a_container("i", gpu="1", mem="2000"),)))
    assert decision.code == 403
    assert decision.message == ("exceeding resource quota: q, limits.nvidia.com/gpumem: asks 2000 MiB, 0 MiB of 1000 MiB are used")


def test_containers_are_added_up() -> None:  # HAMi#1579
    pod = a_pod(a_container("a", gpu="1", mem="1024"), a_container("b", gpu="1", mem="1024"))
    assert not desk_with(limits_mem="2000").mutate(pod).allowed
    assert desk_with(limits_mem="2048").mutate(pod).allowed


def test_amounts_are_multiplied_by_the_devices() -> None:  # HAMi#1579
    pod = a_pod(a_container(gpu="2", mem="2048", cores="20"))
    assert desk_with(limits_gpu="2", limits_cores="50", limits_mem="4096").mutate(pod).allowed
    assert not desk_with(limits_mem="4095").mutate(pod).allowed
    assert not desk_with(limits_cores="39").mutate(pod).allowed
    assert not desk_with(limits_gpu="1").mutate(pod).allowed


def test_what_is_placed_counts_with_its_real_amounts_percentages_too() -> None:  # HAMi#3052
    desk = desk_with(limits_mem="24000")
    share = DeviceShare(uuid="GPU-1", type="NVIDIA", memory_mib=16000, cores=0)
    held = VendorAssignment(vendor="NVIDIA", containers=(ContainerShares(container="main", kind=ContainerKind.APP, shares=(share,)),))
    place(desk, "p0", b.a_container(gpu="1", percent="40"), annotations={"hami.io/vgpu-devices-allocated": assignment.encode(held)})
    assert desk.quotas.used("team-a") == {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16000}
    assert not desk.mutate(a_pod(a_container(gpu="1", mem="8001"))).allowed
    assert desk.mutate(a_pod(a_container(gpu="1", mem="8000"))).allowed


@pytest.mark.example("quota 66")
@pytest.mark.parametrize(("gpu", "mem", "allowed"), [("1", "100", True), ("1", "1024", False), ("2", "1024", False), ("2", "400", True)])
def test_admission_beside_what_is_used(gpu: str, mem: str, allowed: bool) -> None:
    desk = desk_with(limits_mem="2000")
    place(desk, "p0", b.a_container(gpu="1", mem="1000"))
    assert desk.mutate(a_pod(a_container(gpu=gpu, mem=mem))).allowed is allowed


@pytest.mark.example("quota 67")
def test_init_containers_run_one_at_a_time() -> None:
    desk = desk_with(limits_mem="2000")
    place(desk, "p0", b.a_container(gpu="1", mem="1000"))
    inits = (a_container("i", gpu="1", mem="800"), a_container("j", gpu="1", mem="800"))
    assert desk.mutate(a_pod(a_container(gpu="1", mem="500"), inits=inits)).allowed


@pytest.mark.example("quota 68")
def test_the_peak_of_init_containers_counts() -> None:
    desk = desk_with(limits_mem="2000")
    place(desk, "p0", b.a_container(gpu="1", mem="1000"))
    assert not desk.mutate(a_pod(a_container(gpu="1", mem="100"), inits=(a_container("i", gpu="1", mem="1500"),))).allowed


def test_a_sidecar_runs_beside_everything_that_starts_after_it() -> None:
    side = a_container("s", gpu="1", mem="600", restartPolicy="Always")
    pod = a_pod(a_container(gpu="1", mem="100"), inits=(side, a_container("i", gpu="1", mem="500")))
    assert desk_with(limits_mem="1100").mutate(pod).allowed
    assert not desk_with(limits_mem="1099").mutate(pod).allowed


def ended(name: str, code: int = 0) -> ContainerStatus:
    return ContainerStatus(name=name, state=ContainerState(terminated=ContainerStateTerminated(exit_code=code)))


@pytest.mark.example("quota 69")
def test_what_init_containers_held_is_free_when_they_are_over() -> None:
    desk = desk_with(limits_mem="30000")
    pod = a_pod(a_container(gpu="1", mem="10000"), inits=(a_container("i", gpu="1", mem="20000"),))
    assert desk.mutate(pod).allowed
    init, main = b.a_container("i", gpu="1", mem="20000"), b.a_container(gpu="1", mem="10000")
    placed = place(desk, "p1", main, inits=(init,))
    assert not desk.mutate(pod).allowed
    over = msgspec.structs.replace(placed, status=PodStatus(init_container_statuses=(ended("i"),)))
    desk.quotas.pod_changed(placed, over)
    assert desk.mutate(pod).allowed


def test_a_crash_looping_sidecar_or_a_failed_init_container_frees_nothing() -> None:  # HAMi#2723
    desk = desk_with(limits_mem="30000")
    inits = (b.a_container("s", sidecar=True, gpu="1", mem="1000"), b.a_container("i", gpu="1", mem="20000"))
    status = PodStatus(init_container_statuses=(ended("s"), ended("i", 1)))
    place(desk, "p1", b.a_container(gpu="1", mem="1000"), inits=inits, status=status)
    assert desk.quotas.used("team-a")["nvidia.com/gpumem"] == 21000


def test_only_placed_pods_that_have_not_ended_count() -> None:
    desk = desk_with(limits_mem="1000")
    place(desk, "pending", b.a_container(gpu="1", mem="900"), node_name="")
    place(desk, "done", b.a_container(gpu="1", mem="900"), status=PodStatus(phase="Succeeded"))
    assert desk.quotas.used("team-a") == {}


def test_a_pod_that_is_gone_frees_what_it_held() -> None:
    desk = desk_with(limits_mem="1000")
    pod = place(desk, "p1", b.a_container(gpu="1", mem="900"))
    desk.quotas.pod_changed(pod, None)
    assert desk.quotas.used("team-a") == {}


def test_zero_allows_none_and_absent_allows_all() -> None:
    pod = a_pod(a_container(gpu="1", mem="1"))
    assert not desk_with(limits_mem="0").mutate(pod).allowed
    assert desk_with(limits_cores="0").mutate(pod).allowed
    assert Desk().mutate(pod).allowed


@pytest.mark.parametrize("hard", [{"limits_mem": "16Gi"}, {"requests_mem": "16384"}])
def test_both_prefixes_and_suffixes_are_read(hard: dict[str, str]) -> None:
    assert desk_with(**hard).mutate(a_pod(a_container(gpu="1", mem="16384"))).allowed
    assert not desk_with(**hard).mutate(a_pod(a_container(gpu="1", mem="16385"))).allowed


@pytest.mark.parametrize("hard", [{"limits_mem": "100G"}, {"limits_mem": "4Ei"}, {"limits_mem": 10**15}])
def test_a_quota_may_be_larger_than_any_pod(hard: dict[str, Any]) -> None:
    assert desk_with(**hard).mutate(a_pod(a_container(gpu="1", mem="2147483647"))).allowed


def test_of_several_quotas_the_strictest_decides_and_removing_one_leaves_the_others() -> None:
    desk = Desk()
    strict, loose = a_quota("strict", limits_mem="500"), a_quota("loose", limits_mem="5000")
    desk.quotas.quota_changed(None, strict)
    desk.quotas.quota_changed(None, loose)
    pod = a_pod(a_container(gpu="1", mem="1000"))
    assert "strict" in desk.mutate(pod).message
    desk.quotas.quota_changed(strict, None)
    assert desk.mutate(pod).allowed
    desk.quotas.quota_changed(loose, a_quota("loose", limits_mem="999"))
    assert not desk.mutate(pod).allowed


def test_a_quota_that_cannot_be_read_allows_nothing_of_that_resource() -> None:
    desk = desk_with(limits_mem="1.5")
    decision = desk.mutate(a_pod(a_container(gpu="1", mem="1")))
    assert "resourcequota q: spec.hard[limits.nvidia.com/gpumem]: '1.5' is not accepted" in decision.message
    assert desk.mutate(a_pod(a_container(cpu="1"))).allowed


def test_a_placed_pod_whose_record_cannot_be_read_never_counts_as_nothing() -> None:
    desk = desk_with(limits_mem="1000")
    place(desk, "odd", b.a_container(gpu="1"), annotations={"hami.io/vgpu-devices-allocated": "garbage;"})
    assert "what pod odd holds cannot be read" in desk.mutate(a_pod(a_container(gpu="1", mem="1"))).message


def test_a_quota_of_another_namespace_says_nothing() -> None:
    assert desk_with(limits_mem="0").mutate(a_pod(a_container(gpu="1", mem="1")), namespace="team-b").allowed


@pytest.mark.example("quota 71")
@pytest.mark.parametrize(("mem", "allowed"), [("500", True), ("1001", False)])
def test_a_memory_factor_scales_quota_and_request_alike(mem: str, allowed: bool) -> None:
    desk = Desk(DeviceConfig(nvidia=NvidiaConfig(memory_factor=2)))
    desk.quotas.quota_changed(None, a_quota(limits_mem="1000"))
    assert desk.mutate(a_pod(a_container(gpu="1", mem=mem))).allowed is allowed


def scoped(desk: Desk, **spec: Any) -> None:
    quota = a_quota(limits_mem="1000")
    desk.quotas.quota_changed(
        None, msgspec.structs.replace(quota, spec=msgspec.convert({"hard": quota.spec.hard, **spec}, ResourceQuotaSpec))
    )


def test_a_quota_binds_and_counts_only_the_pods_in_its_scopes() -> None:
    desk = Desk()
    scoped(desk, scopes=["Terminating"])
    asked = a_container(gpu="1", mem="900")
    place(desk, "long", b.a_container(gpu="1", mem="5000"))
    assert desk.mutate(a_pod(asked)).allowed
    assert desk.mutate(a_pod(asked, activeDeadlineSeconds=60)).allowed
    placed = place(desk, "short", b.a_container(gpu="1", mem="200"), active_deadline_seconds=60)
    assert "200 MiB of 1000 MiB are used" in desk.mutate(a_pod(asked, activeDeadlineSeconds=60)).message
    desk.quotas.pod_changed(placed, None)
    assert desk.mutate(a_pod(asked, activeDeadlineSeconds=60)).allowed


def test_a_scope_selector_of_priority_classes_is_read() -> None:
    desk = Desk()
    scoped(desk, scopeSelector={"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]})
    asked = a_container(gpu="1", mem="1001")
    assert desk.mutate(a_pod(asked)).allowed
    assert desk.mutate(a_pod(asked, priorityClassName="low")).allowed
    assert not desk.mutate(a_pod(asked, priorityClassName="high")).allowed


def test_a_pod_that_cannot_be_read_holds_up_only_quotas_that_are_about_it() -> None:
    desk = Desk()
    scoped(desk, scopes=["Terminating"])
    place(desk, "odd", b.a_container(gpu="1"), annotations={"hami.io/vgpu-devices-allocated": "garbage;"})
    assert desk.mutate(a_pod(a_container(gpu="1", mem="1"), activeDeadlineSeconds=60)).allowed


asks = st.fixed_dictionaries({"gpu": st.integers(1, 3).map(str), "mem": st.integers(1, 3000).map(str)})


@given(st.lists(asks, min_size=1, max_size=3), st.lists(asks, max_size=2), st.integers(0, 9000), st.integers(0, 3), st.booleans())
def test_a_container_that_asks_for_no_device_never_changes_the_verdict(
    apps: list[dict[str, str]], inits: list[dict[str, str]], limit: int, place: int, sidecar: bool
) -> None:
    desk = desk_with(limits_mem=str(limit))
    containers = [a_container(f"a{n}", **each) for n, each in enumerate(apps)]
    before = [a_container(f"i{n}", **each) for n, each in enumerate(inits)]
    idle = a_container("idle", cpu="1", **({"restartPolicy": "Always"} if sidecar else {}))
    verdict = desk.mutate(a_pod(*containers, inits=tuple(before))).allowed
    assert desk.mutate(a_pod(*containers, inits=(*before[:place], idle, *before[place:]))).allowed is verdict
    assert desk.mutate(a_pod(*containers, a_container("idle2"), inits=tuple(before))).allowed is verdict

"""What the webhook changes on a pod, and on whose pods it changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_protocol import keys
from hami_webhook.wire import Decision

from .conftest import Desk, a_container, a_pod, patched

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_pod_that_asks_for_a_share_gets_our_scheduler(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(gpu="1", mem="3k")))
    assert pod["spec"]["schedulerName"] == "hami-scheduler"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}


@pytest.mark.example("webhook 89")
def test_a_whole_card_gets_all_cores(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(gpu="1")))
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "100"


@pytest.mark.example("webhook 90")
@pytest.mark.parametrize("share", [{"percent": "50"}, {"mem": "8192"}])
def test_a_share_keeps_its_cores(desk: Desk, share: dict[str, str]) -> None:
    pod = desk.mutated(a_pod(a_container(gpu="1", **share)))
    assert "nvidia.com/gpucores" not in pod["spec"]["containers"][0]["resources"]["limits"]


def test_memory_alone_means_one_card(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(mem="2000")))
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpumem": "2000", "nvidia.com/gpu": "1"}


def test_only_an_init_container_asks_and_the_pod_is_ours_all_the_same(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(), inits=(a_container("setup", gpu="1", mem="2000"),)))
    assert pod["spec"]["schedulerName"] == "hami-scheduler"


def test_a_sidecar_that_asks_is_mutated_like_any_container(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(), inits=(a_container("side", gpu="1", restartPolicy="Always"),)))
    assert pod["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "100"


def test_a_pod_whose_name_is_still_to_be_generated_is_handled(desk: Desk) -> None:
    body = a_pod(a_container(gpu="1"), metadata={"generateName": "web-"})
    del body["metadata"]["name"]
    assert desk.mutated(body)["spec"]["schedulerName"] == "hami-scheduler"


def test_the_priority_reaches_the_shim_by_environment(desk: Desk) -> None:
    pod = desk.mutated(a_pod(a_container(gpu="1", mem="1000", priority="1", env=[{"name": "A", "value": "b"}])))
    assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}, {"name": "CUDA_TASK_PRIORITY", "value": "1"}]


def test_the_runtime_class_is_set_where_one_is_configured_and_none_is_asked() -> None:
    desk = Desk(DeviceConfig(nvidia=NvidiaConfig(runtime_class="nvidia")))
    assert desk.mutated(a_pod(a_container(gpu="1")))["spec"]["runtimeClassName"] == "nvidia"
    assert desk.mutated(a_pod(a_container(gpu="1"), runtimeClassName="kata"))["spec"]["runtimeClassName"] == "kata"


def test_several_variables_go_into_a_container_that_had_none() -> None:
    desk = Desk(DeviceConfig(nvidia=NvidiaConfig(core_policy="force")))
    pod = desk.mutated(a_pod(a_container(gpu="1", mem="1000", priority="0")))
    assert [variable["name"] for variable in pod["spec"]["containers"][0]["env"]] == ["CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"]


def test_an_idle_containers_image_opens_no_card_where_that_is_configured() -> None:
    desk = Desk(DeviceConfig(nvidia=NvidiaConfig(overwrite_env=True)))
    pod = desk.mutated(a_pod(a_container()))
    assert pod["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert "schedulerName" not in pod["spec"]


@pytest.mark.parametrize(
    "metadata", [{}, {"annotations": None}, {"annotations": {"a": "b"}}, {"annotations": {keys.TRACE_PARENT: "x" * 999}}]
)
def test_a_trace_begins_at_admission(desk: Desk, metadata: dict[str, Any]) -> None:
    pod = desk.mutated(a_pod(a_container(gpu="1"), metadata=metadata), traceparent=TRACE)
    assert pod["metadata"]["annotations"][keys.TRACE_PARENT] == TRACE


def test_a_trace_that_a_pod_brings_along_is_kept(desk: Desk) -> None:
    own = TRACE.replace("b7", "c8")
    pod = desk.mutated(a_pod(a_container(gpu="1"), metadata={"annotations": {keys.TRACE_PARENT: own}}), traceparent=TRACE)
    assert pod["metadata"]["annotations"][keys.TRACE_PARENT] == own


def test_fields_that_we_do_not_know_are_in_no_operation(desk: Desk) -> None:
    pod = a_pod(a_container(gpu="1", mem="1000"), futureField={"x": [1, 2]})
    decision = desk.mutate(pod)
    assert [operation.path for operation in decision.patch] == ["/spec/schedulerName"]
    assert patched(pod, decision)["spec"]["futureField"] == {"x": [1, 2]}


class TestLeftAlone:
    def unchanged(self, decision: Decision) -> None:
        assert decision.allowed
        assert decision.patch == ()

    def test_a_pod_that_asks_for_nothing_of_ours(self, desk: Desk) -> None:
        self.unchanged(desk.mutate(a_pod(a_container(cpu="1", **{"gpu.intel.com/i915": "1"})), traceparent=TRACE))

    def test_a_pod_that_asks_for_zero_devices(self, desk: Desk) -> None:
        self.unchanged(desk.mutate(a_pod(a_container(gpu="0", mem="1000")), traceparent=TRACE))

    def test_kube_system(self, desk: Desk) -> None:
        self.unchanged(desk.mutate(a_pod(a_container(gpu="1")), namespace="kube-system"))

    @pytest.mark.example("webhook 86")
    def test_a_pod_of_another_scheduler(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(a_container(gpu="1"), schedulerName="different-scheduler"))
        self.unchanged(decision)
        assert decision.message == "pod already has different scheduler assigned"

    def test_a_pod_of_the_default_scheduler_where_it_is_not_to_be_taken_over(self) -> None:
        self.unchanged(Desk(overwrite_default_scheduler=False).mutate(a_pod(a_container(gpu="1"), schedulerName="default-scheduler")))

    @pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
    def test_anything_but_a_creation(self, desk: Desk, operation: str) -> None:
        self.unchanged(desk.mutate(a_pod(a_container(gpu="1")), operation=operation))

    def test_a_subresource(self, desk: Desk) -> None:
        self.unchanged(desk.mutate(a_pod(a_container(gpu="1")), sub_resource="eviction"))


def test_a_pod_of_the_default_scheduler_is_taken_over(desk: Desk) -> None:
    assert desk.mutated(a_pod(a_container(gpu="1"), schedulerName="default-scheduler"))["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.example("webhook 87")
def test_a_pod_that_names_no_scheduler_is_taken_over_in_any_case() -> None:
    pod = Desk(overwrite_default_scheduler=False).mutated(a_pod(a_container(gpu="1")))
    assert pod["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.parametrize(
    "empty",
    [
        {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": None}, "env": None},
        {"resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/priority": 1}}, "env": []},
        {"resources": {"limits": None, "requests": {"nvidia.com/gpu": "1"}}},
        {"resources": {"requests": {"nvidia.com/gpu": "1"}}},
    ],
)
def test_fields_that_are_missing_empty_or_null_can_be_patched(desk: Desk, empty: dict[str, Any]) -> None:
    pod = desk.mutated(a_pod(a_container(**empty)), traceparent=TRACE)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "100"


amounts = st.one_of(st.integers(0, 3).map(str), st.sampled_from(["100", "50", "3k", "16Gi"]))
containers = st.builds(
    lambda limits, env, policy: a_container(**limits, **({"env": env} if env is not None else {}), **policy),
    st.dictionaries(st.sampled_from(["gpu", "mem", "percent", "cores", "priority", "cpu"]), amounts),
    st.none() | st.lists(st.builds(lambda name: {"name": name, "value": "1"}, st.sampled_from(["A", "CUDA_TASK_PRIORITY"])), max_size=2),
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)


@given(st.lists(containers, min_size=1, max_size=3), st.lists(containers, max_size=2), st.booleans())
def test_reviewing_the_result_again_changes_nothing_more(apps: list[Any], inits: list[Any], busy: bool) -> None:
    config = NvidiaConfig(overwrite_env=busy, core_policy="force" if busy else "default", runtime_class="nvidia" if busy else "")
    desk = Desk(DeviceConfig(nvidia=config))
    pod = a_pod(*apps, inits=tuple(inits))
    first = desk.mutate(pod, traceparent=TRACE)
    if first.allowed:
        result = patched(pod, first)
        assert desk.mutate(result, traceparent=TRACE.replace("b7", "c8")).patch == ()
        assert desk.validate(result).allowed
        assert msgspec.json.encode(pod) != msgspec.json.encode(result) or first.patch == ()
    else:
        assert not desk.validate(pod).allowed

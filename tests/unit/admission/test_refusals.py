"""What is refused, with which words (HAMi#2336, HAMi#2788, HAMi#2862)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_protocol import keys
from hami_protocol.quantities import exact
from hami_webhook.review import PrivilegedPolicy

from .conftest import NAMES, Desk, a_container, a_pod, a_request

LIMITS = "spec.containers[0].resources.limits"


def test_memory_with_a_binary_suffix_is_understood(desk: Desk) -> None:
    assert desk.mutate(a_pod(a_container(gpu="1", mem="16Gi"))).allowed


@pytest.mark.departs("the reference lets a quantity through that it cannot read, and books nothing for it")
@pytest.mark.parametrize(
    "value", ["16.5", "-1", "2147483648", "4398046511104", "NaN", "Inf", "1e400", "0x1", "", " 5", "0.5.1", "8Qi", "1Ki"]
)
def test_memory_that_cannot_be_read_is_refused_with_the_fields_path(desk: Desk, value: str) -> None:
    decision = desk.mutate(a_pod(a_container(gpu="1", mem=value)))
    assert (decision.allowed, decision.code) == (False, 422)
    assert decision.message.startswith(f"{LIMITS}[nvidia.com/gpumem]: {value!r} is not accepted; accepted: a ")


@pytest.mark.parametrize("value", ["99.1", "50m", "50.5", "-1", "101", "150", "NaN"])
def test_a_percentage_that_is_fractional_or_out_of_range_is_refused(desk: Desk, value: str) -> None:
    decision = desk.mutate(a_pod(a_container(gpu="1", percent=value)))
    assert decision.message.startswith(f"{LIMITS}[nvidia.com/gpumem-percentage]: {value!r} is not accepted; accepted: a ")


@pytest.mark.example("webhook 88")
@pytest.mark.parametrize("value", ["0", "1", "100"])
def test_percentages_from_0_to_100_are_accepted(desk: Desk, value: str) -> None:
    assert desk.mutate(a_pod(a_container(gpu="1", percent=value))).allowed


def test_the_path_names_the_init_container(desk: Desk) -> None:
    decision = desk.mutate(a_pod(a_container(), inits=(a_container("a"), a_container("b", gpu="1.5"))))
    assert decision.message.startswith("spec.initContainers[1].resources.limits[nvidia.com/gpu]: '1.5'")


@given(
    st.sampled_from(["gpu", "mem", "percent", "cores", "priority"]),
    st.one_of(
        st.text(max_size=20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(),
        st.sampled_from(["NaN", "1e400", "0x1", "+", "e", "9" * 80]),
    ),
)
def test_whatever_a_quantity_is_the_answer_is_clean_and_an_unreadable_one_never_asks_for_nothing(name: str, value: Any) -> None:
    desk = Desk()
    other = {"gpu": "1"} if name != "gpu" else {}
    decision = desk.mutate(a_pod(a_container(**other, **{name: value})))
    if decision.allowed:
        assert 0 <= exact(value) <= 2**31 - 1
    else:
        assert len(decision.message) < 1000


@pytest.mark.example("webhook 84")
def test_a_pod_without_containers(desk: Desk) -> None:
    decision = desk.mutate(a_pod())
    assert (decision.code, decision.message) == (403, "pod has no containers")


@pytest.mark.example("webhook 85")
def test_a_pod_that_has_a_node_already(desk: Desk) -> None:
    decision = desk.mutate(a_pod(a_container(gpu="1"), nodeName="n1"))
    assert (decision.code, decision.message) == (403, "pod has node assigned")


class TestPrivileged:
    BARE: ClassVar = {"privileged": True}

    def test_a_privileged_container_that_asks_for_a_share(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(a_container("main", gpu="1", securityContext=self.BARE)))
        assert decision.message == "container main is privileged"

    @pytest.mark.departs("the reference refuses the pod for any privileged container; our default looks at those that ask for a share")
    def test_one_that_asks_for_none_is_the_policys_to_judge(self, desk: Desk) -> None:
        pod = a_pod(a_container("main", gpu="1"), a_container("helper", securityContext=self.BARE))
        assert desk.mutate(pod).allowed
        assert Desk(privileged=PrivilegedPolicy.POD).mutate(pod).message == "container helper is privileged"

    def test_the_policy_may_allow_it(self) -> None:
        assert Desk(privileged=PrivilegedPolicy.ALLOW).mutate(a_pod(a_container(gpu="1", securityContext=self.BARE))).allowed

    def test_a_privileged_pod_that_asks_for_nothing_of_ours_is_none_of_our_business(self) -> None:
        assert Desk(privileged=PrivilegedPolicy.POD).mutate(a_pod(a_container(securityContext=self.BARE))).allowed


class TestRequestsInAnnotations:
    METADATA: ClassVar = {"annotations": {"nvidia.com/gpumem": "2000"}}

    def test_refused_where_the_right_field_does_not_say_it(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(a_container(gpu="1"), metadata=self.METADATA))
        assert not decision.allowed
        assert decision.message == (
            "metadata.annotations[nvidia.com/gpumem] has no effect; "
            "ask in spec.containers[*].resources.limits[nvidia.com/gpumem] of the container that needs it"
        )

    def test_a_warning_where_a_limit_says_it_too(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(a_container(gpu="1", mem="3000"), metadata=self.METADATA))
        assert decision.allowed
        assert decision.warnings[0].startswith("metadata.annotations[nvidia.com/gpumem] has no effect")

    def test_a_warning_on_a_pod_that_asks_for_nothing_of_ours(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(a_container(), metadata=self.METADATA))
        assert decision.allowed
        assert decision.patch == ()
        assert len(decision.warnings) == 1


class TestMisspelledNames:
    """A name that no component reads is admitted, for Kubernetes admits it, and warned of."""

    def test_a_resource_that_no_node_can_offer(self, desk: Desk) -> None:
        for limits in ({"gpu": "1", "nvidia.com/gpumemory": "3000"}, {"nvidia.com/gpumemory": "3000"}):
            decision = desk.mutate(a_pod(a_container(**limits)))
            assert decision.allowed
            (warning,) = decision.warnings
            assert warning.startswith("spec.containers[0].resources.limits[nvidia.com/gpumemory]: ")
            assert warning.endswith("did you mean nvidia.com/gpumem?")

    def test_a_policy(self, desk: Desk) -> None:
        annotations = {"hami.io/gpu-scheduler-policy": "binpak", "hami.io/node-scheduler-policy": "spraed"}
        decision = desk.mutate(a_pod(a_container(gpu="1"), metadata={"annotations": annotations}))
        assert decision.allowed
        assert [warning.rpartition("; ")[2] for warning in decision.warnings] == ["did you mean spread?", "did you mean binpack?"]

    def test_no_warning_is_cut_and_their_number_is_bounded(self, desk: Desk) -> None:
        decision = desk.mutate(a_pod(*(a_container(f"c{number}", **{f"nvidia.com/gpumemory{number}": "1"}) for number in range(100))))
        assert len(decision.warnings) == 8
        assert all(len(warning) <= 250 for warning in decision.warnings)


OURS = "system:serviceaccount:hami-system:hami-scheduler"
FORGED = [
    keys.ASSIGNED_NODE,
    keys.ASSIGNED_TIME,
    keys.BIND_PHASE,
    keys.BIND_TIME,
    keys.MIG_ALLOCATIONS,
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-devices-to-allocate",
]


class TestForgedAssignments:
    @pytest.mark.parametrize("key", FORGED)
    @pytest.mark.parametrize("asks", [{"gpu": "1"}, {}])
    def test_nobody_creates_a_pod_that_has_one_already(self, desk: Desk, key: str, asks: dict[str, str]) -> None:
        pod = a_pod(a_container(**asks), metadata={"annotations": {key: "n1"}})
        for decision in (desk.mutate(pod), desk.validate(pod)):
            assert (decision.allowed, decision.code) == (False, 403)
            assert f"metadata.annotations[{key}]" in decision.message

    def test_the_opt_out_label_opens_no_way_around(self, desk: Desk) -> None:
        pod = a_pod(a_container(), metadata={"labels": {keys.WEBHOOK: "ignore"}, "annotations": {keys.ASSIGNED_NODE: "n1"}})
        assert not desk.mutate(pod).allowed

    def test_nor_is_the_label_forged(self, desk: Desk) -> None:
        assert not desk.mutate(a_pod(a_container(), metadata={"labels": {keys.ASSIGNED_NODE: "n1"}})).allowed

    def test_users_own_annotations_are_theirs(self, desk: Desk) -> None:
        own = {keys.NODE_POLICY: "spread", keys.DEVICE_POLICY: "binpack", "nvidia.com/use-gputype": "A10", "app": "x"}
        assert desk.mutate(a_pod(a_container(gpu="1"), metadata={"annotations": own})).allowed

    @pytest.mark.parametrize("key", FORGED)
    @pytest.mark.parametrize(("before", "after"), [(None, "b"), ("a", "b"), ("a", None)])
    def test_nobody_sets_changes_or_removes_one_later(self, desk: Desk, key: str, before: str | None, after: str | None) -> None:
        def version(value: str | None) -> dict[str, Any]:
            return a_pod(a_container(gpu="1"), metadata={"annotations": {key: value} if value else {}}, nodeName="n1")

        assert not desk.validate(version(after), old=version(before), operation="UPDATE").allowed

    def test_everything_else_may_be_updated(self, desk: Desk) -> None:
        bound = {"annotations": {keys.ASSIGNED_NODE: "n1"}}
        changed = {"annotations": {keys.ASSIGNED_NODE: "n1", "note": "x"}, "labels": {"a": "b"}}
        old, new = (a_pod(a_container(gpu="1"), metadata=each, nodeName="n1") for each in (bound, changed))
        assert desk.validate(new, old=old, operation="UPDATE").allowed

    def test_our_own_services_write_them(self) -> None:
        desk = Desk(trusted_users={OURS})
        pod = a_pod(a_container(), metadata={"annotations": dict.fromkeys(FORGED, "x")})
        assert desk.validate(pod, old=a_pod(a_container()), operation="UPDATE", user=OURS).allowed

    def test_a_vendors_plugin_writes_its_own_keys_and_no_others(self) -> None:
        plugin, own = "system:serviceaccount:kube-system:plugin", "hami.io/vgpu-devices-to-allocate"
        desk = Desk(vendor_writers={plugin: frozenset({own})})
        old = a_pod(a_container())
        assert desk.validate(a_pod(a_container(), metadata={"annotations": {own: ";"}}), old=old, operation="UPDATE", user=plugin).allowed
        other = a_pod(a_container(), metadata={"annotations": {keys.ASSIGNED_NODE: "n1"}})
        assert not desk.validate(other, old=old, operation="UPDATE", user=plugin).allowed

    def test_only_the_scheduler_puts_one_into_a_binding(self) -> None:
        desk = Desk(trusted_users={OURS})
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p1", "annotations": {keys.ASSIGNED_NODE: "n1"}}}
        plain = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p1"}, "target": {"kind": "Node", "name": "n1"}}
        assert not desk.validate(binding, sub_resource="binding").allowed
        assert desk.validate(binding, sub_resource="binding", user=OURS).allowed
        assert desk.validate(plain, sub_resource="binding").allowed


@pytest.mark.parametrize("body", [None, [], 3, "pod", {"metadata": 3}, {"metadata": {}, "spec": {"containers": [{}]}}, {"spec": {}}])
def test_an_object_that_is_no_pod_is_answered_with_what_is_wrong(desk: Desk, body: Any) -> None:
    for decision in (desk.mutate(body), desk.validate(body)):
        assert (decision.allowed, decision.code) == (False, 400)
        assert decision.message.startswith("request.object")


def test_a_review_without_an_object_says_so(desk: Desk) -> None:
    request = a_request({}, object=msgspec.Raw())
    assert desk.reviewer.mutate(request).message == "request.object: missing; accepted: the object under review"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
pods = st.fixed_dictionaries(
    {},
    optional={
        "metadata": json_values
        | st.fixed_dictionaries({}, optional={"annotations": json_values, "labels": json_values, "name": json_values}),
        "spec": json_values
        | st.fixed_dictionaries(
            {},
            optional={
                "containers": json_values
                | st.lists(
                    st.fixed_dictionaries(
                        {"name": st.text(max_size=5)},
                        optional={
                            "resources": json_values
                            | st.fixed_dictionaries({"limits": st.dictionaries(st.sampled_from(list(NAMES.values())), json_values)}),
                            "env": json_values,
                        },
                    ),
                    max_size=2,
                ),
                "initContainers": json_values,
                "nodeName": json_values,
            },
        ),
    },
)


@given(pods, st.sampled_from(["CREATE", "UPDATE"]), st.sampled_from(["", "binding", "status"]))
def test_any_object_gets_a_decision(body: Any, operation: str, sub_resource: str) -> None:
    desk = Desk()
    for judge in (desk.reviewer.mutate, desk.reviewer.validate):
        decision = judge(a_request(body, old=body, operation=operation, sub_resource=sub_resource))
        assert decision.allowed or decision.message


@pytest.mark.parametrize(
    ("limits", "refused"), [({"mem": "511"}, True), ({"mem": "1"}, True), ({"mem": "512"}, False), ({"percent": "1"}, False), ({}, False)]
)
@pytest.mark.parametrize("where", ["app", "init"])
def test_a_share_below_the_installations_smallest_is_refused_with_its_field(
    make_desk: Callable[..., Desk], limits: dict[str, str], refused: bool, where: str
) -> None:
    asking = a_container("small", gpu="1", **limits)
    pod = a_pod(asking) if where == "app" else a_pod(a_container(), inits=(asking,))
    decision = make_desk(least_memory_mib=512).mutate(pod)
    assert decision.allowed is not refused
    if refused:
        place = "spec.containers[0]" if where == "app" else "spec.initContainers[0]"
        assert (
            decision.message
            == f"{place}.resources.limits[nvidia.com/gpumem]: {limits['mem']} MiB is not accepted; accepted: 512 MiB or more"
        )
    assert make_desk().mutate(pod).allowed

"""Which pods a quota with scopes is about: every scope and operator that Kubernetes has, against a specification of our own."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.quota import QuotaLimits
from hami_devices.quota_scopes import PodTraits, Scope, in_scope, scopes_of, traits_of
from hami_protocol.kubernetes import ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec


def a_pod(**spec: Any) -> Pod:
    given = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}], **spec}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": given}, Pod)


def a_quota(**spec: Any) -> ResourceQuota:
    return ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=msgspec.convert(spec, ResourceQuotaSpec))


def asking(requests: dict[str, str] | None = None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, PodTraits(), id="nothing"),
        pytest.param({"activeDeadlineSeconds": 0}, PodTraits(terminating=True), id="a deadline of 0"),
        pytest.param({"priorityClassName": "high"}, PodTraits(priority_class="high"), id="class"),
        pytest.param({"containers": [asking({"cpu": "1m"})]}, PodTraits(best_effort=False), id="cpu"),
        pytest.param({"containers": [asking(None, {"memory": "1"})]}, PodTraits(best_effort=False), id="memory limit"),
        pytest.param({"containers": [asking({"cpu": "0"}, {"memory": "0"})]}, PodTraits(), id="zeros"),
        pytest.param({"containers": [asking({"ephemeral-storage": "1Gi"})]}, PodTraits(), id="storage is no compute"),
        pytest.param({"initContainers": [asking({"cpu": "1"})]}, PodTraits(best_effort=False), id="of an init container"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, PodTraits(best_effort=False), id="of the pod as a whole"),
        *(
            pytest.param(
                {"affinity": {side: {when: [term]}}}, PodTraits(cross_namespace=crosses), id=f"{side} {when[:9]} {crosses} {place}"
            )
            for side in ("podAffinity", "podAntiAffinity")
            for when in ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution")
            for place, (named, crosses) in enumerate(
                [({}, False), ({"namespaces": []}, False), ({"namespaces": ["a"]}, True), ({"namespaceSelector": {}}, True)]
            )
            for term in [named if when.startswith("required") else {"weight": 1, "podAffinityTerm": named}]
        ),
    ],
)
def test_traits_are_read_from_the_pod(spec: dict[str, Any], expected: PodTraits) -> None:
    assert traits_of(a_pod(**spec)) == expected


PODS = [
    PodTraits(terminating=terminating, best_effort=best_effort, priority_class=name, cross_namespace=crossing)
    for terminating, best_effort, name, crossing in itertools.product([False, True], [False, True], ["", "high", "low"], [False, True])
]
CLASSES = {
    "In": lambda name, values: name != "" and name in values,
    "NotIn": lambda name, values: name == "" or name not in values,
    "Exists": lambda name, values: name != "",
    "DoesNotExist": lambda name, values: name == "",
}


@pytest.mark.parametrize("operator", CLASSES)
@pytest.mark.parametrize("values", [("high",), ("low", "high"), ()])
def test_a_selector_of_priority_classes_matches_as_a_label_selector_does(operator: str, values: tuple[str, ...]) -> None:
    for pod in PODS:
        assert in_scope([Scope("PriorityClass", operator, values)], pod) is CLASSES[operator](pod.priority_class, values)


@pytest.mark.parametrize(
    ("yes", "no", "trait"), [("Terminating", "NotTerminating", "terminating"), ("BestEffort", "NotBestEffort", "best_effort")]
)
def test_of_two_opposite_scopes_one_matches(yes: str, no: str, trait: str) -> None:
    for pod in PODS:
        assert (in_scope([Scope(yes)], pod), in_scope([Scope(no)], pod)) == (getattr(pod, trait), not getattr(pod, trait))


@pytest.mark.parametrize("name", ["VolumeAttributesClass", "SomethingNew", ""])
def test_a_scope_that_pods_do_not_have_is_one_of_no_pod(name: str) -> None:
    assert not any(in_scope([Scope(name)], pod) for pod in PODS)


scope_lists = st.lists(
    st.sampled_from(["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity"]),
    max_size=2,
)
expressions = st.lists(st.tuples(st.sampled_from([*CLASSES]), st.lists(st.sampled_from(["high", "low"]), max_size=2)), max_size=2)
held = st.lists(st.tuples(st.sampled_from(PODS), st.integers(0, 3000)), max_size=5)


def specified(scopes: list[str], selector: list[tuple[str, list[str]]], pod: PodTraits) -> bool:
    """Kubernetes' rule, written out once more: every scope and every expression must match."""
    simple = {
        "Terminating": pod.terminating,
        "NotTerminating": not pod.terminating,
        "BestEffort": pod.best_effort,
        "NotBestEffort": not pod.best_effort,
        "PriorityClass": pod.priority_class != "",
        "CrossNamespacePodAffinity": pod.cross_namespace,
    }
    return all(simple[name] for name in scopes) and all(CLASSES[operator](pod.priority_class, values) for operator, values in selector)


@given(scope_lists, expressions, held, st.sampled_from(PODS), st.integers(1, 3000), st.integers(0, 6000))
def test_a_quota_binds_and_counts_exactly_the_pods_in_its_scopes(
    scopes: list[str], selector: list[tuple[str, list[str]]], others: list[tuple[PodTraits, int]], pod: PodTraits, asked: int, limit: int
) -> None:
    terms = [{"scopeName": "PriorityClass", "operator": operator, "values": values} for operator, values in selector]
    quota = a_quota(
        hard={"limits.nvidia.com/gpumem": str(limit)}, scopes=scopes, scopeSelector={"matchExpressions": terms} if terms else None
    )
    assert len(scopes_of(quota.spec)) == len(scopes) + len(selector)
    book = QuotaLimits(Catalog().vendors)
    book.changed(None, quota)
    usage: dict[PodTraits, dict[str, tuple[int, int, int]]] = {}
    for traits, mib in others:
        shares, before, cores = usage.get(traits, {}).get("NVIDIA", (0, 0, 0))
        usage[traits] = {"NVIDIA": (shares + 1, before + mib, cores)}
    allowance = book.allowance("default", usage, pod)
    refused = allowance is not None and allowance.exceeded({"NVIDIA": (1, asked, 0)}) is not None
    used = sum(mib for traits, mib in others if specified(scopes, selector, traits))
    assert refused is (specified(scopes, selector, pod) and used + asked > limit)

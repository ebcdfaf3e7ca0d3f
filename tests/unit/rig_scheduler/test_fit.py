"""Which nodes kube-scheduler's own filters leave, and in which words the others go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_protocol import kubernetes as k
from hami_rig.scheduler import fit
from hami_rig.scheduler.objects import SchedulingPod


def a_pod(**spec: Any) -> SchedulingPod:
    spec.setdefault("containers", [{"name": "main", "resources": {"requests": {"cpu": "1"}}}])
    return msgspec.convert({"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": spec}, SchedulingPod)


def a_node(spec: dict[str, Any] | None = None, labels: dict[str, str] | None = None, **allocatable: str) -> k.Node:
    resources = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
    body = {"metadata": {"name": "n1", "labels": labels or {}}, "spec": spec or {}, "status": {"allocatable": resources}}
    return msgspec.convert(body, k.Node)


def misfit(pod: SchedulingPod, node: k.Node, load: fit.NodeLoad | None = None, ignored: frozenset[str] = frozenset()) -> fit.Misfit | None:
    return fit.misfit(pod, fit.pod_requests(pod), node, load or fit.NodeLoad(), ignored=ignored)


TAINT = {"taints": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("pod", "node", "reason"),
    [
        (a_pod(), a_node(), None),
        (a_pod(), a_node({"unschedulable": True}), "node(s) were unschedulable"),
        (a_pod(tolerations=[{"operator": "Exists"}]), a_node({"unschedulable": True}), None),
        (a_pod(), a_node(TAINT), "node(s) had untolerated taint(s)"),
        (a_pod(), a_node({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}), None),
        (a_pod(tolerations=[{"key": "dedicated", "value": "ml"}]), a_node(TAINT), None),
        (a_pod(tolerations=[{"key": "dedicated", "value": "web"}]), a_node(TAINT), "node(s) had untolerated taint(s)"),
        (
            a_pod(tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}]),
            a_node(TAINT),
            "node(s) had untolerated taint(s)",
        ),
        (a_pod(nodeSelector={"gpu": "on"}), a_node(labels={"gpu": "on"}), None),
        (a_pod(nodeSelector={"gpu": "on"}), a_node(), "node(s) didn't match Pod's node affinity/selector"),
    ],
)
def test_a_node_is_left_out_in_kube_schedulers_words(pod: SchedulingPod, node: k.Node, reason: str | None) -> None:
    found = misfit(pod, node)
    assert (found.reasons[0] if found else None) == reason


@pytest.mark.parametrize(
    ("operator", "values", "label", "holds"),
    [
        ("In", ["a", "b"], "a", True),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], None, True),
        ("Exists", None, "x", True),
        ("DoesNotExist", None, "x", False),
        ("Gt", ["7"], "8", True),
        ("Lt", ["7"], "8", False),
        ("Gt", ["7"], "eight", False),
        ("Like", ["a"], "a", False),
    ],
)
def test_required_affinity_is_matched_by_expression(operator: str, values: list[str] | None, label: str | None, holds: bool) -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    assert (misfit(a_pod(affinity=affinity), a_node(labels={"zone": label} if label else {})) is None) is holds


def test_what_is_short_is_named_and_what_no_eviction_frees_is_unresolvable() -> None:
    pod = a_pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}])
    load = fit.load_of([a_pod(containers=[{"name": "o", "resources": {"requests": {"cpu": "2"}}}])])
    assert misfit(pod, a_node(), load) == fit.Misfit(reasons=("Insufficient cpu",), unresolvable=False)
    assert misfit(pod, a_node(cpu="2"), load) == fit.Misfit(reasons=("Insufficient cpu",), unresolvable=True)
    assert misfit(pod, a_node(pods="1"), load) == fit.Misfit(reasons=("Insufficient cpu", "Too many pods"), unresolvable=False)


def test_a_resource_that_the_extender_manages_is_not_counted() -> None:
    pod = a_pod(containers=[{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}])
    assert misfit(pod, a_node()) == fit.Misfit(reasons=("Insufficient nvidia.com/gpu",), unresolvable=True)
    assert misfit(pod, a_node(), ignored=frozenset({"nvidia.com/gpu"})) is None


def test_init_containers_count_by_their_peak_and_sidecars_for_ever() -> None:
    cpu = {side: {"requests": {"cpu": side}} for side in ("1", "2", "5")}
    pod = a_pod(
        initContainers=[{"name": "sidecar", "restartPolicy": "Always", "resources": cpu["1"]}, {"name": "init", "resources": cpu["5"]}],
        containers=[{"name": "app", "resources": cpu["2"]}],
    )
    assert fit.pod_requests(pod)["cpu"] == 6
    assert (
        fit.pod_requests(a_pod(initContainers=[{"name": "i", "resources": cpu["1"]}], containers=[{"name": "a", "resources": cpu["2"]}]))[
            "cpu"
        ]
        == 2
    )


def test_a_sample_of_nodes_is_enough_only_in_a_large_cluster() -> None:
    assert [fit.feasible_to_find(count, 0) for count in (3, 99, 300, 10_000)] == [3, 99, 144, 500]
    assert fit.feasible_to_find(300, 100) == 300

from typing import Any

import pytest

from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_resources import POD_DISRUPTION_BUDGETS, PODS


def a_pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"app": "x"}, "annotations": {"mine": "1", "theirs": "forged"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def a_binding(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **metadata}, "target": {"kind": "Node", "name": "n1"}}


def test_a_binding_brings_node_condition_annotations_and_labels_in_one_write(store: ObjectStore) -> None:
    before = store.create(PODS, a_pod(), "default")
    body = store.bind("p", a_binding(annotations={"theirs": "true"}, labels={"node": "n1"}), "default").body
    assert store.revision == before.revision + 1
    assert body["spec"]["nodeName"] == "n1"
    assert body["metadata"]["annotations"] == {"mine": "1", "theirs": "true"}
    assert body["metadata"]["labels"] == {"app": "x", "node": "n1"}
    assert body["metadata"]["generation"] == 1
    condition = body["status"]["conditions"][0]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


def test_a_second_binding_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    store.create(PODS, a_pod(), "default")
    bound = store.bind("p", a_binding(), "default")
    with pytest.raises(ApiError) as refused:
        store.bind("p", a_binding(annotations={"theirs": "other"}), "default")
    assert refused.value.code == 409
    assert refused.value.message == 'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
    assert refused.value.details == {"name": "p", "kind": "pods/binding"}
    assert store.get(PODS, "p", "default") is bound


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_binding_for_another_pod_or_version_is_refused(store: ObjectStore, precondition: dict[str, str]) -> None:
    store.create(PODS, a_pod(), "default")
    with pytest.raises(ApiError, match="Precondition failed"):
        store.bind("p", a_binding(**precondition), "default")
    assert "nodeName" not in store.get(PODS, "p", "default").body["spec"]


def test_a_gated_pod_cannot_be_bound(store: ObjectStore) -> None:
    store.create(PODS, a_pod(schedulingGates=[{"name": "g"}]), "default")
    with pytest.raises(ApiError, match=r"non-empty \.spec\.schedulingGates"):
        store.bind("p", a_binding(), "default")


def a_running_pod(store: ObjectStore, name: str) -> None:
    store.create(PODS, a_pod(name), "default")
    store.bind(name, {"target": {"name": "n1"}}, "default")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    store.merge_patch(PODS, name, {"status": status}, "default", subresource="status")


def a_budget(store: ObjectStore, **status: int) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    store.create(POD_DISRUPTION_BUDGETS, budget, "default")
    store.merge_patch(POD_DISRUPTION_BUDGETS, "b", {"status": status}, "default", subresource="status")


def test_a_budget_lets_as_many_evictions_through_as_it_allows(store: ObjectStore) -> None:
    for name in ("p1", "p2"):
        a_running_pod(store, name)
    a_budget(store, observedGeneration=1, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
    assert store.evict("p1", {}, "default").last.body["metadata"]["deletionTimestamp"]
    with pytest.raises(ApiError) as refused:
        store.evict("p2", {}, "default")
    assert refused.value.code == 429
    assert refused.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget b needs 1 healthy pods and has 2 currently"}
    assert refused.value.details == {"causes": [cause]}
    assert "deletionTimestamp" not in store.get(PODS, "p2", "default").body["metadata"]


def test_a_budget_that_was_never_counted_allows_nothing(store: ObjectStore) -> None:
    a_running_pod(store, "p")
    a_budget(store)
    with pytest.raises(ApiError) as refused:
        store.evict("p", {}, "default")
    assert (refused.value.details or {})["retryAfterSeconds"] == 10


def test_a_pod_that_is_not_ready_costs_a_healthy_budget_nothing(store: ObjectStore) -> None:
    a_running_pod(store, "p")
    store.merge_patch(PODS, "p", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "default", subresource="status")
    a_budget(store, observedGeneration=1, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1)
    evicted = store.evict("p", {}, "default").last.body
    assert evicted["metadata"]["deletionTimestamp"]
    assert evicted["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"

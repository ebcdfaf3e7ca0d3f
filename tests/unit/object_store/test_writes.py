import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_runtime.kube.store import ObjectStore
from hami_runtime.kube.store_errors import ApiError
from hami_runtime.kube.store_objects import merged, with_metadata
from hami_runtime.kube.store_resources import CONFIG_MAPS, LEASES, NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PODS

Clock = Callable[[], datetime]


def a_pod(name: str = "p", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def test_a_created_pod_has_what_the_system_gives_it(store: ObjectStore) -> None:
    body = store.create(PODS, a_pod(uid="mine", generation=7), "default").body
    assert body["kind"] == "Pod"
    assert body["apiVersion"] == "v1"
    assert body["metadata"]["namespace"] == "default"
    assert body["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert body["metadata"]["resourceVersion"] == str(store.revision)
    assert body["metadata"]["generation"] == 1
    assert body["metadata"]["uid"] != "mine"
    assert body["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_a_node_keeps_the_status_it_is_created_with_and_a_pod_does_not(store: ObjectStore) -> None:
    assert store.create(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}}).body["status"]["capacity"] == {"cpu": "4"}
    assert store.create(PODS, {**a_pod(), "status": {"phase": "Running"}}, "default").body["status"]["phase"] == "Pending"


def test_a_taken_name_is_refused_in_the_servers_words(store: ObjectStore) -> None:
    store.create(PODS, a_pod(), "default")
    with pytest.raises(ApiError) as refused:
        store.create(PODS, a_pod(), "default")
    assert refused.value.status == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "p" already exists',
        "reason": "AlreadyExists",
        "details": {"name": "p", "kind": "pods"},
        "code": 409,
    }


def test_the_group_is_part_of_what_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(ApiError) as refused:
        store.get(POD_DISRUPTION_BUDGETS, "b", "default")
    assert refused.value.message == 'poddisruptionbudgets.policy "b" not found'
    assert refused.value.details == {"name": "b", "group": "policy", "kind": "poddisruptionbudgets"}


def test_generated_names_differ_and_fit_a_label(store: ObjectStore) -> None:
    pods = [store.create(PODS, {"metadata": {"generateName": "x" * 70}, "spec": {}}, "default").body for _ in range(50)]
    names = {pod["metadata"]["name"] for pod in pods}
    assert len(names) == 50
    assert {len(name) for name in names} == {63}


def test_equal_calls_on_equal_stores_give_equal_objects(clock: Clock) -> None:
    stores = [ObjectStore(now=clock, rng=random.Random(7)) for _ in range(2)]
    first, second = (store.create(PODS, {"metadata": {"generateName": "p-"}, "spec": {}}, "default").body for store in stores)
    assert first == second


def test_nothing_is_created_in_a_namespace_that_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(ApiError) as refused:
        store.create(PODS, a_pod(), "nowhere")
    assert (refused.value.code, refused.value.message) == (404, 'namespaces "nowhere" not found')


def test_an_old_version_loses_the_race(store: ObjectStore) -> None:
    first = store.create(CONFIG_MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}}, "default").body
    store.replace(CONFIG_MAPS, "m", {**first, "data": {"a": "2"}}, "default")
    with pytest.raises(ApiError) as refused:
        store.replace(CONFIG_MAPS, "m", {**first, "data": {"a": "3"}}, "default")
    assert refused.value.reason == "Conflict"
    assert refused.value.message == (
        'Operation cannot be fulfilled on configmaps "m": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


def test_a_write_that_changes_nothing_is_no_write(store: ObjectStore) -> None:
    before = store.create(PODS, a_pod(annotations={"a": "1"}), "default")
    assert store.merge_patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, "default") is before
    assert store.revision == before.revision


def test_a_patch_with_a_foreign_uid_or_version_never_lands(store: ObjectStore) -> None:
    store.create(PODS, a_pod(), "default")
    for precondition, code in (
        ({"uid": "another"}, 422),
        ({"resourceVersion": "1"}, 409),
        ({"uid": "another", "resourceVersion": "1"}, 409),
    ):
        with pytest.raises(ApiError) as refused:
            store.merge_patch(PODS, "p", {"metadata": {**precondition, "annotations": {"a": "1"}}}, "default")
        assert refused.value.code == code
    assert "annotations" not in store.get(PODS, "p", "default").body["metadata"]


def test_a_patch_of_an_overtaken_version_is_refused(store: ObjectStore) -> None:
    before = store.create(PODS, a_pod(), "default")
    store.merge_patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, "default")
    with pytest.raises(ApiError, match="the object has been modified"):
        store.patched(PODS, before, before.body)


def test_a_lease_is_replaced_only_by_who_read_it(store: ObjectStore) -> None:
    lease = store.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}, "default").body
    with pytest.raises(ApiError) as refused:
        store.replace(LEASES, "l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}, "default")
    assert (refused.value.code, (refused.value.details or {})["causes"][0]["field"]) == (422, "metadata.resourceVersion")
    assert store.replace(LEASES, "l", {**lease, "spec": {"holderIdentity": "b"}}, "default").body["spec"] == {"holderIdentity": "b"}


def test_null_deletes_and_an_emptied_map_is_gone(store: ObjectStore) -> None:
    store.create(PODS, a_pod(annotations={"a": "1"}), "default")
    body = store.merge_patch(PODS, "p", {"metadata": {"annotations": {"a": None}}}, "default").body
    assert "annotations" not in body["metadata"]


def test_status_and_spec_are_written_apart(store: ObjectStore) -> None:
    store.create(PODS, a_pod(), "default")
    both = {"spec": {"priority": 5}, "status": {"phase": "Running"}}
    body = store.merge_patch(PODS, "p", both, "default").body
    assert (body["spec"]["priority"], body["status"]["phase"]) == (5, "Pending")
    body = store.merge_patch(PODS, "p", {"spec": {"priority": 6}, "status": {"phase": "Running"}}, "default", subresource="status").body
    assert (body["spec"]["priority"], body["status"]["phase"]) == (5, "Running")


def test_generation_counts_what_is_wanted_only(store: ObjectStore) -> None:
    store.create(PODS, a_pod(), "default")
    assert store.merge_patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default").body["metadata"]["generation"] == 1
    assert store.merge_patch(PODS, "p", {"spec": {"priority": 6}}, "default").body["metadata"]["generation"] == 2


def test_a_dry_run_shows_the_result_and_keeps_nothing(store: ObjectStore) -> None:
    revision = store.revision
    assert store.create(PODS, a_pod(), "default", dry_run=True).body["metadata"]["uid"]
    assert store.find(PODS, "p", "default") is None
    current = store.create(PODS, a_pod(), "default")
    labelled = with_metadata(current.body, labels={"a": "b"})
    assert store.patched(PODS, current, labelled, dry_run=True).body["metadata"]["labels"] == {"a": "b"}
    assert store.replace(PODS, "p", labelled, "default", dry_run=True).body["metadata"]["labels"] == {"a": "b"}
    assert store.delete(PODS, "p", "default", dry_run=True).gone
    assert store.revision == revision + 1
    assert "labels" not in store.get(PODS, "p", "default").body["metadata"]


def test_what_the_caller_keeps_cannot_reach_the_store(store: ObjectStore) -> None:
    mine = a_pod()
    store.create(PODS, mine, "default")
    mine["spec"]["containers"].clear()
    assert store.get(PODS, "p", "default").body["spec"]["containers"]


def test_a_namespace_goes_when_its_last_object_is_gone(store: ObjectStore) -> None:
    store.create(NAMESPACES, {"metadata": {"name": "team"}})
    store.create(PODS, a_pod(finalizers=["x/y"]), "team")
    store.delete(NAMESPACES, "team")
    assert store.get(NAMESPACES, "team").body["status"] == {"phase": "Terminating"}
    with pytest.raises(ApiError, match="because it is being terminated"):
        store.create(PODS, a_pod("q"), "team")
    store.merge_patch(PODS, "p", {"metadata": {"finalizers": None}}, "team")
    assert store.find(PODS, "p", "team") is None
    assert store.find(NAMESPACES, "team") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=2), json_values, max_size=4).map(_without_nulls), json_values)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merged(target, patch)
    assert merged(once, patch) == once
    if isinstance(patch, dict):
        assert all((key in once) == (value is not None) for key, value in patch.items())
        assert all(once[key] == value for key, value in target.items() if key not in patch)

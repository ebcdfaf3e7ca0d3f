from typing import Any

import pytest

from .conftest import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, a_map, a_pod


async def test_a_created_object_can_be_read_listed_and_selected(api: Api) -> None:
    created = (await api.post(api.maps, a_map(metadata={"labels": {"app": "x"}}, key="value"))).body
    assert created["kind"] == "ConfigMap"
    assert created["metadata"]["uid"]
    assert created["metadata"]["creationTimestamp"].endswith("Z")
    assert (await api.get(f"{api.maps}/m")).body["data"] == {"key": "value"}

    listed = (await api.get(api.maps, labelSelector="app in (x,y)", fieldSelector="metadata.name=m")).body
    assert (listed["kind"], [each["metadata"]["name"] for each in listed["items"]]) == ("ConfigMapList", ["m"])
    assert int(listed["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    assert (await api.get(api.maps, labelSelector="app!=x,!tier", fieldSelector="metadata.name=m")).body["items"] == []


async def test_refusals_are_complete_statuses(api: Api) -> None:
    assert (await api.get(f"{api.maps}/nope")).body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "nope" not found',
        "reason": "NotFound",
        "details": {"name": "nope", "kind": "configmaps"},
        "code": 404,
    }
    await api.post(api.maps, a_map())
    taken = await api.post(api.maps, a_map())
    assert (taken.code, taken.body["message"], taken.body["reason"]) == (409, 'configmaps "m" already exists', "AlreadyExists")
    lost = await api.post("/api/v1/namespaces/not-there/configmaps", a_map())
    assert (lost.code, lost.body["message"]) == (404, 'namespaces "not-there" not found')
    assert (await api.get("/api/v1/namespaces/default/nopes")).error == (404, "NotFound")
    assert (await api.post("/api/v1/namespaces/default/nopes", {})).error == (404, "NotFound")
    assert (await api.put("/api/v1/nodes", {})).error == (405, "MethodNotAllowed")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"metadata": {"name": "x", "namespace": "other"}},
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            {"metadata": {"name": "x", "labels": {"a": 5}}},
            "cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        ({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}}, 'Pod in version "v1" cannot be handled as a ConfigMap'),
        (b"{garbage", "couldn't get version/kind; json parse error"),
    ],
)
async def test_bodies_that_are_none_are_bad_requests(api: Api, body: Any, message: str) -> None:
    refused = await api.post(api.maps, body)
    assert refused.error == (400, "BadRequest")
    assert message in refused.body["message"]


async def test_selectors_that_cannot_be_read_are_bad_requests(api: Api) -> None:
    assert (await api.get(api.pods, labelSelector="a==b==c")).error == (400, "BadRequest")
    refused = await api.get(api.pods, fieldSelector="spec.color=red")
    assert (refused.code, refused.body["message"]) == (400, "field label not supported: spec.color")


async def test_the_name_is_checked_and_a_prefix_is_completed(api: Api) -> None:
    refused = await api.post(api.maps, a_map("Bad_Name"))
    assert refused.error == (422, "Invalid")
    cause = refused.body["details"]["causes"][0]
    assert (cause["field"], cause["reason"]) == ("metadata.name", "FieldValueInvalid")
    assert "a lowercase RFC 1123 subdomain must consist of" in cause["message"]
    named = (await api.post(api.maps, {"metadata": {"generateName": "some-"}})).body["metadata"]["name"]
    assert named.startswith("some-")
    assert len(named) == len("some-") + 5
    assert (await api.post(api.maps, {"metadata": {}})).body["message"].endswith("name or generateName is required")


async def test_unknown_fields_warn_or_are_refused(api: Api) -> None:
    warned = await api.post(api.maps, {**a_map(), "zzz": 1})
    assert warned.code == 201
    assert "zzz" not in warned.body
    assert 'unknown field \\"zzz\\"' in warned.warnings[0]
    refused = await api.post(api.maps, {**a_map("n"), "zzz": 1}, fieldValidation="Strict")
    assert 'strict decoding error: unknown field "zzz"' in refused.body["message"]


async def test_a_stale_version_conflicts_and_a_foreign_uid_never_lands(api: Api) -> None:
    first = (await api.post(api.maps, a_map(key="1"))).body
    second = (await api.put(f"{api.maps}/m", {**first, "data": {"key": "2"}})).body
    stale = await api.put(f"{api.maps}/m", {**first, "data": {"key": "3"}})
    assert stale.error == (409, "Conflict")
    assert "the object has been modified" in stale.body["message"]
    assert stale.body["details"] == {"name": "m", "kind": "configmaps"}
    assert (await api.patch(f"{api.maps}/m", {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}})).code == 409

    foreign = {**second, "metadata": {**second["metadata"], "uid": "another"}}
    assert (await api.put(f"{api.maps}/m", foreign)).error == (409, "Conflict")
    refused = await api.patch(f"{api.maps}/m", {"metadata": {"uid": "another"}, "data": {"key": "4"}})
    assert refused.error == (422, "Invalid")
    assert refused.body["details"]["causes"][0]["field"] == "metadata.uid"
    assert (await api.get(f"{api.maps}/m")).body["data"] == {"key": "2"}


async def test_a_write_that_changes_nothing_keeps_the_version(api: Api) -> None:
    first = (await api.post(api.maps, a_map(key="1"))).body["metadata"]["resourceVersion"]
    assert (await api.patch(f"{api.maps}/m", {"data": {"key": "1"}})).body["metadata"]["resourceVersion"] == first


async def test_merge_patches_delete_with_null(api: Api) -> None:
    await api.post(api.maps, a_map(metadata={"annotations": {"a": "1"}}, x="1", y="2"))
    body = (await api.patch(f"{api.maps}/m", {"metadata": {"annotations": {"a": None}}, "data": {"x": None, "z": "3"}}, MERGE)).body
    assert body["data"] == {"y": "2", "z": "3"}
    assert "annotations" not in body["metadata"]
    assert (await api.patch(f"{api.maps}/nope", {}, MERGE)).error == (404, "NotFound")
    assert (await api.patch(f"{api.maps}/m", [], MERGE)).error == (400, "BadRequest")
    assert (await api.patch(f"{api.maps}/m", {}, "text/plain")).code == 415


async def test_json_patches_apply_whole_or_not_at_all(api: Api) -> None:
    await api.post(api.maps, a_map(x="1"))
    path = f"{api.maps}/m"
    done = await api.patch(
        path, [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "add", "path": "/data/y", "value": "2"}], JSON_PATCH
    )
    assert done.body["data"] == {"x": "1", "y": "2"}
    failed = [{"op": "remove", "path": "/data/x"}, {"op": "test", "path": "/data/y", "value": "no"}]
    assert (await api.patch(path, failed, JSON_PATCH)).error == (422, "Invalid")
    assert (await api.get(path)).body["data"] == {"x": "1", "y": "2"}


async def test_strategic_patches_merge_lists_by_their_keys(api: Api) -> None:
    await api.post(api.pods, a_pod())
    path = f"{api.pods}/p/status"
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await api.patch(path, ready, STRATEGIC)
    other = {"status": {"conditions": [{"type": "hami.io/Waiting", "status": "True"}, {"type": "Ready", "status": "False"}]}}
    conditions = (await api.patch(path, other, STRATEGIC)).body["status"]["conditions"]
    assert {each["type"]: each["status"] for each in conditions} == {"Ready": "False", "hami.io/Waiting": "True"}
    gone = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    assert [each["type"] for each in (await api.patch(path, gone, STRATEGIC)).body["status"]["conditions"]] == ["hami.io/Waiting"]

    image = {"spec": {"containers": [{"name": "c", "image": "other"}]}}
    containers = (await api.patch(f"{api.pods}/p", image, STRATEGIC)).body["spec"]["containers"]
    assert [(each["name"], each["image"]) for each in containers] == [("c", "other")]


async def test_applied_fields_have_owners(api: Api) -> None:
    path = f"{api.maps}/s"

    async def applied(manager: str, force: str = "false", **data: str) -> Any:
        return await api.patch(path, a_map("s", **data), APPLY, fieldManager=manager, force=force)

    assert (await applied("one", a="1", b="2")).code == 201
    assert (await applied("two", c="3")).body["data"] == {"a": "1", "b": "2", "c": "3"}
    refused = await applied("two", a="9", c="3")
    assert refused.error == (409, "Conflict")
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert refused.body["details"]["causes"] == [{"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}]
    assert (await applied("two", "true", a="9", c="3")).body["data"] == {"a": "9", "b": "2", "c": "3"}
    assert (await applied("one")).body["data"] == {"a": "9", "c": "3"}
    assert (await api.patch(path, a_map("s"), APPLY)).error == (422, "Invalid")


async def test_applied_lists_are_owned_element_by_element(api: Api) -> None:
    path = f"{api.pods}/p"

    async def applied(manager: str, image: str, force: str = "false", **metadata: Any) -> Any:
        return await api.patch(path, a_pod(container={"image": image}, metadata=metadata), APPLY, fieldManager=manager, force=force)

    assert (await applied("one", "i:1", finalizers=["hami.io/a"], labels={"app": "x"})).code == 201
    refused = await applied("two", "i:2", finalizers=["hami.io/b"])
    assert refused.error == (409, "Conflict")
    assert [each["field"] for each in refused.body["details"]["causes"]] == ['.spec.containers[name="c"].image']
    both = (await applied("two", "i:2", "true", finalizers=["hami.io/b"])).body
    assert [(each["name"], each["image"]) for each in both["spec"]["containers"]] == [("c", "i:2")]
    assert sorted(both["metadata"]["finalizers"]) == ["hami.io/a", "hami.io/b"]
    assert (await applied("one", "i:2", labels={"app": "x"})).body["metadata"]["finalizers"] == ["hami.io/b"]
    assert (await api.patch(path, {"metadata": {"labels": {"app": "y"}}}, fieldManager="three")).code == 200
    refused = await applied("one", "i:2", labels={"app": "x"})
    assert refused.error == (409, "Conflict")
    assert [each["field"] for each in refused.body["details"]["causes"]] == [".metadata.labels.app"]
    assert 'conflict with "three"' in refused.body["message"]
    await api.patch(path, {"metadata": {"finalizers": None}})


async def test_status_is_written_through_its_own_path(api: Api) -> None:
    await api.post(api.pods, a_pod())
    ignored = (await api.patch(f"{api.pods}/p", {"status": {"phase": "Running"}})).body
    assert ignored["status"]["phase"] == "Pending"
    both = {"spec": {"schedulerName": "other"}, "status": {"phase": "Running"}, "metadata": {"annotations": {"a": "b"}}}
    written = (await api.patch(f"{api.pods}/p/status", both)).body
    assert (written["status"]["phase"], written["spec"]["schedulerName"]) == ("Running", "default-scheduler")
    assert written["metadata"]["annotations"] == {"a": "b"}


async def test_finalizers_hold_a_deletion(api: Api) -> None:
    await api.post(api.maps, a_map(metadata={"finalizers": ["hami.io/test"]}))
    marked = (await api.delete(f"{api.maps}/m")).body
    assert marked["kind"] == "ConfigMap"
    assert marked["metadata"]["deletionTimestamp"]
    await api.patch(f"{api.maps}/m", {"metadata": {"finalizers": None}})
    assert (await api.get(f"{api.maps}/m")).code == 404


async def test_deletions_answer_with_a_status_and_respect_preconditions(api: Api) -> None:
    created = (await api.post(api.maps, a_map())).body["metadata"]
    refused = await api.delete(f"{api.maps}/m", {"preconditions": {"uid": "another"}})
    assert refused.error == (409, "Conflict")
    assert "the UID in the precondition (another) does not match" in refused.body["message"]
    assert (await api.delete(f"{api.maps}/m", {"preconditions": {"uid": created["uid"]}})).body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "m", "kind": "configmaps", "uid": created["uid"]},
    }


async def test_a_dry_run_keeps_nothing(api: Api) -> None:
    assert (await api.post(api.maps, a_map(), dryRun="All")).code == 201
    assert (await api.get(f"{api.maps}/m")).code == 404
    await api.post(api.maps, a_map(x="1"))
    assert (await api.patch(f"{api.maps}/m", {"data": {"x": "2"}}, dryRun="All")).body["data"] == {"x": "2"}
    assert (await api.delete(f"{api.maps}/m", dryRun="All")).code == 200
    assert (await api.get(f"{api.maps}/m")).body["data"] == {"x": "1"}


async def test_two_electors_never_both_hold_a_lease(api: Api) -> None:
    lease = (await api.post(api.leases, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "", "leaseDurationSeconds": 15}})).body
    mine, theirs = ({**lease, "spec": {**lease["spec"], "holderIdentity": who}} for who in ("me", "them"))
    assert (await api.put(f"{api.leases}/l", mine)).code == 200
    assert (await api.put(f"{api.leases}/l", theirs)).error == (409, "Conflict")
    unversioned = await api.put(f"{api.leases}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "them"}})
    assert unversioned.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    assert (await api.get(f"{api.leases}/l")).body["spec"]["holderIdentity"] == "me"


async def test_events_are_found_by_what_they_are_about(api: Api) -> None:
    about = {"kind": "Pod", "namespace": api.namespace, "name": "p"}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "Refused", "type": "Warning", "message": "no room", "count": 1}
    assert (await api.post(api.events, event)).code == 201
    assert (await api.patch(f"{api.events}/e", {"count": 2, "message": "still no room"})).code == 200
    for selector, names in (("type=Warning", ["e"]), ("type=Normal", []), ("reason=Refused", ["e"]), ("involvedObject.name=q", [])):
        found = (await api.get(api.events, fieldSelector=f"involvedObject.kind=Pod,{selector}")).body["items"]
        assert [each["metadata"]["name"] for each in found] == names, selector
    shown = (await api.get(f"{api.events}/e")).body
    assert (shown["count"], shown["message"]) == (2, "still no room")


async def test_nodes_are_made_with_their_status_and_tainted_as_a_whole(api: Api) -> None:
    name = f"node-{api.namespace}"
    path = f"/api/v1/nodes/{name}"
    node = (
        await api.post("/api/v1/nodes", {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4000m", "nvidia.com/gpu": "10"}}})
    ).body
    assert node["status"]["capacity"] == node["status"]["allocatable"] == {"cpu": "4", "nvidia.com/gpu": "10"}
    await api.patch(path, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, STRATEGIC)
    tainted = (await api.patch(path, {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}, STRATEGIC)).body
    assert [each["key"] for each in tainted["spec"]["taints"]] == ["b"]
    assert (await api.delete(path)).body["details"]["kind"] == "nodes"


async def test_a_review_says_whether_somebody_may(api: Api) -> None:
    access = {"spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}}
    assert isinstance((await api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", access)).body["status"]["allowed"], bool)


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"metadata": None}, 400),
        ({"metadata": {"name": None}}, 400),
        ({"metadata": {"name": "other"}}, 400),
        ({"metadata": {"namespace": "other"}}, 400),
        ({"kind": "Node"}, 422),
        ({"apiVersion": "v2"}, 422),
        ({"metadata": {"annotations": {"a": 1}}}, 422),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, 422),
        ({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x"}]}}, 422),
        ({"metadata": {"finalizers": ["bad"]}}, 422),
        ({"metadata": {"labels": {"a": "not a label"}}}, 422),
    ],
)
async def test_a_patch_cannot_make_another_object_of_it(api: Api, patch: dict[str, Any], code: int) -> None:
    await api.post(api.pods, a_pod())
    before = (await api.get(f"{api.pods}/p")).body
    assert (await api.patch(f"{api.pods}/p", patch)).code == code
    assert (await api.get(f"{api.pods}/p")).body == before


async def test_a_replacement_must_name_the_object(api: Api) -> None:
    await api.post(api.maps, a_map())
    for body in ({}, {"metadata": {}}, {"metadata": {"name": "other"}}):
        assert (await api.put(f"{api.maps}/m", body)).error == (400, "BadRequest")
    await api.post(api.pods, a_pod())
    for subresource, kind in (("binding", "Binding"), ("eviction", "Eviction")):
        refused = await api.post(f"{api.pods}/p/{subresource}", {"target": {"name": "n1"}} if kind == "Binding" else {})
        assert refused.body["message"] == f"name in URL does not match name in {kind} object"


async def test_the_default_namespace_cannot_be_deleted(api: Api) -> None:
    refused = await api.delete("/api/v1/namespaces/default")
    assert (refused.code, refused.body["message"]) == (403, 'namespaces "default" is forbidden: this namespace may not be deleted')


async def test_an_event_is_in_the_namespace_of_what_it_is_about(api: Api) -> None:
    for regarding in ({"kind": "Pod", "namespace": "other", "name": "x"}, {"kind": "Node", "name": "x"}):
        refused = await api.post(api.events, {"metadata": {"name": "e"}, "involvedObject": regarding, "reason": "R"})
        assert refused.error == (422, "Invalid")
        assert refused.body["details"]["causes"][0]["field"] == "involvedObject.namespace"
    about_a_node = {"metadata": {"name": f"e-{api.namespace}"}, "involvedObject": {"kind": "Node", "name": "x"}, "reason": "R"}
    assert (await api.post("/api/v1/namespaces/default/events", about_a_node)).code == 201
    await api.delete(f"/api/v1/namespaces/default/events/e-{api.namespace}")

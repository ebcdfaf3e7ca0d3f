import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.harness import building

from .conftest import STRATEGIC, Answer, Api, a_binding, a_pod

TRIES = 50


async def test_what_a_pod_leaves_out_is_filled_in(api: Api) -> None:
    container = {
        "ports": [{"containerPort": 80}],
        "livenessProbe": {"httpGet": {"port": 80}},
        "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    volumes = [{"name": "v", "configMap": {"name": "x"}}, {"name": "e"}, {"name": "h", "hostPath": {"path": "/x"}}]
    pod = (await api.post(api.pods, a_pod(container=container, volumes=volumes))).body
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["dnsPolicy"], spec["schedulerName"]) == ("Always", "ClusterFirst", "default-scheduler")
    assert (spec["terminationGracePeriodSeconds"], spec["priority"], spec["preemptionPolicy"]) == (30, 0, "PreemptLowerPriority")
    assert spec["enableServiceLinks"] is True
    assert [each["key"] for each in spec["tolerations"]] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert {"name": "v", "configMap": {"name": "x", "defaultMode": 420}} in spec["volumes"]
    assert {"name": "e", "emptyDir": {}} in spec["volumes"]
    filled = spec["containers"][0]
    assert (filled["imagePullPolicy"], filled["terminationMessagePath"]) == ("Always", "/dev/termination-log")
    assert filled["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert filled["livenessProbe"]["httpGet"] == {"path": "/", "port": 80, "scheme": "HTTP"}
    assert filled["env"][0]["valueFrom"]["fieldRef"] == {"apiVersion": "v1", "fieldPath": "metadata.name"}
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert pod["metadata"]["generation"] == 1


async def test_a_pod_runs_as_the_account_default_where_it_names_no_other(api: Api) -> None:
    assert (await api.post(f"/api/v1/namespaces/{api.namespace}/serviceaccounts", {"metadata": {"name": "mine"}})).code == 201
    for named, found in ({}, "default"), ({"serviceAccountName": ""}, "default"), ({"serviceAccountName": "mine"}, "mine"):
        spec = (await api.post(api.pods, a_pod(**named), dryRun="All")).body["spec"]
        assert (spec["serviceAccountName"], spec["serviceAccount"]) == (found, found)


async def test_quantities_become_canonical_and_limits_become_requests(api: Api) -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000", "cpu": 0.5, "memory": "16384Mi", "hami.io/none": None}
    pod = (await api.post(api.pods, a_pod(container={"resources": {"limits": limits}}))).body
    stored = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "cpu": "500m", "memory": "16Gi", "hami.io/none": "0"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": stored, "requests": stored}
    assert pod["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("limits", "requests", "field", "message"),
    [
        ({"a.b/c": "2"}, {"a.b/c": "1"}, "requests", 'Invalid value: "1": must be equal to a.b/c limit of 2'),
        ({"cpu": "1"}, {"cpu": "2"}, "requests", 'Invalid value: "2": must be less than or equal to cpu limit of 1'),
        ({}, {"a.b/c": "1"}, "limits", "Required value: Limit must be set for non overcommitable resources"),
        ({"a.b/c": "0.5"}, {}, "limits[a.b/c]", 'Invalid value: "500m": must be an integer'),
        ({"a.b/c": "-1"}, {}, "limits[a.b/c]", 'Invalid value: "-1": must be greater than or equal to 0'),
        ({"gpu": "1"}, {}, "limits[gpu]", 'Invalid value: "gpu": must be a standard resource type or fully qualified'),
    ],
)
async def test_resources_that_cannot_be_are_refused(
    api: Api, limits: dict[str, str], requests: dict[str, str], field: str, message: str
) -> None:
    refused = await api.post(api.pods, a_pod(container={"resources": {"limits": limits, "requests": requests}}), dryRun="All")
    assert refused.error == (422, "Invalid")
    first = refused.body["details"]["causes"][0]
    assert (first["field"], first["message"]) == (f"spec.containers[0].resources.{field}", message)


@pytest.mark.parametrize("quantity", ["abc", "1 Gi", "", True])
async def test_a_quantity_that_cannot_be_read_is_a_bad_request(api: Api, quantity: Any) -> None:
    refused = await api.post(api.pods, a_pod(container={"resources": {"limits": {"cpu": quantity}}}), dryRun="All")
    assert refused.error == (400, "BadRequest")
    assert "quantities must match the regular expression" in refused.body["message"]


async def test_a_pod_needs_named_containers_with_images(api: Api) -> None:
    refused = await api.post(api.pods, {"metadata": {"name": "x"}, "spec": {"containers": [{}]}})
    assert refused.body["message"] == (
        'Pod "x" is invalid: [spec.containers[0].name: Required value, spec.containers[0].image: Required value]'
    )
    refused = await api.post(api.pods, {"metadata": {"name": "x"}, "spec": {}})
    assert refused.body["message"] == 'Pod "x" is invalid: spec.containers: Required value'


async def test_most_of_a_pod_never_changes(api: Api) -> None:
    await api.post(api.pods, a_pod())
    for change in ({"nodeName": "n1"}, {"hostNetwork": True}, {"schedulerName": "other"}):
        refused = await api.patch(f"{api.pods}/p", {"spec": change})
        assert refused.error == (422, "Invalid")
        assert "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`" in refused.body["message"]
    image = {"spec": {"containers": [{"name": "c", "image": "other"}]}}
    assert (await api.patch(f"{api.pods}/p", image, STRATEGIC)).body["metadata"]["generation"] == 2


async def test_a_priority_comes_from_an_existing_class(api: Api) -> None:
    critical = (await api.post(api.pods, a_pod(priorityClassName="system-node-critical"), dryRun="All")).body
    assert critical["spec"]["priority"] == 2_000_001_000
    refused = await api.post(api.pods, a_pod(priorityClassName="nope"))
    assert (refused.code, refused.body["message"]) == (403, 'pods "p" is forbidden: no PriorityClass with name nope was found')


async def test_a_binding_is_one_write_over_what_the_user_put_there(api: Api) -> None:
    created = (await api.post(api.pods, a_pod(metadata={"annotations": {"mine": "1", "hami.io/vgpu-node": "forged"}}))).body
    async with api.watch(api.pods, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        binding = a_binding(annotations={"hami.io/vgpu-node": "n1"}, labels={"hami.io/vgpu-node": "n1"})
        assert (await api.post(f"{api.pods}/p/binding", binding)).body == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "code": 201,
        }
        kind, pod = await watch.next()
    assert (kind, pod["spec"]["nodeName"]) == ("MODIFIED", "n1")
    assert pod["metadata"]["annotations"] == {"mine": "1", "hami.io/vgpu-node": "n1"}
    labels = {"hami.io/vgpu-node": "n1"} if building.minor(building.version()) >= 35 else None  # older servers leave them
    assert pod["metadata"].get("labels") == labels
    scheduled = next(each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled")
    assert scheduled["status"] == "True"

    again = await api.post(f"{api.pods}/p/binding", a_binding(node="n2", annotations={"hami.io/vgpu-node": "n2"}))
    assert again.error == (409, "Conflict")
    assert again.body["message"] == 'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
    assert (await api.get(f"{api.pods}/p")).body["metadata"]["annotations"]["hami.io/vgpu-node"] == "n1"


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resourceVersion": "1"}])
async def test_a_binding_is_for_one_pod_in_one_state(api: Api, precondition: dict[str, str]) -> None:
    await api.post(api.pods, a_pod())
    refused = await api.post(f"{api.pods}/p/binding", a_binding(**precondition))
    assert refused.error == (409, "Conflict")
    assert "Precondition failed" in refused.body["message"]
    assert "nodeName" not in (await api.get(f"{api.pods}/p")).body["spec"]
    assert (await api.post(f"{api.pods}/nope/binding", a_binding("nope"))).error == (404, "NotFound")


async def test_a_bound_pod_is_gone_when_its_kubelet_says_so(api: Api) -> None:
    await api.post(api.pods, a_pod())
    await api.post(f"{api.pods}/p/binding", a_binding())
    since = (await api.get(api.pods)).body["metadata"]["resourceVersion"]
    async with api.watch(api.pods, resourceVersion=since) as watch:
        marked = (await api.delete(f"{api.pods}/p")).body["metadata"]
        assert marked["deletionGracePeriodSeconds"] == 30
        assert (await watch.next())[0] == "MODIFIED"
        gone = (await api.delete(f"{api.pods}/p", {"gracePeriodSeconds": 0, "preconditions": {"uid": marked["uid"]}})).body
        assert gone["kind"] == "Pod"
        assert [(await watch.next())[0], (await watch.next())[0]] == ["MODIFIED", "DELETED"]


async def test_a_pod_without_a_node_goes_at_once(api: Api) -> None:
    since = (await api.post(api.pods, a_pod())).body["metadata"]["resourceVersion"]
    async with api.watch(api.pods, resourceVersion=since) as watch:
        assert (await api.delete(f"{api.pods}/p")).body["metadata"]["deletionGracePeriodSeconds"] == 0
        assert [(await watch.next())[0], (await watch.next())[0]] == ["MODIFIED", "DELETED"]


async def test_an_eviction_respects_the_budget(api: Api) -> None:
    """The budget's counts are written here as a controller manager does; one that runs may write over ours what it saw a moment before."""
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    assert (await api.post(api.budgets, budget)).code == 201

    async def running(name: str, **counts: int) -> None:
        await api.post(api.pods, a_pod(name, metadata={"labels": {"app": "x"}}))
        await api.post(f"{api.pods}/{name}/binding", a_binding(name))
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await api.patch(f"{api.pods}/{name}/status", status, STRATEGIC)
        await api.patch(f"{api.budgets}/b/status", {"status": {"observedGeneration": 1, "desiredHealthy": 1, **counts}})

    async def evict(name: str) -> Answer:
        return await api.post(f"{api.pods}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})

    async def evicted(name: str, wanted: Callable[[Answer], bool]) -> Answer:
        for _ in range(TRIES):
            answer = await evict(name)
            if wanted(answer):
                break
            await asyncio.sleep(0.1)
        return answer

    why = {"reason": "DisruptionBudget", "message": "The disruption budget b needs 1 healthy pods and has 1 currently"}
    await running("p", expectedPods=1, currentHealthy=1, disruptionsAllowed=0)
    refused = await evicted("p", lambda answer: answer.code == 429 and answer.body["details"]["causes"] == [why])
    assert refused.error == (429, "TooManyRequests")
    assert refused.body["details"]["causes"] == [why]
    await running("q", expectedPods=2, currentHealthy=2, disruptionsAllowed=1)
    assert (await evicted("p", lambda answer: answer.code == 201)).code == 201
    assert (await api.get(f"{api.pods}/p")).body["metadata"]["deletionTimestamp"]
    assert (await evict("q")).code == 429

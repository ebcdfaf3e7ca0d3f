"""The embedded server plays the controller manager's part as far as pods with owners need one; a bare API server does not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_rig.apiserver import ApiServer
from hami_rig.apiserver.controllers import Create, Delete, is_active, replica_set_commands
from hami_runtime.kube.store_resources import EVENTS, POD_DISRUPTION_BUDGETS, PODS, PRIORITY_CLASSES, REPLICA_SETS

APPS = "/apis/apps/v1/namespaces/default"
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Cluster:
    """A server, and what is in it."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.store = server.store
        self.session = session

    def pods(self) -> list[dict[str, Any]]:
        return [stored.body for stored in self.store.select(PODS)]

    async def post(self, path: str, body: Any) -> None:
        async with self.session.post(path, json=body) as response:
            assert response.status == 201, await response.text()

    async def patch(self, path: str, body: Any) -> None:
        async with self.session.patch(path, json=body, headers=MERGE) as response:
            assert response.status == 200, await response.text()

    def becomes(self, pod: dict[str, Any], phase: str, ready: str = "False") -> None:
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        self.store.merge_patch(PODS, pod["metadata"]["name"], {"status": status}, "default", subresource="status")

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - a condition over the whole store, seen from outside
                await asyncio.sleep(0.005)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with ApiServer() as server, aiohttp.ClientSession(server.url) as session:
        yield Cluster(server, session)


async def test_a_replica_set_has_the_pods_it_wants_until_it_is_gone(cluster: Cluster) -> None:
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
    await cluster.post(f"{APPS}/replicasets", {"metadata": {"name": "r"}, "spec": spec})
    await cluster.until(lambda: len(cluster.pods()) == 3)
    replica_set = cluster.store.select(REPLICA_SETS)[0].body
    for pod in cluster.pods():
        metadata = pod["metadata"]
        assert (metadata["generateName"], metadata["labels"]) == ("r-", {"app": "x"})
        owner = metadata["ownerReferences"][0]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("ReplicaSet", replica_set["metadata"]["uid"], True)

    await cluster.patch(f"{APPS}/replicasets/r", {"spec": {"replicas": 1}})
    await cluster.until(lambda: len(cluster.pods()) == 1)
    async with cluster.session.delete(f"{APPS}/replicasets/r") as response:
        assert response.status == 200
    await cluster.until(lambda: not cluster.pods())


async def test_pods_of_an_owner_that_is_not_served_here_are_left_alone(cluster: Cluster) -> None:
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "u", "controller": True}
    await cluster.post("/api/v1/namespaces/default/pods", {**TEMPLATE, "metadata": {"name": "p", "ownerReferences": [owner]}})
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
    await cluster.post(f"{APPS}/replicasets", {"metadata": {"name": "r"}, "spec": spec})
    await cluster.until(lambda: cluster.store.select(REPLICA_SETS)[0].body["status"].get("replicas") == 1)
    assert len(cluster.pods()) == 2


async def test_a_deleted_pod_is_replaced(cluster: Cluster) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
    await cluster.post(f"{APPS}/replicasets", {"metadata": {"name": "r"}, "spec": spec})
    await cluster.until(lambda: len(cluster.pods()) == 2)
    gone = cluster.pods()[0]["metadata"]
    cluster.store.delete(PODS, gone["name"], "default")
    await cluster.until(lambda: len(cluster.pods()) == 2)
    assert gone["uid"] not in {pod["metadata"]["uid"] for pod in cluster.pods()}


async def test_pods_that_are_refused_are_reported_and_tried_again(cluster: Cluster) -> None:
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "priorityClassName": "late"}}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    await cluster.post(f"{APPS}/replicasets", {"metadata": {"name": "r"}, "spec": spec})
    await cluster.until(lambda: cluster.store.select(EVENTS))
    event = cluster.store.select(EVENTS)[0].body
    assert (event["reason"], event["involvedObject"]["name"]) == ("FailedCreate", "r")
    assert "no PriorityClass with name late was found" in event["message"]
    cluster.store.create(PRIORITY_CLASSES, {"metadata": {"name": "late"}, "value": 5})
    await cluster.until(cluster.pods)


async def test_a_budget_is_counted(cluster: Cluster) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"app": "x"}}}}
    await cluster.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    for index in range(3):
        pod = {**TEMPLATE, "metadata": {"name": f"p{index}", "labels": {"app": "x"}}}
        await cluster.post("/api/v1/namespaces/default/pods", pod)
        cluster.becomes(pod, "Running", ready="True")

    def status() -> dict[str, Any]:
        found: dict[str, Any] = cluster.store.get(POD_DISRUPTION_BUDGETS, "b", "default").body["status"]
        return {**found, "disruptedPods": None}

    counted = {"expectedPods": 3, "currentHealthy": 3, "desiredHealthy": 1, "disruptionsAllowed": 2, "observedGeneration": 1}
    await cluster.until(lambda: status() == {**counted, "disruptedPods": None})


phases = st.lists(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]), max_size=8)


def _pods(of: list[str]) -> list[dict[str, Any]]:
    return [{"metadata": {"name": f"p{index}"}, "status": {"phase": phase}} for index, phase in enumerate(of)]


@given(phases, st.integers(0, 6))
def test_carrying_the_commands_out_leaves_nothing_to_do(of: list[str], wanted: int) -> None:
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "r", "uid": "u"},
        "spec": {"replicas": wanted, "template": TEMPLATE},
    }
    commands = replica_set_commands(owner, _pods(of))
    deleted = [each.body for each in commands if isinstance(each, Delete)]
    made = [
        {**each.body, "metadata": {"name": f"new{index}"}}
        for index, each in enumerate(each for each in commands if isinstance(each, Create))
    ]
    assert not (deleted and made)
    after = [pod for pod in _pods(of) if pod not in deleted] + made
    assert sum(map(is_active, after)) == wanted
    assert not [each for each in replica_set_commands(owner, after) if isinstance(each, Create | Delete)]

"""Who may write the system's records, as a real API server holds it: everybody here has every right, and the policies alone refuse."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from hami_protocol import keys
from hami_rig.kubectl import kubectl
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.users import NAMESPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICIES = building.ROOT / "deploy" / "kustomize" / "components" / "admission-policies" / "policies.yaml"
ALLOCATED, TO_ALLOCATE = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"
SCHEDULER, REGISTRY, AGENT = (f"system:serviceaccount:{NAMESPACE}:hami-{service}" for service in ("scheduler", "registry", "node-agent"))
ALICE, PLUGIN = "alice", "system:serviceaccount:vendor:plugin"
NVIDIA, DCU = keys.register("nvidia"), keys.register("dcu")
SETTLE_SECONDS: Final = 60.0
FORBIDDEN = 403


class Api:
    """An administrator of an API server with our policies, who acts as others."""

    def __init__(self, plane: ControlPlane, session: aiohttp.ClientSession) -> None:
        self._plane = plane
        self._session = session
        self._writers = ""

    async def call(self, user: str, method: str, path: str, body: Any, *, content: str = "application/merge-patch+json") -> int:
        """The status of a request of ``user``, who may do everything."""
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters", "Content-Type": content}
        async with self._session.request(method, path, data=json.dumps(body), headers=headers) as answer:
            text = await answer.text()
            assert answer.status in {200, 201, FORBIDDEN}, text
            assert answer.status != FORBIDDEN or "ValidatingAdmissionPolicy" in text, text
            return answer.status

    async def create(self, user: str, path: str, body: Any) -> int:
        return await self.call(user, "POST", path, body, content="application/json")

    async def let_write(self, expression: str) -> None:
        """Set who else writes records, and wait until the API server goes by it."""
        if expression == self._writers:
            return
        patch = json.dumps([{"op": "replace", "path": "/spec/variables/0/expression", "value": expression}])
        for name in ("hami-pod-records", "hami-node-records", "hami-binding-records"):
            await kubectl(self._plane.admin, "patch", "validatingadmissionpolicy", name, "--type=json", "--patch", patch)
        self._writers = expression
        await self._settled(ALICE in expression)

    async def _settled(self, alice_writes: bool) -> None:
        wanted = 201 if alice_writes else FORBIDDEN
        async with asyncio.timeout(SETTLE_SECONDS):
            for kind, path in (("Node", "/api/v1/nodes"), ("Pod", "/api/v1/namespaces/default/pods")):
                record = {NVIDIA: ":"} if kind == "Node" else {ALLOCATED: ";"}
                while await self.create(ALICE, f"{path}?dryRun=All", an_object(kind, record)) != wanted:  # noqa: ASYNC110 - polled
                    await asyncio.sleep(0.2)

    async def pod(self, annotations: dict[str, str] | None = None) -> str:
        """The path of a new pod, bound with ``annotations`` by the scheduler where there are any."""
        body = an_object("Pod", None)
        assert await self.create(ALICE, "/api/v1/namespaces/default/pods", body) == 201
        path = f"/api/v1/namespaces/default/pods/{body['metadata']['name']}"
        if annotations:
            assert await self.create(SCHEDULER, f"{path}/binding", a_binding(body["metadata"]["name"], annotations)) == 201
        return path

    async def node(self, annotations: dict[str, str] | None = None) -> str:
        """The path of a new node with records that the registry wrote."""
        body = an_object("Node", None)
        assert await self.create(ALICE, "/api/v1/nodes", body) == 201
        path = f"/api/v1/nodes/{body['metadata']['name']}"
        if annotations:
            assert await self.call(REGISTRY, "PATCH", path, annotated(annotations)) == 200
        return path


def an_object(kind: str, annotations: dict[str, str] | None, **metadata: Any) -> dict[str, Any]:
    noted = {"annotations": annotations} if annotations is not None else {}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": {"name": f"x-{uuid.uuid4().hex[:8]}", **noted, **metadata}}
    if kind == "Pod":
        body["spec"] = {"containers": [{"name": "main", "image": "busybox"}], "automountServiceAccountToken": False}
    return body


def a_binding(pod: str, annotations: dict[str, str] | None, **metadata: Any) -> dict[str, Any]:
    body = an_object("Binding", annotations, **metadata)
    body["metadata"]["name"] = pod
    return {**body, "target": {"kind": "Node", "name": "node-1"}}


def annotated(annotations: dict[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Api]:
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=()) as plane, plane.session() as session:
        await kubectl(plane.admin, "create", "serviceaccount", "default")
        await kubectl(plane.admin, "apply", "-f", str(POLICIES))
        api = Api(plane, session)
        await api.let_write("{'operators': []}")
        yield api


@pytest_asyncio.fixture(loop_scope="module")
async def api(running: Api) -> Api:
    """Nobody but our services may write."""
    await running.let_write("{'operators': []}")
    return running


@pytest.mark.parametrize("user", [ALICE, AGENT, SCHEDULER])
@pytest.mark.parametrize("key", [ALLOCATED, TO_ALLOCATE, keys.ASSIGNED_NODE, keys.BIND_PHASE, keys.MIG_ALLOCATIONS])
async def test_no_pod_is_made_with_a_record(api: Api, user: str, key: str) -> None:
    assert await api.create(user, "/api/v1/namespaces/default/pods", an_object("Pod", {key: "x"})) == FORBIDDEN


POD_RECORDS: list[tuple[str, dict[str, str | None], int]] = [
    (ALICE, {keys.BIND_PHASE: "success"}, FORBIDDEN),
    (ALICE, {ALLOCATED: "GPU-1,NVIDIA,32768,100:;"}, FORBIDDEN),
    (ALICE, {ALLOCATED: None}, FORBIDDEN),
    (ALICE, {keys.ASSIGNED_TIME: "1"}, FORBIDDEN),
    (AGENT, {keys.BIND_PHASE: "success"}, FORBIDDEN),
    (SCHEDULER, {keys.BIND_PHASE: "success"}, FORBIDDEN),
    (ALICE, {"example.com/mine": "1", keys.NODE_POLICY: "spread"}, 200),
    (REGISTRY, {keys.BIND_PHASE: "success", TO_ALLOCATE: ";"}, 200),
    (REGISTRY, {ALLOCATED: "GPU-1,NVIDIA,2048,100:;"}, 200),  # another size
    (REGISTRY, {ALLOCATED: "GPU-2,NVIDIA,1024,0:;"}, FORBIDDEN),
    (REGISTRY, {ALLOCATED: "GPU-1,NVIDIA,1024,0:GPU-2,NVIDIA,1024,0:;"}, FORBIDDEN),
    (REGISTRY, {ALLOCATED: "GPU-1,NVIDIA,1024,0:;GPU-1,NVIDIA,1024,0:;"}, FORBIDDEN),
    (REGISTRY, {ALLOCATED: None}, FORBIDDEN),
    (REGISTRY, {"hami.io/dcu-devices-allocated": "DCU-1,DCU,1,0:;"}, FORBIDDEN),
    (REGISTRY, {"example.com/mine": "1"}, FORBIDDEN),
]


async def a_bound_pod(api: Api) -> str:
    return await api.pod({ALLOCATED: "GPU-1,NVIDIA,1024,0:;", TO_ALLOCATE: "GPU-1,NVIDIA,1024,0:;", keys.BIND_PHASE: "allocating"})


@pytest.mark.parametrize(("user", "changes", "wanted"), POD_RECORDS)
async def test_who_changes_a_pods_records(api: Api, user: str, changes: dict[str, str | None], wanted: int) -> None:
    assert await api.call(user, "PATCH", await a_bound_pod(api), annotated(changes)) == wanted


@pytest.mark.parametrize(("user", "changes", "wanted"), [case for case in POD_RECORDS if case[0] != REGISTRY])
async def test_no_way_leads_round_by_a_pods_status(api: Api, user: str, changes: dict[str, str | None], wanted: int) -> None:
    assert await api.call(user, "PATCH", f"{await a_bound_pod(api)}/status", annotated(changes)) == wanted


ADOPTED = {
    keys.ASSIGNED_NODE: "node-1",
    keys.ASSIGNED_TIME: "1",
    keys.BIND_TIME: "1",
    keys.BIND_PHASE: "allocating",
    ALLOCATED: "GPU-1,NVIDIA,1024,0:;",
    TO_ALLOCATE: "GPU-1,NVIDIA,1024,0:;",
}
"""What the registry writes onto a pod that Volcano has bound."""


@pytest.mark.parametrize(
    ("user", "scheduler", "bound", "records", "wanted"),
    [
        (REGISTRY, "volcano", True, ADOPTED, 200),
        (REGISTRY, "volcano", True, {**ADOPTED, keys.ASSIGNED_NODE: "node-2"}, FORBIDDEN),
        (REGISTRY, "volcano", True, {**ADOPTED, "example.com/mine": "1"}, FORBIDDEN),
        (REGISTRY, "volcano", False, ADOPTED, FORBIDDEN),
        (REGISTRY, "default-scheduler", True, ADOPTED, FORBIDDEN),
        (SCHEDULER, "volcano", True, ADOPTED, FORBIDDEN),
        (ALICE, "volcano", True, ADOPTED, FORBIDDEN),
    ],
)
async def test_who_gives_a_pod_that_another_scheduler_has_bound_its_records(
    api: Api, user: str, scheduler: str, bound: bool, records: dict[str, str | None], wanted: int
) -> None:
    body = an_object("Pod", None)
    body["spec"]["schedulerName"] = scheduler
    assert await api.create(ALICE, "/api/v1/namespaces/default/pods", body) == 201
    path = f"/api/v1/namespaces/default/pods/{body['metadata']['name']}"
    if bound:
        assert await api.create(ALICE, f"{path}/binding", a_binding(body["metadata"]["name"], None)) == 201
    assert await api.call(user, "PATCH", path, annotated(records)) == wanted
    if wanted == 200:  # once: from then on it keeps its cards
        assert await api.call(user, "PATCH", path, annotated({ALLOCATED: "GPU-2,NVIDIA,1024,0:;"})) == FORBIDDEN
        assert await api.call(user, "PATCH", path, annotated({keys.BIND_PHASE: "success", TO_ALLOCATE: ";"})) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"app": "other"}}},
        {"metadata": {"labels": {keys.ASSIGNED_NODE: "node-2"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ],
)
async def test_the_registry_changes_nothing_else_of_a_pod(api: Api, change: dict[str, Any]) -> None:
    assert await api.call(REGISTRY, "PATCH", await api.pod(), change) == FORBIDDEN


async def test_the_label_that_names_the_node_is_the_schedulers(api: Api) -> None:
    label = {"metadata": {"labels": {keys.ASSIGNED_NODE: "node-1"}}}
    assert await api.call(ALICE, "PATCH", await api.pod(), label) == FORBIDDEN
    pod = await api.pod()
    assert (
        await api.create(ALICE, f"{pod}/binding", a_binding(pod.rpartition("/")[2], None, labels=label["metadata"]["labels"])) == FORBIDDEN
    )


@pytest.mark.parametrize(
    ("user", "annotations", "wanted"),
    [
        (ALICE, {ALLOCATED: "GPU-1,NVIDIA,1024,0:;"}, FORBIDDEN),
        (REGISTRY, {ALLOCATED: "GPU-1,NVIDIA,1024,0:;"}, FORBIDDEN),
        (ALICE, {"example.com/mine": "1"}, 201),
        (ALICE, None, 201),
        (SCHEDULER, {ALLOCATED: "GPU-1,NVIDIA,1024,0:;", keys.BIND_PHASE: "allocating"}, 201),
    ],
)
async def test_who_binds_with_an_assignment(api: Api, user: str, annotations: dict[str, str] | None, wanted: int) -> None:
    pod = await api.pod()
    name = pod.rpartition("/")[2]
    assert await api.create(user, f"{pod}/binding", a_binding(name, annotations)) == wanted
    if wanted == FORBIDDEN:
        assert await api.create(user, "/api/v1/namespaces/default/bindings", a_binding(name, annotations)) == wanted


@pytest.mark.parametrize(
    ("user", "changes", "wanted"),
    [
        (ALICE, {NVIDIA: ":"}, FORBIDDEN),
        (ALICE, {NVIDIA: None}, FORBIDDEN),
        (ALICE, {keys.handshake("nvidia"): "Reported 2030-01-01 00:00:00"}, FORBIDDEN),
        (ALICE, {keys.NODE_LOCK: "2030-01-01T00:00:00Z,default,p"}, FORBIDDEN),
        (AGENT, {keys.ALLOCATION_MODE: "cdi"}, FORBIDDEN),
        (ALICE, {keys.DEVICE_CORDON: "GPU-1"}, 200),
        (SCHEDULER, {keys.NODE_LOCK: "2030-01-01T00:00:00Z,default,p"}, 200),
        (SCHEDULER, {NVIDIA: ":"}, FORBIDDEN),
        (SCHEDULER, {"example.com/mine": "1"}, FORBIDDEN),
        (REGISTRY, {NVIDIA: "GPU-2,10,1,100,T,0,true:", keys.handshake("nvidia"): "Requesting_2030-01-01 00:00:00"}, 200),
        (REGISTRY, {keys.NODE_LOCK: None}, 200),
        (REGISTRY, {keys.DEVICE_CORDON: "GPU-1"}, FORBIDDEN),
    ],
)
async def test_who_changes_a_nodes_records(api: Api, user: str, changes: dict[str, str | None], wanted: int) -> None:
    path = await api.node({NVIDIA: "GPU-1,10,1,100,T,0,true:", keys.NODE_LOCK: "2029-01-01T00:00:00Z,default,q"})
    assert await api.call(user, "PATCH", path, annotated(changes)) == wanted


@pytest.mark.parametrize("user", [SCHEDULER, REGISTRY])
@pytest.mark.parametrize("change", [{"spec": {"unschedulable": True}}, {"metadata": {"labels": {"gpu": "on"}}}])
async def test_our_services_change_nothing_else_of_a_node(api: Api, user: str, change: dict[str, Any]) -> None:
    assert await api.call(user, "PATCH", await api.node(), change) == FORBIDDEN


async def test_a_nodes_heartbeat_passes(api: Api) -> None:
    path = await api.node({NVIDIA: ":"})
    heartbeat = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert await api.call("system:node:x", "PATCH", f"{path}/status", heartbeat) == 200
    assert await api.call("system:node:x", "PATCH", f"{path}/status", annotated({NVIDIA: ""})) == FORBIDDEN


async def test_who_is_named_writes_what_he_is_named_for(api: Api) -> None:
    await api.let_write(f"{{'operators': ['{ALICE}'], 'DCU': ['{PLUGIN}']}}")
    path = await api.node()
    assert await api.call(PLUGIN, "PATCH", path, annotated({DCU: ":", keys.handshake("dcu"): "Reported now"})) == 200
    assert await api.call(PLUGIN, "PATCH", path, annotated({NVIDIA: ":"})) == FORBIDDEN
    assert await api.call(ALICE, "PATCH", path, annotated({NVIDIA: ":", keys.NODE_LOCK: None})) == 200
    pod = await api.pod({"hami.io/dcu-devices-to-allocate": ";", TO_ALLOCATE: ";"})
    assert await api.call(PLUGIN, "PATCH", pod, annotated({"hami.io/dcu-devices-to-allocate": "", keys.BIND_PHASE: "success"})) == 200
    assert await api.call(PLUGIN, "PATCH", pod, annotated({TO_ALLOCATE: ""})) == FORBIDDEN
    assert await api.call("bob", "PATCH", pod, annotated({TO_ALLOCATE: ""})) == FORBIDDEN

import asyncio
import contextlib
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hami_protocol.devices import PodRef
from hami_protocol.kubernetes import Pod
from hami_rig.apiserver.server import ApiServer
from hami_runtime.clock import SystemClock
from hami_runtime.kube import http
from hami_runtime.kube.access import AccessReviewer, ResourceAccess
from hami_runtime.kube.cluster import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    AlreadyExists,
    Body,
    Change,
    ChangeType,
    Cluster,
    Conflict,
    Invalid,
    Kind,
    NotFound,
    WatchExpired,
)
from hami_runtime.kube.events import SIMILAR, EventRecorder
from hami_runtime.kube.informer import Informer
from hami_runtime.kube.lease import LeaderElector
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane

from .conftest import a_namespace

CLOCK = SystemClock()
SERVICE_ACCOUNTS: Kind[dict[str, Any]] = Kind(api_version="v1", kind="ServiceAccount", plural="serviceaccounts", namespaced=True, type=dict)


def a_pod(name: str, **metadata: Any) -> Body:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}


def ref(pod: Pod) -> PodRef:
    return PodRef(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid)


async def seen(changes: AsyncIterator[Change[Pod]], count: int) -> list[tuple[str, str]]:
    """The next changes, bookmarks aside, as type and name."""
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            change = await anext(changes)
            if change.object is not None:
                found.append((change.type.value, change.object.metadata.name))
    return found


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.01)


class ClusterContract(ABC):
    """What every cluster does. ``close_streams`` ends all watches; ``forget_history`` makes old versions expire."""

    binding_labels = True
    """Whether a Binding's labels reach the pod: servers from 1.35 on do that."""

    @abstractmethod
    async def close_streams(self, cluster: Cluster) -> None: ...

    @abstractmethod
    async def forget_history(self) -> None: ...

    # Objects

    async def test_what_is_created_can_be_read(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.create(PODS, a_pod("p", labels={"app": "a"}), namespace=namespace)
        assert made.metadata.uid
        found = await cluster.get(PODS, "p", namespace=namespace)
        assert (found.metadata.uid, found.metadata.labels, found.spec.containers[0].image) == (made.metadata.uid, {"app": "a"}, "busybox")

    async def test_a_name_is_taken_once(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(PODS, a_pod("p"), namespace=namespace)
        with pytest.raises(AlreadyExists, match="already exists"):
            await cluster.create(PODS, a_pod("p"), namespace=namespace)

    async def test_what_is_not_there_is_not_found(self, cluster: Cluster, namespace: str) -> None:
        with pytest.raises(NotFound, match="not found"):
            await cluster.get(PODS, "p", namespace=namespace)
        with pytest.raises(NotFound):
            await cluster.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
        with pytest.raises(NotFound):
            await cluster.delete(PODS, "p", namespace=namespace)

    async def test_a_body_without_a_name_is_invalid(self, cluster: Cluster, namespace: str) -> None:
        with pytest.raises(Invalid):
            await cluster.create(PODS, {"metadata": {}, "spec": a_pod("p")["spec"]}, namespace=namespace)

    async def test_lists_choose_by_labels_and_fields(self, cluster: Cluster, namespace: str) -> None:
        for name, app in (("p1", "a"), ("p2", "b"), ("p3", "a")):
            await cluster.create(PODS, a_pod(name, labels={"app": app}), namespace=namespace)
        assert [pod.metadata.name for pod in (await cluster.list(PODS, namespace=namespace)).items] == ["p1", "p2", "p3"]
        assert [pod.metadata.name for pod in (await cluster.list(PODS, namespace=namespace, labels="app=a")).items] == ["p1", "p3"]
        chosen = await cluster.list(PODS, namespace=namespace, fields="metadata.name=p2")
        assert [pod.metadata.name for pod in chosen.items] == ["p2"]
        everywhere = await cluster.list(PODS, labels="app=b")
        assert ("p2", namespace) in [(pod.metadata.name, pod.metadata.namespace) for pod in everywhere.items]

    async def test_objects_without_a_type_of_ours_are_dicts(self, cluster: Cluster, namespace: str) -> None:
        body = {"metadata": {"name": "e"}, "involvedObject": {"namespace": namespace, "name": "p"}, "reason": "Tested", "type": "Normal"}
        await cluster.create(EVENTS, body, namespace=namespace)
        (found,) = (await cluster.list(EVENTS, namespace=namespace)).items
        assert (found["metadata"]["name"], found["reason"]) == ("e", "Tested")

    # Patches

    async def test_a_patch_merges_and_null_removes(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(PODS, a_pod("p", annotations={"stays": "1", "goes": "2"}), namespace=namespace)
        body = {"metadata": {"annotations": {"goes": None, "comes": "3"}}}
        patched = await cluster.patch(PODS, "p", body, namespace=namespace)
        assert patched.metadata.annotations == {"stays": "1", "comes": "3"}

    async def test_a_patch_for_another_uid_or_version_is_a_conflict(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.create(PODS, a_pod("p"), namespace=namespace)
        body = {"metadata": {"annotations": {"a": "1"}}}
        with pytest.raises(Conflict):
            await cluster.patch(PODS, "p", body, namespace=namespace, uid="00000000-0000-4000-8000-000000000000")
        patched = await cluster.patch(
            PODS, "p", body, namespace=namespace, uid=made.metadata.uid, resource_version=made.metadata.resource_version
        )
        assert patched.metadata.annotations == {"a": "1"}
        other = {"metadata": {"annotations": {"a": "2"}}}
        with pytest.raises(Conflict):
            await cluster.patch(PODS, "p", other, namespace=namespace, resource_version=made.metadata.resource_version)

    async def test_a_status_is_patched_apart(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(PODS, a_pod("p"), namespace=namespace)
        patched = await cluster.patch(PODS, "p", {"status": {"message": "waiting"}}, namespace=namespace, subresource="status")
        assert patched.status.message == "waiting"
        untouched = await cluster.patch(PODS, "p", {"status": {"message": "no"}}, namespace=namespace)
        assert untouched.status.message == "waiting"

    async def test_conditions_are_set_each_by_its_type(self, cluster: Cluster, namespace: str) -> None:
        pod = ref(await cluster.create(PODS, a_pod("p"), namespace=namespace))
        await cluster.patch_conditions(pod, [{"type": "hami.io/A", "status": "False"}, {"type": "hami.io/B", "status": "True"}])
        await cluster.patch_conditions(pod, [{"type": "hami.io/A", "status": "True", "reason": "Woken"}])
        conditions = (await cluster.get(PODS, "p", namespace=namespace)).status.conditions or ()
        found = {each.type: (each.status, each.reason) for each in conditions if each.type.startswith("hami.io/")}
        assert found == {"hami.io/A": ("True", "Woken"), "hami.io/B": ("True", None)}
        other = PodRef(namespace=namespace, name="p", uid="00000000-0000-4000-8000-000000000000")
        with pytest.raises(Conflict):
            await cluster.patch_conditions(other, [{"type": "hami.io/A", "status": "False"}])

    async def test_a_replacement_for_an_old_version_is_a_conflict(self, cluster: Cluster, namespace: str) -> None:
        lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 4}}
        made = await cluster.create(LEASES, lease, namespace=namespace)

        def body(holder: str) -> Body:
            metadata = {"name": "l", "namespace": namespace, "resourceVersion": made.metadata.resource_version}
            return {"metadata": metadata, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 4}}

        assert (await cluster.replace(LEASES, "l", body("b"), namespace=namespace)).spec.holder_identity == "b"
        with pytest.raises(Conflict):
            await cluster.replace(LEASES, "l", body("c"), namespace=namespace)

    async def test_a_deletion_is_for_one_uid(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.create(PODS, a_pod("p"), namespace=namespace)
        with pytest.raises(Conflict):
            await cluster.delete(PODS, "p", namespace=namespace, uid="00000000-0000-4000-8000-000000000000")
        await cluster.delete(PODS, "p", namespace=namespace, uid=made.metadata.uid, grace_seconds=0)
        with pytest.raises(NotFound):
            await cluster.get(PODS, "p", namespace=namespace)

    # Bindings

    async def test_a_binding_brings_annotations_and_labels_in_one_write(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.create(PODS, a_pod("p", annotations={"mine": "1", "hami.io/vgpu-node": "forged"}), namespace=namespace)
        annotations, labels = {"hami.io/vgpu-node": "n1", "hami.io/bind-phase": "allocating"}, {"hami.io/vgpu-node": "n1"}
        async with cluster.watch(PODS, since=made.metadata.resource_version, namespace=namespace) as changes:
            await cluster.bind(ref(made), "n1", annotations=annotations, labels=labels)
            async with asyncio.timeout(20):
                change = await anext(changes)
        assert change.object is not None
        assert change.object.spec.node_name == "n1"
        assert change.object.metadata.annotations == {"mine": "1", **annotations}
        assert ("n1" in change.object.metadata.labels.values()) is self.binding_labels

    async def test_a_pod_is_bound_once(self, cluster: Cluster, namespace: str) -> None:
        pod = ref(await cluster.create(PODS, a_pod("p"), namespace=namespace))
        await cluster.bind(pod, "n1", annotations={}, labels={})
        with pytest.raises(Conflict):
            await cluster.bind(pod, "n2", annotations={"a": "1"}, labels={})
        found = await cluster.get(PODS, "p", namespace=namespace)
        assert (found.spec.node_name, found.metadata.annotations) == ("n1", {})

    async def test_a_binding_is_for_one_uid_and_version(self, cluster: Cluster, namespace: str) -> None:
        made = await cluster.create(PODS, a_pod("p"), namespace=namespace)
        other = PodRef(namespace=namespace, name="p", uid="00000000-0000-4000-8000-000000000000")
        with pytest.raises(Conflict):
            await cluster.bind(other, "n1", annotations={}, labels={})
        await cluster.patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, namespace=namespace)
        with pytest.raises(Conflict):
            await cluster.bind(ref(made), "n1", annotations={}, labels={}, resource_version=made.metadata.resource_version)
        gone = PodRef(namespace=namespace, name="gone", uid=made.metadata.uid)
        with pytest.raises(NotFound):
            await cluster.bind(gone, "n1", annotations={}, labels={})

    async def test_an_eviction_is_for_one_uid(self, cluster: Cluster, namespace: str) -> None:
        pod = ref(await cluster.create(PODS, a_pod("p"), namespace=namespace))
        with pytest.raises(Conflict):
            await cluster.evict(PodRef(namespace=namespace, name="p", uid="00000000-0000-4000-8000-000000000000"))
        await cluster.evict(pod)
        with pytest.raises(NotFound):
            await cluster.get(PODS, "p", namespace=namespace)

    # Watches

    async def test_a_watch_goes_on_from_a_list(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(PODS, a_pod("before"), namespace=namespace)
        listing = await cluster.list(PODS, namespace=namespace)
        await cluster.create(PODS, a_pod("between"), namespace=namespace)
        async with cluster.watch(PODS, since=listing.resource_version, namespace=namespace) as changes:
            await cluster.create(PODS, a_pod("after"), namespace=namespace)
            await cluster.patch(PODS, "before", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
            await cluster.delete(PODS, "between", namespace=namespace)
            wanted = [("ADDED", "between"), ("ADDED", "after"), ("MODIFIED", "before")]
            assert await seen(changes, 3) == wanted
            while (last := (await seen(changes, 1))[0]) == ("MODIFIED", "between"):  # a real server may mark it first
                continue
            assert last == ("DELETED", "between")

    async def test_a_watch_can_be_resumed_where_it_ended(self, cluster: Cluster, namespace: str) -> None:
        since = (await cluster.list(PODS, namespace=namespace)).resource_version
        for name in ("p1", "p2"):
            await cluster.create(PODS, a_pod(name), namespace=namespace)
        async with cluster.watch(PODS, since=since, namespace=namespace) as changes:
            first = await anext(changes)
        async with cluster.watch(PODS, since=first.resource_version, namespace=namespace) as changes:
            assert await seen(changes, 1) == [("ADDED", "p2")]

    async def test_an_object_that_stops_to_match_is_deleted_for_the_watcher(self, cluster: Cluster, namespace: str) -> None:
        since = (await cluster.list(PODS, namespace=namespace)).resource_version
        async with cluster.watch(PODS, since=since, namespace=namespace, labels="watched=yes") as changes:
            await cluster.create(PODS, a_pod("p"), namespace=namespace)
            await cluster.patch(PODS, "p", {"metadata": {"labels": {"watched": "yes"}}}, namespace=namespace)
            await cluster.patch(PODS, "p", {"metadata": {"labels": {"watched": None}}}, namespace=namespace)
            assert await seen(changes, 2) == [("ADDED", "p"), ("DELETED", "p")]

    async def test_the_server_may_end_a_watch(self, cluster: Cluster, namespace: str) -> None:
        since = (await cluster.list(PODS, namespace=namespace)).resource_version
        async with cluster.watch(PODS, since=since, namespace=namespace) as changes:
            await self.close_streams(cluster)
            async with asyncio.timeout(20):
                assert [change async for change in changes if change.object is not None] == []

    async def test_a_version_that_is_no_longer_kept_has_expired(self, cluster: Cluster, namespace: str) -> None:
        await cluster.create(PODS, a_pod("p"), namespace=namespace)
        await cluster.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
        await self.forget_history()

        async def watch_from_the_first_version() -> None:
            async with asyncio.timeout(20), cluster.watch(PODS, since="1", namespace=namespace) as changes:
                await anext(changes)

        with pytest.raises(WatchExpired):
            await watch_from_the_first_version()

    # What is built upon it

    async def test_an_informer_survives_streams_that_end_and_versions_that_expire(self, cluster: Cluster, namespace: str) -> None:
        informer = Informer(cluster, PODS, namespace=namespace, clock=CLOCK)
        told: list[tuple[str, str]] = []
        informer.subscribe(
            lambda old, new: told.append(("gone", old.metadata.name) if new is None and old else ("here", new.metadata.name))
        )  # type: ignore[union-attr]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run(stop))
            await cluster.create(PODS, a_pod("p1"), namespace=namespace)
            await eventually(lambda: ("here", "p1") in told)
            await self.close_streams(cluster)
            await cluster.create(PODS, a_pod("p2"), namespace=namespace)
            await eventually(lambda: ("here", "p2") in told)
            await self.forget_history()
            await cluster.delete(PODS, "p1", namespace=namespace, grace_seconds=0)
            await self.close_streams(cluster)
            await eventually(lambda: ("gone", "p1") in told)
            await eventually(lambda: informer.connected)
            assert set(informer.objects) == {(namespace, "p2")}
            stop.set()

    async def test_of_two_electors_one_leads_and_the_other_follows_on(self, cluster: Cluster, namespace: str) -> None:
        def elector(identity: str) -> LeaderElector:
            return LeaderElector(
                cluster, CLOCK, name="l", namespace=namespace, identity=identity, lease_seconds=2, renew_seconds=1, retry_seconds=0.1
            )

        first, second = elector("first"), elector("second")
        stop_first, stop_second = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(first.run(stop_first))
            await first.wait_leading()
            group.create_task(second.run(stop_second))
            await eventually(lambda: second.leader_identity == "first")
            assert not second.is_leader
            stop_first.set()
            async with asyncio.timeout(20):
                await second.wait_leading()
            assert not first.is_leader
            stop_second.set()
        lease = await cluster.get(LEASES, "l", namespace=namespace)
        assert (lease.spec.holder_identity or "", lease.spec.lease_transitions) == ("", 1)

    async def test_repeated_events_are_counted_and_similar_ones_combined(self, cluster: Cluster, namespace: str) -> None:
        pod = ref(await cluster.create(PODS, a_pod("p"), namespace=namespace))
        recorder = EventRecorder(cluster, CLOCK, "hami-test")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(recorder.run(stop))
            for _ in range(3):
                recorder.record(pod, "Warning", "FilteringFailed", "no card has 16384 MiB free")
            for n in range(SIMILAR + 3):
                recorder.record(pod, "Normal", "Placed", f"on card {n}")
            await eventually(lambda: not recorder.pending)
            stop.set()
        events = (await cluster.list(EVENTS, namespace=namespace)).items
        failed = [event for event in events if event["reason"] == "FilteringFailed"]
        placed = [event for event in events if event["reason"] == "Placed"]
        assert [(event["count"], event["type"], event["involvedObject"]["uid"]) for event in failed] == [(3, "Warning", pod.uid)]
        assert len(placed) == SIMILAR + 1
        (combined,) = [event for event in placed if event["message"].startswith("(combined from similar events): ")]
        assert (combined["count"], combined["message"].rpartition(" ")[2]) == (3, str(SIMILAR + 2))

    async def test_a_node_has_events_too(self, cluster: Cluster, namespace: str) -> None:
        node = f"n-{secrets.token_hex(4)}"
        await cluster.create(NODES, {"metadata": {"name": node}})
        recorder = EventRecorder(cluster, CLOCK, "hami-test")
        recorder.record(node, "Warning", "RecordUnreadable", "x" * 3000)
        stop = asyncio.Event()
        stop.set()
        await recorder.run(stop)
        events = (await cluster.list(EVENTS, namespace="default", fields=f"involvedObject.name={node}")).items
        assert [(event["involvedObject"]["kind"], event["reason"], len(event["message"])) for event in events] == [
            ("Node", "RecordUnreadable", 1024)
        ]
        await cluster.delete(NODES, node)

    async def test_nobody_gets_in_without_a_token(self, cluster: Cluster, namespace: str) -> None:
        reviewer = AccessReviewer(cluster, CLOCK)
        assert await reviewer.user_of("") is None


class LocalContract(ClusterContract):
    """What can only be asked of servers that we hold in our hands: a token is its user's name."""

    async def test_a_token_has_a_user_and_a_user_rights(self, cluster: Cluster) -> None:
        reviewer = AccessReviewer(cluster, CLOCK)
        user = await reviewer.user_of("jane")
        assert user is not None
        assert user.name == "jane"
        assert await reviewer.may(user, ResourceAccess(verb="get", resource="pods", namespace="default", name="p"))


class HttpContract(ClusterContract):
    """What can only be asked where there are watches that have a time to end."""

    async def test_bookmarks_move_the_version_on(self, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http, "_WATCH_SECONDS", (4, 4))  # a real server sends one each minute, and one two seconds before the end
        since = (await cluster.list(PODS, namespace=namespace)).resource_version
        async with cluster.watch(PODS, since=since, namespace=namespace, labels="none=such") as changes:
            made = await cluster.create(PODS, a_pod("p"), namespace=namespace)
            async with asyncio.timeout(20):
                while int((change := await anext(changes)).resource_version) < int(made.metadata.resource_version):
                    assert change.object is None
            assert (change.type, change.object) == (ChangeType.BOOKMARK, None)


class TestMemoryCluster(LocalContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return ObjectStore(now=lambda: datetime.now(UTC), rng=random.Random(1))

    @pytest.fixture
    def cluster(self, store: ObjectStore) -> MemoryCluster:
        self._store = store
        return MemoryCluster(store)

    async def close_streams(self, cluster: Cluster) -> None:
        assert isinstance(cluster, MemoryCluster)
        cluster.close_watches()

    async def forget_history(self) -> None:
        self._store.compact()


class TestHttpCluster(HttpContract, LocalContract):
    @pytest.fixture
    def cluster(self, server: ApiServer, http_cluster: http.HttpCluster) -> http.HttpCluster:
        self._server = server
        return http_cluster

    async def close_streams(self, cluster: Cluster) -> None:
        self._server._watches.end_all()

    async def forget_history(self) -> None:
        self._server.store.compact()


@pytest.mark.cluster
@pytest.mark.asyncio(loop_scope="session")
class TestRealCluster(HttpContract):
    binding_labels = building.minor(building.version()) >= 35

    @pytest_asyncio.fixture(loop_scope="session")
    async def cluster(self, real_kubeconfig: Path, real_plane: ControlPlane | None) -> AsyncIterator[Cluster]:
        self._plane = real_plane
        async with http.connect(str(real_kubeconfig), user_agent="hami-test") as cluster:
            yield cluster

    @pytest_asyncio.fixture(loop_scope="session")
    async def namespace(self, cluster: Cluster) -> AsyncIterator[str]:
        async with a_namespace(cluster) as name:
            with contextlib.suppress(AlreadyExists):  # pods need it; a controller makes it too, when it comes to it
                await cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
            yield name

    async def close_streams(self, cluster: Cluster) -> None:
        assert isinstance(cluster, http.HttpCluster)
        cluster.close_watches()

    async def forget_history(self) -> None:
        """A real server keeps in memory what has happened since its start."""
        if self._plane is not None:
            await self._plane.restart_api_server()

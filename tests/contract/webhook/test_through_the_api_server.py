"""The whole way of a pod through an API server that calls the webhook: what users and our own services get to see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami_protocol import keys
from hami_protocol.devices import PodRef
from hami_rig.apiserver import ApiServer
from hami_rig.apiserver.kubeconfig import kubeconfig
from hami_runtime.kube.cluster import NODES, PODS, QUOTAS, Forbidden, Invalid
from hami_runtime.kube.http import HttpCluster, connect
from hami_runtime.kube.store import ObjectStore

from .conftest import SCHEDULER, FixedClock, a_pod, a_replica

ASSIGNED = {keys.ASSIGNED_NODE: "n1", keys.BIND_PHASE: "allocating"}


class Site:
    """An API server with the webhook, and who talks to it."""

    def __init__(self, jane: HttpCluster, scheduler: HttpCluster) -> None:
        self.jane = jane
        self.scheduler = scheduler

    async def share(self, name: str, **limits: str) -> PodRef:
        body = a_pod(**limits)
        body["metadata"]["name"] = name
        pod = await self.jane.create(PODS, body, namespace="default")
        return PodRef(namespace="default", name=name, uid=pod.metadata.uid)


@pytest.fixture
async def site(tmp_path: Path, store: ObjectStore, clock: FixedClock) -> AsyncIterator[Site]:
    @asynccontextmanager
    async def client(url: str, token: str) -> AsyncIterator[HttpCluster]:
        path = tmp_path / f"kubeconfig-{token.rpartition(':')[2] or 'admin'}"
        path.write_text(kubeconfig(url, token))
        async with connect(str(path)) as cluster:
            yield cluster

    async with (
        ApiServer() as server,
        client(server.url, "") as admin,
        client(server.url, "system:jane") as jane,
        client(server.url, SCHEDULER) as scheduler,
        a_replica(store, clock, cluster=admin),
    ):
        await admin.create(NODES, {"metadata": {"name": "n1"}})
        yield Site(jane, scheduler)


async def test_a_share_is_given_to_our_scheduler(site: Site) -> None:
    await site.share("p1", gpu="1", gpumem="3000")
    pod = await site.jane.get(PODS, "p1", namespace="default")
    assert pod.spec.scheduler_name == "hami-scheduler"


async def test_what_cannot_be_read_is_refused_with_the_fields_path(site: Site) -> None:
    with pytest.raises(Invalid, match=r"spec.containers\[0\].resources.limits\[nvidia.com/gpumem-percentage\]: '101'"):
        await site.share("p1", gpu="1", **{"gpumem-percentage": "101"})


async def test_a_forged_assignment_is_refused_at_creation_and_later(site: Site) -> None:
    body = a_pod()
    body["metadata"]["annotations"] = ASSIGNED
    with pytest.raises(Forbidden, match="is written by the scheduler and the registry alone"):
        await site.jane.create(PODS, body, namespace="default")
    await site.share("p1", gpu="1")
    with pytest.raises(Forbidden, match="is written by the scheduler and the registry alone"):
        await site.jane.patch(PODS, "p1", {"metadata": {"annotations": ASSIGNED}}, namespace="default")
    await site.jane.patch(PODS, "p1", {"metadata": {"annotations": {"note": "mine"}}}, namespace="default")


async def test_only_the_scheduler_binds_with_an_assignment(site: Site) -> None:
    pod = await site.share("p1", gpu="1")
    with pytest.raises(Forbidden, match="is written by the scheduler"):
        await site.jane.bind(pod, "n1", annotations=ASSIGNED, labels={})
    await site.scheduler.bind(pod, "n1", annotations=ASSIGNED, labels={keys.ASSIGNED_NODE: "n1"})
    bound = await site.jane.get(PODS, "p1", namespace="default")
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations[keys.BIND_PHASE] == "allocating"


async def test_a_quota_holds_from_its_creation_on(site: Site) -> None:
    await site.share("p1", gpu="1", gpumem="3000")
    hard = {"limits.nvidia.com/gpumem": "1000"}
    await site.jane.create(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, namespace="default")
    refusal = ""
    for attempt in range(100):  # until the webhook has seen it
        try:
            await site.share(f"q{attempt}", gpu="1", gpumem="2000")
        except Forbidden as exc:
            refusal = str(exc)
            break
    assert "exceeding resource quota: q, limits.nvidia.com/gpumem: asks 2000 MiB" in refusal

"""A webhook as it is deployed: HTTPS with its own certificate, over the cluster in memory."""

from __future__ import annotations

import asyncio
import io
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import msgspec
import pytest

from hami_devices.catalog import Catalog
from hami_runtime.http import serve_app
from hami_runtime.kube.cluster import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_webhook.http import Reviews
from hami_webhook.keeper import CertificateKeeper, server_context
from hami_webhook.registration import Endpoint, configuration
from hami_webhook.review import Policy
from hami_webhook.service import Webhook
from hami_webhook.stores import SecretStore

SCHEDULER = "system:serviceaccount:kube-system:hami-scheduler"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FixedClock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.passed_seconds = 0.0

    def monotonic(self) -> float:
        return self.passed_seconds

    def utc(self) -> datetime:
        return self.now

    def advance(self, days: float) -> None:
        self.now += timedelta(days=days)
        self.passed_seconds += days * 86400


def a_store() -> ObjectStore:
    return ObjectStore(now=lambda: NOW, rng=random.Random(7))


@pytest.fixture
def store() -> ObjectStore:
    return a_store()


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


class Served:
    """One replica that listens."""

    def __init__(self, url: str, keeper: CertificateKeeper, context: ssl.SSLContext, cluster: MemoryCluster) -> None:
        self.url = url
        self.keeper = keeper
        self.context = context
        self.cluster = cluster

    async def authorities(self, kind: Any = MUTATING_WEBHOOKS, name: str = "vgpu.hami.io") -> bytes:
        found = await self.cluster.get(kind, name)
        return msgspec.convert(found["webhooks"][0]["clientConfig"]["caBundle"], bytes)

    @asynccontextmanager
    async def trusting(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A client that trusts what the configuration object says, and nothing else, as the API server does."""
        trust = ssl.create_default_context(cadata=(await self.authorities()).decode())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            yield session

    async def post(
        self, session: aiohttp.ClientSession, body: bytes | dict[str, Any], path: str = "/webhook", **headers: str
    ) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json", **headers}
        async with session.post(self.url + path, data=io.BytesIO(data), headers=sent) as response:
            return response.status, await response.read()


@asynccontextmanager
async def a_replica(store: ObjectStore, clock: FixedClock, *, cluster: Any = None, **options: Any) -> AsyncIterator[Served]:
    catalog = Catalog()
    cluster = cluster or MemoryCluster(store)
    context = server_context()
    webhook = Webhook(cluster, clock, catalog, Policy(trusted_users=frozenset({SCHEDULER})))
    stop = asyncio.Event()
    app = Reviews(webhook.reviewer, **options).application()
    async with serve_app(app, ssl=context, shutdown_seconds=0.1) as port:
        endpoint = Endpoint(url=f"https://127.0.0.1:{port}")

        def configurations(authorities: bytes) -> list[Any]:
            return [
                (
                    kind,
                    configuration(
                        side,  # type: ignore[arg-type]
                        endpoint,
                        authorities,
                        resources=catalog.managed_resources,
                        system_keys=catalog.system_pod_keys,
                        trusted_users=[SCHEDULER],
                        failure_policy="Fail",
                        all_pods=False,
                    ),
                )
                for side, kind in (("Mutating", MUTATING_WEBHOOKS), ("Validating", VALIDATING_WEBHOOKS))
            ]

        secret = SecretStore(cluster, namespace="kube-system", name="hami-webhook-tls")
        keeper = CertificateKeeper(context, secret, cluster, clock, names=endpoint.names, configurations=configurations)
        following = asyncio.create_task(webhook.run(stop))
        await keeper.refresh()
        await webhook._quotas.synced.wait()
        try:
            yield Served(endpoint.url, keeper, context, cluster)
        finally:
            stop.set()
            await following


@pytest.fixture
async def served(store: ObjectStore, clock: FixedClock) -> AsyncIterator[Served]:
    async with a_replica(store, clock) as replica:
        yield replica


def a_review(pod: Any, *, version: str = "v1", **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions"},
            **request,
        },
    }


def a_pod(**limits: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p1"},
        "spec": {
            "containers": [{"name": "main", "image": "pause", "resources": {"limits": {f"nvidia.com/{k}": v for k, v in limits.items()}}}]
        },
    }

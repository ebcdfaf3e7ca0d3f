"""An agent's way onto the production overlay's bus: TLS with the Secret of another namespace, which it reads through the API server."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_node_agent import bus_certificate
from hami_node_agent.bus_certificate import BusCertificate
from hami_runtime.bus import jetstream
from hami_runtime.clock import SystemClock
from hami_runtime.kube.cluster import NAMESPACES, SECRETS
from hami_runtime.kube.memory import MemoryCluster
from hami_runtime.kube.store import ObjectStore
from hami_runtime.virtual import EPOCH
from tests.contract.manifests.production import KUSTOMIZE, ProductionBus, production_bus

NAMESPACE, NAME = "hami-system", "hami-node-agent-nats-tls"


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[ProductionBus]:
    async with production_bus(tmp_path, "nats-accounts") as bus:
        yield bus


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(ObjectStore(now=lambda: EPOCH, rng=random.Random(1)))


@pytest.fixture(autouse=True)
async def namespace(cluster: MemoryCluster) -> None:
    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})


def a_secret(bus: ProductionBus, user: str) -> dict[str, Any]:
    """As cert-manager writes it for a Certificate."""
    certificate, key = bus.issue(user)
    files = {"ca.crt": bus.authority.certificate, "tls.crt": certificate, "tls.key": key}
    return {
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "type": "kubernetes.io/tls",
        "data": {file: base64.b64encode(path.read_bytes()).decode() for file, path in files.items()},
    }


@pytest.mark.nats
async def test_an_agent_connects_once_its_certificate_has_been_issued(
    bus: ProductionBus, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_certificate, "RETRY_SECONDS", 0.01)
    certificate, stop = BusCertificate(cluster, f"{NAMESPACE}/{NAME}", SystemClock()), asyncio.Event()
    async with asyncio.TaskGroup() as group, jetstream.connect(bus.server.url, name="agent", tls=certificate.context) as agent:
        group.create_task(certificate.run(stop))
        while cluster.calls["get", "secrets"] < 2:  # noqa: ASYNC110 - a counter sets no event
            await asyncio.sleep(0.01)
        assert not agent.connected
        await cluster.create(SECRETS, a_secret(bus, "hami-node-agent"), namespace=NAMESPACE)
        async with asyncio.timeout(20):
            await agent.wait_connected()
        stop.set()


@pytest.mark.nats
async def test_a_renewed_certificate_is_used_and_an_unusable_one_is_not(bus: ProductionBus, cluster: MemoryCluster) -> None:
    certificate = BusCertificate(cluster, f"{NAMESPACE}/{NAME}", SystemClock())
    body = await cluster.create(SECRETS, a_secret(bus, "hami-node-agent"), namespace=NAMESPACE)
    await certificate.refresh()
    first = certificate.context()
    await certificate.refresh()
    assert certificate.context() is first
    for damaged in ({"tls.key": "!"}, {"tls.key": "bm9uZQ=="}, {"ca.crt": None}):
        data = {file: text for file, text in {**body["data"], **damaged}.items() if text is not None}
        await cluster.replace(SECRETS, NAME, {**a_secret(bus, "hami-node-agent"), "data": data}, namespace=NAMESPACE)
        await certificate.refresh()
        assert certificate.context() is first, damaged
    await cluster.replace(SECRETS, NAME, a_secret(bus, "hami-node-agent"), namespace=NAMESPACE)
    await certificate.refresh()
    assert certificate.context() is not first
    cluster.down()
    await certificate.refresh()
    certificate.context()


async def test_without_a_certificate_the_reason_names_the_secret(cluster: MemoryCluster) -> None:
    certificate = BusCertificate(cluster, f"{NAMESPACE}/{NAME}", SystemClock())
    with pytest.raises(OSError, match=f"Secret {NAMESPACE}/{NAME}: it has not been read yet"):
        certificate.context()
    await certificate.refresh()
    with pytest.raises(OSError, match=f"Secret {NAMESPACE}/{NAME}: .*not found"):
        certificate.context()


def test_the_agent_is_told_which_secret() -> None:
    patch = yaml.safe_load((KUSTOMIZE / "components/nats-accounts/node-agent.yaml").read_text())
    assert {"name": "HAMI_NATS_SECRET", "value": f"{NAMESPACE}/{NAME}"} in patch["spec"]["template"]["spec"]["containers"][0]["env"]

import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_rig.apiserver.server import ApiServer
from hami_rig.apiserver.settings import ApiServerSettings
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NAMESPACES, Cluster


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(ApiServerSettings(bookmark_seconds=0.2)) as server:
        yield server


@pytest.fixture
async def http_cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[http.HttpCluster]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig)
    async with http.connect(str(kubeconfig), user_agent="hami-test") as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def a_namespace(cluster: Cluster) -> AsyncIterator[str]:
    name = f"test-{secrets.token_hex(5)}"
    await cluster.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await cluster.delete(NAMESPACES, name)


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[str]:
    async with a_namespace(cluster) as name:
        yield name

"""One real cluster for the whole session: a node for each allocation mode, four cards each that are cut into forty shares."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hami_runtime.kube import http
from tests.cluster.harness import building
from tests.cluster.harness.installation import Installation
from tests.cluster.world import World

NODES = """
nodes:
  - name: locked
    allocation_mode: envvar
    devices: {count: 4, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}, split_count: 40}
    labels: {pool: locked}
  - name: cdi
    allocation_mode: cdi
    devices: {count: 4, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}, split_count: 40}
    labels: {pool: cdi}
"""
CARD_MIB = 32768
CARDS = 4
TEST_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real containers take their time, and the first test starts the cluster."""
    for item in items:
        if item.path.is_relative_to(building.ROOT / "tests" / "cluster"):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installation() -> AsyncIterator[Installation]:
    """HAMi on the real cluster."""
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with Installation(NODES) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def world(installation: Installation) -> AsyncIterator[World]:
    """The cluster without any pods, before and after."""
    async with http.connect(str(installation.kubeconfig)) as cluster:
        world = World(installation, cluster)
        yield world
        await world.clear()

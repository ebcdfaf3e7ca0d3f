"""One secured rig for all suites that attack it: what one of them breaks, the next one meets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from hami_rig.apiserver import kubeconfig
from hami_runtime.kube import http
from tests.e2e.conftest import World, a_pod
from tests.security.secured_rig import NODES, SecuredRig

TENANT = "system:serviceaccount:tenant:builder"


class Attacked(World):
    """The rig as one who attacks it sees it: ``cluster`` is the API server for a tenant's own user."""

    rig: SecuredRig

    async def served_as_ever(self) -> None:
        """A pod on each node is placed, granted, and runs."""
        await self.apply_again(*(a_pod(f"after-on-{node}", pool=node) for node in NODES))
        await self.running(*(f"after-on-{node}" for node in NODES))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def secured_rig() -> AsyncIterator[SecuredRig]:
    async with SecuredRig() as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def attacked(secured_rig: SecuredRig) -> AsyncIterator[Attacked]:
    """Afterwards all services are the processes that they were before, and a pod is placed, granted and released as ever."""
    path = secured_rig.folder / "tenant.kubeconfig"
    async with http.connect(str(secured_rig.kubeconfig)) as administrator:
        path.write_text(kubeconfig(World(secured_rig, administrator).api_url, TENANT))
    async with http.connect(str(path)) as cluster:
        world = Attacked(secured_rig, cluster)
        before = secured_rig.pids()
        yield world
        await world.clear()
        await world.served_as_ever()
        await world.clear()
        assert secured_rig.pids() == before
        assert all(before.values())

"""The real subject of the suites that also hold a stand-in: Kubernetes' own control plane, one for the whole session.

``HAMI_TEST_KUBECONFIG`` names another cluster in its place; it must have no scheduler that takes pods of default-scheduler.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.harness import building
from tests.cluster.harness.control_plane import ControlPlane

NAMED = "HAMI_TEST_KUBECONFIG"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_plane() -> AsyncIterator[ControlPlane | None]:
    """A real cluster without nodes; None where another is named."""
    if os.environ.get(NAMED):
        yield None
        return
    if reason := building.lacking():
        pytest.fail(f"no real Kubernetes here: {reason}", pytrace=False)
    async with ControlPlane(controllers=("*", "-node-lifecycle-controller")) as plane:  # nobody taints nodes that have no kubelet
        yield plane


@pytest.fixture(scope="session")
def real_kubeconfig(real_plane: ControlPlane | None) -> Path:
    """The kubeconfig of an administrator of the real cluster."""
    return Path(os.environ[NAMED]) if real_plane is None else real_plane.admin

"""``hami install`` at a cluster that lacks what an overlay needs: it is said first, and nothing is applied."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import World
from tests.e2e.shell import Shell

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_what_a_cluster_lacks_is_named_before_anything_is_applied(world: World) -> None:
    said = await Shell(world.rig.kubeconfig).hami("install", "--overlay", "production")
    assert said.code == 1
    assert "DaemonSet (apps)" in said.err
    assert "cert-manager: https://" in said.err
    assert "hami-system" not in await world.kubectl("get", "namespaces", "-o", "name")

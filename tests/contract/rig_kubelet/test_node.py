"""What the rig's kubelet does beside its device manager: what pods held is free that went while the whole process was away."""

from __future__ import annotations

from pathlib import Path

from hami_runtime.kube.cluster import NODES, PODS

from .conftest import FakeWorld, is_ready


async def test_the_node_is_ready_as_soon_as_it_is_there(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    async with world.running():
        node = await world.cluster.get(NODES, "n1")
    assert any(each.type == "Ready" and each.status == "True" for each in node.status.conditions or ())


async def test_what_pods_held_that_went_while_kubelet_was_away_is_free(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    async with world.running():
        for name in ("stays", "goes"):
            await world.bind(name, counts=(4,))
            await world.until(name, is_ready)
    await world.cluster.delete(PODS, "goes", namespace="default", grace_seconds=0)
    again = FakeWorld(tmp_path, world.cluster)
    async with again.running():
        await again.bind("next", counts=(4,))
        await again.until("next", is_ready)
        stays = await again.until("stays", is_ready)
        assert len(again.checkpointed()[stays.metadata.uid, "c0"]) == 4

"""What namespaces hold and may hold, as Prometheus sees it: live, by resource, memory in MiB."""

from __future__ import annotations

from typing import Any

from hami_runtime.kube import cluster as api
from hami_scheduler.metrics import QuotaCollector
from hami_scheduler.service import Scheduler
from tests.contract.scheduler.world import World, place, settle, story


def shown(scheduler: Scheduler) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(each.labels.values())[1:]: each.value for each in family.samples}
        for family in QuotaCollector(scheduler.picture).collect()
    }


async def quota(world: World, name: str, **hard: Any) -> None:
    body = {"metadata": {"name": name}, "spec": {"hard": {f"limits.nvidia.com/{key}": value for key, value in hard.items()}}}
    await world.admin.create(api.QUOTAS, {"apiVersion": "v1", "kind": "ResourceQuota", **body}, namespace="default")
    await settle()


@story
async def test_use_is_shown_with_and_without_a_limit(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        assert await place(scheduler, await world.pod("p1", gpu=1, gpumem=3000, gpucores=20)) == "n1"
        held = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 20, "nvidia.com/gpumem": 3000}
        assert shown(scheduler) == {
            "hami_resource_quota_used": {("default", name, "none"): amount for name, amount in held.items()},
            "QuotaUsed": {("default", name, "none"): amount for name, amount in held.items()},
            "hami_resource_quota_limit": {},
            "hami_resource_quota_scoped_used": {},
            "hami_resource_quota_scoped_limit": {},
        }
        await quota(world, "wide", gpumem="16Gi", gpucores="0")
        await quota(world, "narrow", gpumem="5000")
        found = shown(scheduler)
        assert found["hami_resource_quota_limit"] == {("default", "nvidia.com/gpumem"): 5000, ("default", "nvidia.com/gpucores"): 0}
        assert found["hami_resource_quota_used"] == found["QuotaUsed"]
        assert found["QuotaUsed"] == {
            ("default", "nvidia.com/gpu", "none"): 1,
            ("default", "nvidia.com/gpucores", "0"): 20,
            ("default", "nvidia.com/gpumem", "5000"): 3000,
        }


@story
async def test_a_quota_shows_without_any_use_and_one_that_cannot_be_read_shows_that_it_allows_nothing(world: World) -> None:
    async with world.scheduler() as scheduler:
        await quota(world, "odd", gpumem="1500m", gpu="4")
        assert shown(scheduler)["hami_resource_quota_limit"] == {("default", "nvidia.com/gpumem"): 0, ("default", "nvidia.com/gpu"): 4}
        assert shown(scheduler)["QuotaUsed"] == {("default", "nvidia.com/gpumem", "0"): 0, ("default", "nvidia.com/gpu", "4"): 0}


@story
async def test_a_quota_with_scopes_shows_apart_and_counts_the_pods_in_them(world: World) -> None:
    await world.node("n1")
    async with world.scheduler() as scheduler:
        spec = {"hard": {"limits.nvidia.com/gpumem": "4000"}, "scopes": ["Terminating"]}
        body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "batch"}, "spec": spec}
        await world.admin.create(api.QUOTAS, body, namespace="default")
        await settle()
        assert await place(scheduler, await world.pod("long", gpu=1, gpumem=9000)) == "n1"
        deadline = {"activeDeadlineSeconds": 60}
        assert await place(scheduler, await world.pod("short", spec=deadline, gpu=1, gpumem=3000)) == "n1"
        assert "ResourceQuotaNotFit" in await place(scheduler, await world.pod("more", spec=deadline, gpu=1, gpumem=1001))
        found = shown(scheduler)
        key = ("default", "batch", "Terminating", "nvidia.com/gpumem")
        assert found["hami_resource_quota_scoped_used"] == {key: 3000}
        assert found["hami_resource_quota_scoped_limit"] == {key: 4000}
        assert found["hami_resource_quota_limit"] == {}
        assert found["hami_resource_quota_used"]["default", "nvidia.com/gpumem", "none"] == 12000
        await world.admin.patch(api.PODS, "long", {"spec": deadline}, namespace="default")
        await settle()
        assert shown(scheduler)["hami_resource_quota_scoped_used"] == {key: 12000}
    async with world.scheduler() as scheduler:
        assert shown(scheduler)["hami_resource_quota_scoped_used"] == {key: 12000}

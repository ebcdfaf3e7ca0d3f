"""Upgrade and roll back while pods run and pods come: services of an older version and of this one work side by side on one rig."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hami_rig import profile
from hami_rig.service_settings import agent_process
from hami_runtime.kube import http
from tests.e2e.conftest import CARD_MIB, NODE_OF_EACH_MODE, World, a_pod, runs
from tests.e2e.test_faults import booked
from tests.e2e.test_high_availability import log_is_whole, until_exact
from tests.upgrade.mixed import MixedRig

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]
OLD = os.environ.get("HAMI_TEST_OLD", "")


@pytest_asyncio.fixture(loop_scope="module")
async def rig() -> AsyncIterator[MixedRig]:
    if not OLD:
        pytest.fail("HAMI_TEST_OLD: not set; accepted: the folder of an older checkout (`make upgrade-test OLD=<revision>` makes it)")
    async with MixedRig(profile.parse(NODE_OF_EACH_MODE), Path(OLD)) as running:
        yield running


async def test_services_are_upgraded_one_by_one_and_rolled_back_while_pods_run_and_come(rig: MixedRig) -> None:
    async with http.connect(str(rig.kubeconfig)) as cluster:
        world = World(rig, cluster)
        placed: list[str] = []

        async def place(step: str) -> None:
            """A pod on each node is placed and runs, and all that ran before still do."""
            names = [f"{step}-{pool}" for pool in ("locked", "cdi")]
            await world.apply_again(*(a_pod(name, mib=CARD_MIB // 16, pool=name.rpartition("-")[2]) for name in names))
            placed.extend(names)
            for pod in await world.running(*placed):
                assert world.given(pod)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{CARD_MIB // 16}m"

        assert await rig.leader(cluster, "scheduler") == "scheduler"
        assert await rig.leader(cluster, "registry") == "registry"
        await place("old")
        for step, old in (("new", False), ("back", True)):
            await rig.turn("webhook", old=old)
            await place(f"{step}-webhook")
            await rig.turn(agent_process("locked"), old=old)
            await place(f"{step}-half")
            await rig.turn(agent_process("cdi"), old=old)
            await place(f"{step}-agents")
            await rig.turn("registry", old=old)
            await place(f"{step}-registry")
            leading = await rig.leader(cluster, "scheduler")
            await rig.turn("scheduler", old=old)  # the replica of the other version takes the lease over
            await rig.work_beside("scheduler-2")
            await place(f"{step}-scheduler")
            if old:  # and back again, so that in the end the older version has had to read what the newer one wrote
                await rig.kill("scheduler-2")
                assert await rig.leader(cluster, "scheduler", other_than="scheduler-2") == "scheduler"
                await rig.work_beside("scheduler")
                await place(f"{step}-alone")
            else:
                assert await rig.leader(cluster, "scheduler", other_than=leading) == "scheduler-2"
        await until_exact(world, rig, "scheduler")
        pods = await world.running(*placed)
        assert all(runs(pod) for pod in pods)
        assert sum(booked(pods).values()) == len(pods) * CARD_MIB // 16
        await log_is_whole(world, pods)

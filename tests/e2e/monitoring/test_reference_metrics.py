"""Every metric of HAMi is shown by a running rig, under its own name and with its own labels: existing dashboards and alerts keep working."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from tests.e2e.monitoring.conftest import AGENTS, Observed

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

REFERENCE = msgspec.yaml.decode((Path(__file__).parent / "reference.yaml").read_bytes(), type=dict[str, dict[str, list[str]]])
TRIES = 100


async def shown(observed: Observed, services: list[str]) -> dict[str, set[frozenset[str]]]:
    """By name, which sets of labels there are."""
    found: dict[str, set[frozenset[str]]] = defaultdict(set)
    for service in services:
        for sample in await observed.samples(service):
            found[sample.name].add(frozenset(sample.labels))
    return found


@pytest.mark.parametrize("part", REFERENCE)
async def test_every_metric_of_the_reference_is_shown(observed: Observed, part: str) -> None:
    services = ["scheduler"] if part == "scheduler" else list(AGENTS)
    wanted = {name: frozenset(labels if name == "hami_build_info" else [*labels, "zone"]) for name, labels in REFERENCE[part].items()}
    found: dict[str, set[frozenset[str]]] = {}
    for _ in range(TRIES):  # the monitor looks every few seconds, the pod's own record follows its start
        found = await shown(observed, services)
        if wanted.keys() <= found.keys():
            break
        await asyncio.sleep(0.1)
    own = frozenset() if part == "scheduler" else frozenset({"node"})  # ours besides, on series that had no node before
    assert {name: {labels - own for labels in found.get(name, set())} for name in wanted} == {
        name: {labels - own} for name, labels in wanted.items()
    }


async def test_the_zone_of_a_card_is_the_one_that_dashboards_ask_for(observed: Observed) -> None:
    zones = {sample.labels["zone"] for sample in await observed.samples("scheduler") if "zone" in sample.labels}
    assert zones == {"vGPU"}

"""One trace leads from a pod's admission through all services to its container's start, and their logs carry its id."""

from __future__ import annotations

import asyncio
import json

import pytest

from hami_protocol import keys
from tests.e2e.monitoring.conftest import Observed

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

TRIES = 300
WAY = {
    ("hami-webhook", "admission"),
    ("hami-scheduler", "filter"),
    ("hami-scheduler", "bind"),
    ("hami-registry", "outcome"),
}
AGENT = "hami-node-agent"


@pytest.mark.parametrize(("name", "agent"), [("program", "node-agent-cdi"), ("locked", "node-agent-locked")])
async def test_one_trace_has_the_whole_way_of_a_pod(observed: Observed, name: str, agent: str) -> None:
    pod = await observed.pod(name)
    trace = pod.metadata.annotations[keys.TRACE_PARENT].split("-")[1]
    spans: set[tuple[str, str]] = set()
    for _ in range(TRIES):  # spans are sent every few seconds
        spans = observed.collector.spans[trace]
        if spans >= WAY and AGENT in {service for service, _ in spans}:
            break
        await asyncio.sleep(0.1)
    assert spans >= WAY
    assert AGENT in {service for service, _ in spans}
    for process in ("webhook", "scheduler", "registry", agent):
        lines = [line for line in observed.rig.processes[process].log.read_text().splitlines() if trace in line]
        assert any(json.loads(line).get("trace_id") == trace for line in lines), process


async def test_metrics_are_sent_too(observed: Observed) -> None:
    for process in ("webhook", "scheduler", "registry"):
        await observed.rig.processes[process].stop(grace_seconds=5)  # what is not sent yet is sent now
        await observed.rig.restart(process)
        await observed.rig.able(process)
    services = {service for service, name in observed.collector.metrics if name.startswith("hami_")}
    assert services >= {"hami-webhook", "hami-scheduler", "hami-registry"}

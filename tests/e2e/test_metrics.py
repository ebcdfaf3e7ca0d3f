"""What the services of a running rig show to Prometheus is what the page of metrics lists."""

import re

import aiohttp
import pytest

from tests.e2e.conftest import World, a_pod
from tools import metrics_page

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_every_metric_is_on_the_page(world: World) -> None:
    await world.apply(a_pod("measured", pool="cdi"))
    await world.running("measured")
    kinds = {metric.name: metric.kind for metric in metrics_page.metrics()}
    shown: dict[str, str] = {}
    async with aiohttp.ClientSession() as session:
        for name, ports in world.rig.ports.items():
            if "health" in ports:
                async with session.get(f"http://127.0.0.1:{ports['health']}/metrics") as answer:
                    found = re.findall(r"^# TYPE (\S+) (\S+)$", await answer.text(), re.MULTILINE)
                assert found, name
                shown |= dict(found)
    for name, kind in shown.items():
        assert kinds.get(name) == kind, name
    assert {"hami_leader", "hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated", "hami_agent_devices"} <= set(shown)

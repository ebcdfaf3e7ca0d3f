"""A rig in which there is something to see: shares, a program under the shim, a MIG instance, a quota, and a pod that fits nowhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest_asyncio
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hami_rig import profile
from hami_rig.supervisor import Rig
from hami_runtime.http import serve_app
from hami_runtime.kube import http
from hami_runtime.kube.cluster import Cluster
from tests.e2e.conftest import CARD_MIB, World, a_pod, waits

NODES = """
nodes:
  - name: locked
    allocation_mode: envvar
    devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}}
    labels: {pool: locked}
  - name: cdi
    allocation_mode: cdi
    devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB, memory_used_mib: 700, busy_percent: 40}}
    labels: {pool: cdi}
  - name: cut
    allocation_mode: cdi
    devices: {count: 1, mode: mig, device: {memory_mib: 40960, model: NVIDIA A100-SXM4-40GB}}
    labels: {pool: cut}
"""
AGENTS = ("node-agent-cdi", "node-agent-cut")
# Kernels for long enough to be seen by two looks of the monitor.
WORK = "vgpu-alloc --mib 300 --kernel spin_100us --hold-seconds 15; exec vgpu-alloc --mib 300 --hold-seconds -1"


class Collector:
    """What an OTLP collector is sent."""

    def __init__(self) -> None:
        self.spans: dict[str, set[tuple[str, str]]] = defaultdict(set)
        """By trace, service and name of each span."""
        self.metrics: set[tuple[str, str]] = set()
        """Service and name of each metric."""

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        """Where, as long as the context is open."""
        application = web.Application()
        application.router.add_post("/v1/traces", self._traces)
        application.router.add_post("/v1/metrics", self._metrics)
        async with serve_app(application) as port:
            yield f"http://127.0.0.1:{port}"

    async def _traces(self, request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await _body(request)).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.trace_id.hex()].add((_service(resource.resource), span.name))
        return web.Response(content_type="application/x-protobuf")

    async def _metrics(self, request: web.Request) -> web.Response:
        for resource in ExportMetricsServiceRequest.FromString(await _body(request)).resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {(_service(resource.resource), metric.name) for metric in scope.metrics}
        return web.Response(content_type="application/x-protobuf")


async def _body(request: web.Request) -> bytes:
    return await request.read()  # aiohttp has undone its compression


def _service(resource: Resource) -> str:
    return next(each.value.string_value for each in resource.attributes if each.key == "service.name")


class Observed(World):
    """A rig that is looked at from outside."""

    def __init__(self, rig: Rig, cluster: Cluster, collector: Collector) -> None:
        super().__init__(rig, cluster)
        self.collector = collector

    @property
    def metrics_urls(self) -> dict[str, str]:
        """Where each service shows its metrics."""
        return {name: f"http://127.0.0.1:{ports['health']}/metrics" for name, ports in self.rig.ports.items() if "health" in ports}

    async def page(self, name: str) -> str:
        """The metrics page of one service."""
        async with aiohttp.ClientSession() as session, session.get(self.metrics_urls[name]) as answer:
            return await answer.text()

    async def samples(self, name: str) -> list[Sample]:
        """All that one service shows."""
        return [sample for family in text_string_to_metric_families(await self.page(name)) for sample in family.samples]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def observed() -> AsyncIterator[Observed]:
    """Started once for all that look at it."""
    collector = Collector()
    async with (
        collector.listen() as url,
        Rig(profile.parse(NODES), otlp_endpoint=url) as rig,
        http.connect(str(rig.kubeconfig)) as cluster,
    ):
        world = Observed(rig, cluster, collector)
        for agent in AGENTS:  # the earlier names are shown on request
            rig.processes[agent].environ["HAMI_LEGACY_METRICS"] = "true"
            await rig.restart(agent)
            await rig.able(agent)
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "devices", "namespace": "default"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": str(6 * CARD_MIB)}},
        }
        program = a_pod("program", mib=1000, cores=30, pool="cdi", annotations={"rig.hami.io/process": "true"})
        program["spec"]["containers"][0]["command"] = ["sh", "-c", WORK]
        await world.apply(
            quota, a_pod("locked", pool="locked"), program, a_pod("cut", pool="cut", mib=4000), a_pod("big", mib=2 * CARD_MIB)
        )
        await world.running("locked", "program", "cut")
        await world.until("big", waits)
        yield world

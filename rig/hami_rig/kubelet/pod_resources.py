"""PodResources over gRPC: what containers hold, as kubelet lists it.

One ``devices`` entry per device id; app containers and sidecars, never ordinary init containers; a pod whose only request is in one of those is
not there at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import grpc.aio

from hami_node_agent.api import podresources_pb2 as pb
from hami_node_agent.api import podresources_pb2_grpc as rpc
from hami_protocol.devices import ContainerKind
from hami_protocol.pods import containers_in_order
from hami_rig.kubelet.devices import DeviceLedger
from hami_rig.scheduler.objects import SchedulingPod


class PodResources(rpc.PodResourcesListerServicer):
    """The server of one node."""

    def __init__(self, socket: Path, ledger: DeviceLedger, *, pods: Callable[[], Iterable[SchedulingPod]]) -> None:
        self.socket = socket
        self._ledger = ledger
        self._pods = pods
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening; the socket goes too."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def List(self, request: pb.ListPodResourcesRequest, context: grpc.aio.ServicerContext) -> pb.ListPodResourcesResponse:  # type: ignore[type-arg]  # noqa: N802 - the API's name
        """Everything that containers hold."""
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=[held for pod in self._pods() if (held := self._of(pod)).containers])

    async def Get(self, request: pb.GetPodResourcesRequest, context: grpc.aio.ServicerContext) -> pb.GetPodResourcesResponse:  # type: ignore[type-arg]  # noqa: N802 - the API's name
        """What one pod's containers hold."""
        for pod in self._pods():
            if (pod.metadata.namespace, pod.metadata.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=self._of(pod))
        await context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        raise AssertionError("abort does not return")

    def _of(self, pod: SchedulingPod) -> pb.PodResources:
        containers = []
        for container, kind, _ in containers_in_order(pod):
            if kind is ContainerKind.INIT:
                continue
            devices = [
                pb.ContainerDevices(resource_name=held.resource, device_ids=[each])
                for held in self._ledger.of_container(pod.metadata.uid, container.name)
                for each in held.ids
            ]
            if devices:
                containers.append(pb.ContainerResources(name=container.name, devices=devices))
        return pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace, containers=containers)

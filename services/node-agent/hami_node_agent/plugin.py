"""The device plugin as kubelet calls it: gRPC over a unix socket, values in and out of ``NodeAgent``. Decides nothing.

Every open ListAndWatch stream looks at the same state and is woken by the same bell: no stream can swallow another's news, and one that was
given up costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from hami_node_agent.agent import NodeAgent
from hami_node_agent.answers import Answer
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.api.deviceplugin_pb2_grpc import DevicePluginServicer, add_DevicePluginServicer_to_server
from hami_node_agent.bell import Bell
from hami_node_agent.discovery import AdvertisedDevice
from hami_node_agent.refusals import RefusalKind, Refused

log = structlog.get_logger()
API_VERSION = "v1beta1"
if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:  # generic in its stubs only
    Context = grpc.aio.ServicerContext


class DevicePlugin(DevicePluginServicer):
    """Kubelet's calls."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self.streams = 0
        """Open ListAndWatch calls."""
        self.stream_ended = Bell()

    async def GetDevicePluginOptions(self, request: api.Empty, context: Context) -> api.DevicePluginOptions:  # noqa: N802
        """What kubelet may call."""
        del request, context
        return options_message(self._agent)

    async def ListAndWatch(  # noqa: N802
        self, request: api.Empty, context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """The whole list now and at every change."""
        del request, context
        self._watched(1)
        sent: tuple[AdvertisedDevice, ...] | None = None
        try:
            await self._agent.acting.wait()
            await self._agent.devices.scanned.wait()
            async for _ in self._agent.devices.changed.each():
                devices = self._agent.devices.advertised
                if devices != sent:
                    sent = devices
                    yield api.ListAndWatchResponse(devices=[_device(device) for device in devices])
        finally:
            self._watched(-1)
            self.stream_ended.ring()

    def _watched(self, more: int) -> None:
        self.streams += more
        self._agent.serving.watched(self.streams)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: Context
    ) -> api.PreferredAllocationResponse:
        """A hint; an element is empty where there is none, kubelet then chooses."""
        del context
        answers = [
            api.ContainerPreferredAllocationResponse(
                deviceIDs=await self._agent.preferred(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            )
            for one in request.container_requests
        ]
        return api.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: api.AllocateRequest, context: Context) -> api.AllocateResponse:  # noqa: N802
        """One element per container; kubelet sends one."""
        try:
            answers = [_answer(await self._agent.allocate(list(one.devices_ids))) for one in request.container_requests]
        except Refused as refused:
            await context.abort(_code(refused), str(refused))
        return api.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: Context
    ) -> api.PreStartContainerResponse:
        """The container starts only after this has been answered."""
        try:
            await self._agent.pre_start(list(request.devices_ids))
        except Refused as refused:
            await context.abort(_code(refused), str(refused))
        return api.PreStartContainerResponse()


def options_message(agent: NodeAgent) -> api.DevicePluginOptions:
    """The one source of options, for kubelet's old way of asking and its new one."""
    options = agent.plugin_options
    return api.DevicePluginOptions(
        pre_start_required=options.pre_start_required, get_preferred_allocation_available=options.preferred_allocation
    )


@contextlib.asynccontextmanager
async def serving(plugin: DevicePlugin, socket: Path) -> AsyncIterator[None]:
    """Serve on ``socket`` while the context is open. A socket that is there already is a dead one."""
    _remove(socket, None)
    server = grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    if server.add_insecure_port(f"unix://{socket}") == 0:  # pragma: no cover - grpc raises in current versions
        raise OSError(f"cannot listen on {socket}")
    await server.start()
    ours = _inode(socket)
    try:
        yield
    finally:
        await server.stop(grace=None)
        _remove(socket, ours)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_ino
    return None


def _remove(path: Path, inode: int | None) -> None:
    """Remove the socket; where ``inode`` is given, only if it is still that one."""
    if inode is None or _inode(path) == inode:
        path.unlink(missing_ok=True)


def _code(refused: Refused) -> grpc.StatusCode:
    if refused.refusal.kind is RefusalKind.EMPTY_REQUEST:
        return grpc.StatusCode.INVALID_ARGUMENT
    return grpc.StatusCode.FAILED_PRECONDITION


def _device(device: AdvertisedDevice) -> api.Device:
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=device.numa)]) if device.numa is not None else None
    return api.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy", topology=topology)


def _answer(answer: Answer) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=answer.environment,
        mounts=[
            api.Mount(host_path=bind.host_path, container_path=bind.container_path, read_only=bind.read_only) for bind in answer.mounts
        ],
        devices=[api.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in answer.device_nodes],
        cdi_devices=[api.CDIDevice(name=name) for name in answer.cdi_devices],
    )

"""Device plugins over gRPC: kubelet's registration socket, and its calls to the plugins that have registered there.

Keeps ``devices.DeviceLedger`` up to date from the plugins' streams; decides nothing. As with kubelet 1.37, several plugins may serve one resource,
each on a socket of its own: calls go to the one that registered last, and each list of devices replaces the one before, whoever sent it. When a
stream ends another plugin takes the calls over; when the last one ends all devices are unhealthy, and after five minutes the resource is dropped.

A socket that is connected is refused, and as with kubelet 1.37 nobody notices its end any more: it is refused until kubelet starts again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio
import structlog

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_node_agent.api import deviceplugin_pb2_grpc as rpc
from hami_rig.kubelet.devices import AllocationRefused, DeviceLedger

log = structlog.get_logger(__name__)

API_VERSION = "v1beta1"
SOCKET_NAME = "kubelet.sock"
DIAL_SECONDS = 10.0
LOST_AFTER_SECONDS = 300.0
_RESOURCE_NAME = re.compile(r"(?=.{3,317}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"),)


class _Plugin:
    """One registered plugin."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel, options: pb.DevicePluginOptions) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.options = options
        self.stub = rpc.DevicePluginStub(channel)
        self.stream: asyncio.Task[None] | None = None
        self.unnoticed = False
        """Whether nobody looks for the end of its stream any more."""


class DevicePlugins(rpc.RegistrationServicer):
    """The registration server of one node, and everything that has registered."""

    def __init__(self, folder: Path, ledger: DeviceLedger, *, on_change: Callable[[], None]) -> None:
        self._folder = folder
        self._ledger = ledger
        self._on_change = on_change
        self._plugins: dict[str, dict[str, _Plugin]] = {}
        """By resource and socket; the last one is called."""
        self._lost: dict[str, asyncio.TimerHandle] = {}
        self._server: grpc.aio.Server | None = None

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self._folder / SOCKET_NAME

    async def start(self) -> None:
        """Remove every socket of the folder, as kubelet does, and listen."""
        for path in self._folder.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening and let go of every plugin; its socket goes too."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        for resource in list(self._plugins):
            await self._let_go(resource)
        for timer in self._lost.values():
            timer.cancel()
        self._lost.clear()
        self.socket.unlink(missing_ok=True)

    async def Register(self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext) -> pb.Empty:  # type: ignore[type-arg]  # noqa: N802 - the API's name
        """A plugin says that it is there: dial it back, ask its options and follow its devices."""
        if request.version != API_VERSION:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"requested API version {request.version!r} is not supported; supported: {API_VERSION}"
            )
        if not _RESOURCE_NAME.fullmatch(request.resource_name):
            await context.abort(grpc.StatusCode.UNKNOWN, f"the ResourceName {request.resource_name!r} is invalid")
        connected = self._plugins.get(request.resource_name, {}).get(request.endpoint)
        if connected is not None:
            connected.unnoticed = True
            await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {self._folder / request.endpoint}")
        channel = grpc.aio.insecure_channel(f"unix:{self._folder / request.endpoint}", options=_CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await channel.channel_ready()
                options = await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        except (TimeoutError, grpc.aio.AioRpcError) as exc:
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, f"the plugin at {request.endpoint} does not answer: {exc}")
        if timer := self._lost.pop(request.resource_name, None):
            timer.cancel()
        plugin = _Plugin(request.endpoint, channel, options)
        self._plugins.setdefault(request.resource_name, {})[request.endpoint] = plugin
        plugin.stream = asyncio.create_task(self._follow(request.resource_name, plugin))
        return pb.Empty()

    def needs_pre_start(self, resource: str) -> bool:
        """Whether the plugin wants to be called before each container start."""
        return resource in self._plugins and self._plugin(resource).options.pre_start_required

    async def preferred(self, resource: str, *, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """The ids that the plugin would rather see allocated; none where it has no opinion.

        Raises:
            AllocationRefused: it failed.
        """
        plugin = self._plugin(resource)
        if not plugin.options.get_preferred_allocation_available:
            return ()
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=[*available, *must_include], must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            answer = await plugin.stub.GetPreferredAllocation(request)
        except grpc.aio.AioRpcError as exc:
            raise AllocationRefused(f"device plugin GetPreferredAllocation rpc failed with err: {_error(exc)}") from exc
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        """The plugin's answer for one container, serialised.

        Raises:
            AllocationRefused: it failed, or answered nothing.
        """
        plugin = self._plugin(resource)
        try:
            answer = await plugin.stub.Allocate(pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]))
        except grpc.aio.AioRpcError as exc:
            raise AllocationRefused(_error(exc)) from exc
        if not answer.container_responses:
            raise AllocationRefused("no containers return in allocation response")
        return answer.container_responses[0].SerializeToString()

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with these ids is about to start.

        Raises:
            AllocationRefused: the start is refused.
        """
        try:
            async with asyncio.timeout(30.0):
                await self._plugin(resource).stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
        except grpc.aio.AioRpcError as exc:
            raise AllocationRefused(f"device plugin PreStartContainer rpc failed with err: {_error(exc)}") from exc
        except TimeoutError as exc:
            raise AllocationRefused("device plugin PreStartContainer rpc failed with err: context deadline exceeded") from exc

    def _plugin(self, resource: str) -> _Plugin:
        plugins = self._plugins.get(resource)
        if not plugins:
            raise AllocationRefused(f"endpoint not found in cache for a registered resource: {resource}")
        return next(reversed(plugins.values()))

    async def _follow(self, resource: str, plugin: _Plugin) -> None:
        try:
            async for message in plugin.stub.ListAndWatch(pb.Empty()):
                healthy = [device.ID for device in message.devices if device.health == "Healthy"]
                self._ledger.report(resource, healthy, [device.ID for device in message.devices if device.health != "Healthy"])
                self._on_change()
        except grpc.aio.AioRpcError as exc:
            log.info("device plugin is gone", resource=resource, reason=_error(exc))
        if self._plugins.get(resource, {}).get(plugin.endpoint) is plugin and not plugin.unnoticed:
            self._ended(resource, plugin)
        await plugin.channel.close()

    def _ended(self, resource: str, plugin: _Plugin) -> None:
        del self._plugins[resource][plugin.endpoint]
        if not self._plugins[resource]:
            del self._plugins[resource]
            self._ledger.disconnect(resource)
            self._lost[resource] = asyncio.get_running_loop().call_later(LOST_AFTER_SECONDS, self._forget, resource)
            self._on_change()

    def _forget(self, resource: str) -> None:
        self._lost.pop(resource, None)
        self._ledger.forget_resource(resource)
        self._on_change()

    async def _let_go(self, resource: str) -> None:
        for plugin in self._plugins.pop(resource, {}).values():
            if plugin.stream is not None:
                plugin.stream.cancel()
                await asyncio.wait([plugin.stream])
            await plugin.channel.close()


def _error(exc: grpc.aio.AioRpcError) -> str:
    """The error as Go's gRPC prints it."""
    code = "".join(part.capitalize() for part in exc.code().name.split("_"))
    return f"rpc error: code = {code} desc = {exc.details()}"

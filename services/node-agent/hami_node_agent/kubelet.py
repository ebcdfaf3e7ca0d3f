"""Being known to kubelet: serve the plugin, register, and do both again whenever kubelet has restarted. A restart needs no inotify.

Three signs, looked at four times a second and at once when a stream ends: ``kubelet.sock`` is another file; our own socket is gone (kubelet
removes every socket at its start); nobody watches our devices although we registered a while ago. There is never more than one server: the
old one has stopped before the new one listens.

No socket is offered twice: kubelet 1.37 refuses a path that it takes for connected, forgets in the same moment to look for that connection's end,
and then refuses the path until it is started again. So each registration has a server of its own, on a socket with a new name.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
from pathlib import Path
from typing import Final

import grpc
import structlog

from hami_node_agent.agent import NodeAgent
from hami_node_agent.api import deviceplugin_pb2 as api
from hami_node_agent.api.deviceplugin_pb2_grpc import RegistrationStub
from hami_node_agent.plugin import API_VERSION, DevicePlugin, options_message, serving
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import run_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
POLL_SECONDS: Final = 0.25
REGISTER_SECONDS: Final = 5.0
UNWATCHED_SECONDS: Final = 5.0

Identity = tuple[int, int]
"""Inode and change time: an inode number alone is used again at once by some file systems."""


class KubeletConnection:
    """The agent's place among kubelet's plugins."""

    def __init__(
        self, agent: NodeAgent, clock: Clock, *, folder: Path, poll_seconds: float = POLL_SECONDS, telemetry: Telemetry = OFF
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._isolation = Isolation("kubelet", clock, telemetry)
        self._folder = folder
        self._kubelet = folder / "kubelet.sock"
        resource = agent.vendor.count_resource
        self._prefix = f"{agent.vendor.device_type}-{resource.rpartition('/')[2]}"
        self._poll_seconds = poll_seconds
        self.plugin = DevicePlugin(agent)
        self.registrations = 0
        """How often kubelet took us."""
        self.servers = 0
        """Servers that listen now: 0 or 1."""
        self._registered_at = float("-inf")

    @property
    def registered(self) -> bool:
        """Whether kubelet watches our devices now."""
        return self.plugin.streams > 0

    async def run(self, stop: asyncio.Event) -> None:
        """Serve and register until stopped."""
        self._agent.serving.watched(self.plugin.streams)
        await run_until(stop, self._agent.devices.wait_scanned())
        while not stop.is_set():
            path = self._folder / f"{self._prefix}-{secrets.token_hex(3)}.sock"
            with self._isolation.item("device plugin"):
                self._remove_dead()
                async with serving(self.plugin, path):
                    self.servers += 1
                    try:
                        await self._stay_registered(path, stop)
                    finally:
                        self.servers -= 1
            if not self._isolation.due("device plugin"):
                await self._pause(stop)

    async def _stay_registered(self, path: Path, stop: asyncio.Event) -> None:
        """Return when a new server is needed, or when stopped."""
        ours = _identity(path)
        known: Identity | None = None
        offered = False
        while not stop.is_set():
            if ours is None or _identity(path) != ours:
                log.info("device plugin socket is gone", socket=str(path))
                return
            theirs = _identity(self._kubelet)
            unwatched = not self.registered and self._clock.monotonic() - self._registered_at > UNWATCHED_SECONDS
            if theirs is not None and (theirs != known or unwatched):
                if offered:
                    return
                known, offered = theirs if await self._register(path) else None, True
            await self._pause(stop)

    def _remove_dead(self) -> None:
        """Remove what an agent before us has left; one that still runs keeps its socket."""
        for path in self._folder.iterdir():
            if re.fullmatch(rf"{re.escape(self._prefix)}(-[0-9a-f]{{6}})?\.sock", path.name) and not _is_heard(path):
                path.unlink(missing_ok=True)

    async def _register(self, path: Path) -> bool:
        options = (("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0))
        request = api.RegisterRequest(
            version=API_VERSION,
            endpoint=path.name,
            resource_name=self._agent.vendor.count_resource,
            options=options_message(self._agent),
        )
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}", options=options) as channel:
            try:
                await RegistrationStub(channel).Register(request, timeout=REGISTER_SECONDS)
            except grpc.aio.AioRpcError as exc:
                log.warning("kubelet did not take the plugin", code=exc.code().name, reason=exc.details())
                return False
        self.registrations += 1
        self._registered_at = self._clock.monotonic()
        log.info("registered with kubelet", resource=self._agent.vendor.count_resource, socket=str(path))
        return True

    async def _pause(self, stop: asyncio.Event) -> None:
        await self.plugin.stream_ended.pause(stop, self._poll_seconds)


def _is_heard(path: Path) -> bool:
    """Whether somebody listens."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _identity(path: Path) -> Identity | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = path.lstat()
        return found.st_ino, found.st_ctime_ns
    return None

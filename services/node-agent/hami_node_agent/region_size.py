"""Keeps each container's region, the one file that it may write on the host, at its size.

A container maps its region and may also write to it as a file, so it can make the file longer. Nothing short of a mount or a project quota,
which need rights the agent does not have, prevents that; so every ``LOOK_SECONDS`` whatever is beyond the region's end is cut off. The shim
maps exactly the region's size: a cut takes nothing from it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami_node_agent import region
from hami_node_agent.hostfiles import HostFiles
from hami_node_agent.needs import HostPaths
from hami_node_agent.node_pods import NodePods
from hami_protocol.pods import pod_ref
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.kube.events import EventRecorder
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
LOOK_SECONDS: Final = 1.0
REASON: Final = "RegionTooLarge"
_MIB: Final = 2**20


class RegionSize:
    """The regions of one node's containers."""

    def __init__(
        self, *, files: HostFiles, paths: HostPaths, pods: NodePods, clock: Clock, recorder: EventRecorder, telemetry: Telemetry = OFF
    ) -> None:
        self._files = files
        self._paths = paths
        self._pods = pods
        self._recorder = recorder
        self._isolation = Isolation("region size", clock, telemetry)
        self._reported: set[str] = set()
        self._cuts = telemetry.counter("hami_agent_region_cuts", "times that a container's region had grown and was cut back to its size")

    async def run(self, stop: asyncio.Event) -> None:
        """Look every second."""
        while not stop.is_set():
            with self._isolation.item("look"):
                await self.look()
            await sleep_until(stop, LOOK_SECONDS)

    async def look(self) -> None:
        """Cut back every region that has grown.

        Raises:
            OSError: the folder of regions cannot be read.
        """
        grown = await self._files.shorten(self._paths.regions, limit_bytes=len(region.EMPTY))
        for name, size_bytes in grown.items():
            self._cuts.add(1, {})
            with self._isolation.item(f"region {name}"):
                self._report(name, size_bytes)
        self._reported &= set(self._files.names(self._paths.regions)) if self._reported else set()

    def _report(self, name: str, size_bytes: int) -> None:
        """Once per container: a tenant that goes on writing must not fill the log."""
        if name in self._reported:
            return
        self._reported.add(name)
        uid, _, container = name.partition("_")
        text = (
            f"its region had grown to {-(-size_bytes // _MIB)} MiB and was cut back: processes of the container write past the region's end"
        )
        pod = self._pods.get(uid)
        log.warning("region cut back", pod=str(pod_ref(pod)) if pod else uid, container=container, size_bytes=size_bytes)
        if pod is not None:
            self._recorder.record(pod_ref(pod), "Warning", REASON, f"container {container}: {text}")

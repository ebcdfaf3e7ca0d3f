"""Follows the per-node configuration while the agent runs: how the node's cards are shared changes with the file, without a restart.

A file that cannot be read, or that is not accepted, changes nothing. The operating mode alone is taken at start: cards cannot go from shares to
instances while pods hold them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from hami_node_agent import sharing as sharings
from hami_node_agent.node_devices import NodeDevices
from hami_node_agent.sharing import Sharing
from hami_runtime.clock import Clock
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until
from hami_runtime.telemetry import OFF, Telemetry

log = structlog.get_logger()
LOOK_SECONDS: Final = 5.0


class NodeConfig:
    """The file ``config.json``, for one node."""

    def __init__(
        self, path: Path, *, node: str, cluster_wide: Sharing, devices: NodeDevices, clock: Clock, telemetry: Telemetry = OFF
    ) -> None:
        """``cluster_wide``: how cards are shared where the file says nothing."""
        self._path = path
        self._node = node
        self._cluster_wide = cluster_wide
        self._devices = devices
        self._isolation = Isolation("node configuration", clock, telemetry)
        self._content: bytes | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Look at the file now and then, until stopped."""
        while not await sleep_until(stop, LOOK_SECONDS):
            with self._isolation.item(self._path):
                self.look()

    def look(self) -> None:
        """Take the file as it is now.

        Raises:
            OSError: it cannot be read.
            ProtocolError: it is not accepted.
        """
        content = self._path.read_bytes()
        if content == self._content:
            return
        wanted, now = sharings.for_node(self._cluster_wide, content, self._node), self._devices.configured
        self._content = content
        if wanted.mode != now.mode:
            log.warning("the operating mode changes when the agent is started again", configured=wanted.mode, now=now.mode)
            wanted = replace(wanted, mode=now.mode)
        if wanted != now:
            log.info("node configuration changed", node=self._node)
            self._devices.configure(wanted)

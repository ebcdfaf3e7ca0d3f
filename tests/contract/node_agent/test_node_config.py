"""The per-node configuration is followed while the agent runs: registration and kubelet's list change with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hami_node_agent.node_config import LOOK_SECONDS, NodeConfig
from hami_node_agent.sharing import Sharing
from hami_protocol.errors import ProtocolError
from hami_protocol.events import DevicesReported
from tests.contract.node_agent.world import NODE, World, play


def of(world: World, path: Path) -> NodeConfig:
    return NodeConfig(path, node=NODE, cluster_wide=Sharing(), devices=world.agent.devices, clock=world.clock)


def write(path: Path, **entry: Any) -> None:
    path.write_text(json.dumps({"nodeconfig": [{"name": NODE, **entry}]}))


def test_a_changed_file_changes_what_is_registered_and_advertised(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    async def scenario(world: World) -> None:
        write(path, devicesplitcount=4, devicememoryscaling=2)
        stop = asyncio.Event()
        following = asyncio.create_task(of(world, path).run(stop))
        await asyncio.sleep(LOOK_SECONDS + 1)
        first = world.said(DevicesReported)[-1]
        assert {(device.shares, device.memory_mib) for device in first.devices} == {(4, 2 * 24576)}
        assert len(world.agent.devices.advertised) == 8
        write(path, devicesplitcount=5)
        await asyncio.sleep(LOOK_SECONDS + 1)
        last = world.said(DevicesReported)[-1]
        assert {(device.shares, device.memory_mib) for device in last.devices} == {(5, 24576)}
        assert last.generation > first.generation
        path.write_text("{")
        await asyncio.sleep(2 * LOOK_SECONDS + 1)
        path.unlink()
        await asyncio.sleep(LOOK_SECONDS + 1)
        assert world.agent.devices.configured.split_count == 5
        write(path, devicesplitcount=6)
        await asyncio.sleep(60)  # with a backoff after failures
        assert world.agent.devices.configured.split_count == 6
        stop.set()
        await following

    play(scenario)


def test_the_operating_mode_stays_until_the_agent_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    async def scenario(world: World) -> None:
        before = world.agent.devices.configured
        write(path, operatingmode="mig", devicesplitcount=3)
        of(world, path).look()
        now = world.agent.devices.configured
        assert (now.mode, now.split_count) == (before.mode, 3)

    play(scenario)


def test_a_value_that_is_not_accepted_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    async def scenario(world: World) -> None:
        write(path, devicesplitcount="many")
        with pytest.raises(ProtocolError, match="devicesplitcount"):
            of(world, path).look()

    play(scenario)

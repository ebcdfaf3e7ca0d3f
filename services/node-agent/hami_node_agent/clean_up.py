"""Removes what agents have left on a node: ``hami-node-agent clean-up``, which ``hami uninstall`` runs once no agent is left.

The library, grants and containers' folders below the hook path, our CDI specs and our sockets go. A container that still runs keeps what it has
mapped, and cannot start again. Running it twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import structlog

from hami_node_agent import cdi, removal
from hami_node_agent.needs import HostPaths
from hami_node_agent.removal import Removal

log = structlog.get_logger()


class CleanUpError(Exception):
    """Something could not be removed, with the reason."""


def clean_up(
    paths: HostPaths,
    *,
    cdi_folder: Path,
    plugin_folder: Path,
    device_type: str,
    remove: Callable[[str], Removal] = removal.remove,
) -> None:
    """Remove all of it.

    Raises:
        CleanUpError: something is left; everything else is gone.
    """
    obstacles = []
    for path in (*_specs(cdi_folder), *_sockets(plugin_folder, device_type), Path(paths.vgpu)):
        while not (done := remove(str(path))).complete and not done.obstacle:
            log.info("removing goes on", path=str(path))
        if done.obstacle:
            obstacles.append(f"{path}: {done.obstacle}")
    if obstacles:
        raise CleanUpError("; ".join(obstacles))
    log.info("node cleaned up", folder=paths.vgpu)


def _specs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if cdi.pod_uid_of(path.name))


def _sockets(folder: Path, device_type: str) -> list[Path]:
    ours = re.compile(rf"{re.escape(device_type)}-.+-[0-9a-f]{{6}}\.sock")
    return sorted(path for path in folder.glob("*.sock") if ours.fullmatch(path.name))

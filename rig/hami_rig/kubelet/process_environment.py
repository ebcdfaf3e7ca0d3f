"""The environment of a container that is a local process: its grant, the shim preloaded, and a fake driver with the node's cards.

There are no mounts: paths of the container in its environment become the host's. The fake driver finds cards by ``NVIDIA_VISIBLE_DEVICES``, so what
a runtime does with device nodes is done with the uuids of the grant.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hami_node_agent import grant_file
from hami_node_agent.grant_file import GrantError
from hami_rig import project
from hami_rig.kubelet import cdi
from hami_rig.kubelet.grant_copy import GrantCopy

PRELOAD_FILE = "/etc/ld.so.preload"
GRANT_FILE = "/usr/local/vgpu/grant"


class StartFailed(Exception):  # noqa: N818 - reads as the condition it names
    """A container cannot be started now.

    Attributes:
        reason: kubelet's word for it, as ``CreateContainerError``.
        event: what the Event about it says.
    """

    def __init__(self, reason: str, message: str, *, event: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.event = event or f"Error: {message}"


def grant_copy(given: cdi.Given, own: Path) -> GrantCopy | None:
    """The container's copy of its grant, at ``own`` with another suffix; None where it has no grant.

    Raises:
        StartFailed: the grant cannot be read, or the copy not be made.
    """
    to_host = _to_host(given)
    source = to_host.get(GRANT_FILE)
    if source is None:
        return None
    try:
        grant = grant_file.decode(Path(source).read_bytes())
        return GrantCopy(Path(source), own.with_suffix(".grant"), host_path(grant.region_path, to_host))
    except (OSError, GrantError) as exc:
        raise StartFailed("CreateContainerError", f"the container's copy of its grant {source} cannot be made: {exc}") from exc


def environment(given: cdi.Given, cards: Path, grant: GrantCopy | None) -> dict[str, str]:
    """The whole environment.

    Args:
        given: what the container is given.
        cards: the fake driver's description of the node's cards.
        grant: the container's copy of its grant.

    Raises:
        StartFailed: a library that must be preloaded is not there.
    """
    to_host = _to_host(given)
    env = {**os.environ, **{name: host_path(value, to_host) for name, value in given.env.items()}}
    if driver := project.find(project.FAKE_DRIVER):
        env |= {"LD_LIBRARY_PATH": str(driver), "FAKE_GPU_CONFIG": str(cards), "FAKE_GPU_STATE": f"{cards}.state"}
        env["PATH"] = f"{driver.parent}:{env.get('PATH', '')}"
    if grant is not None:
        devices = grant_file.decode(grant.path.read_bytes()).devices
        env |= {"HAMI_GRANT_FILE": str(grant.path), "NVIDIA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}
    if preload := to_host.get(PRELOAD_FILE):
        libraries = [host_path(line.strip(), to_host) for line in Path(preload).read_text().splitlines() if line.strip()]
        if missing := [library for library in libraries if not Path(library).is_file()]:
            raise StartFailed("CreateContainerError", f"the shim is not built: {missing[0]} does not exist")
        env["LD_PRELOAD"] = ":".join(libraries)
    return env


def host_path(value: str, to_host: Mapping[str, str]) -> str:
    """``value``, with the longest mounted path that it begins with replaced by what is mounted there."""
    for inside in sorted(to_host, key=len, reverse=True):
        if value == inside or value.startswith(inside.rstrip("/") + "/"):
            return to_host[inside] + value[len(inside) :]
    return value


def _to_host(given: cdi.Given) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in given.mounts}

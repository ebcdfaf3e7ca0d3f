"""Which allocation mode does this node's runtime carry? Pure; the reason is logged, so that nobody has to guess.

``cdi`` needs a kubelet that hands CDI names on (1.29 or later) and a runtime that resolves them: containerd 2, containerd 1.7 with
``enable_cdi = true``, CRI-O 1.23 or later. Everything else is served in ``envvar`` mode.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

from hami_protocol.devices import AllocationMode

KUBELET: Final = (1, 29)
CRIO: Final = (1, 23)
_VERSION: Final = re.compile(r"v?(\d{1,5})\.(\d{1,5})")


def choose(kubelet_version: str, runtime_version: str, containerd_config: str | None) -> tuple[AllocationMode, str]:
    """The mode and why.

    Args:
        kubelet_version: of the node's status, as ``v1.31.2``.
        runtime_version: of the node's status, as ``containerd://1.7.24``.
        containerd_config: content of containerd's configuration, None where it cannot be read.
    """
    kubelet = _version(kubelet_version)
    if kubelet is None or kubelet < KUBELET:
        return (
            AllocationMode.ENVVAR,
            f"kubelet {kubelet_version or 'of unknown version'} hands no CDI names on; {KUBELET[0]}.{KUBELET[1]} does",
        )
    runtime, _, text = runtime_version.partition("://")
    version = _version(text)
    if runtime == "containerd" and version is not None and version >= (2, 0):
        enabled = _enable_cdi(containerd_config)
        if enabled is False:
            return AllocationMode.ENVVAR, f"{runtime_version} has CDI switched off in its configuration"
        return AllocationMode.CDI, f"kubelet {kubelet_version}, {runtime_version}"
    if runtime == "containerd" and version == (1, 7):
        if _enable_cdi(containerd_config):
            return AllocationMode.CDI, f"kubelet {kubelet_version}, {runtime_version} with enable_cdi"
        return AllocationMode.ENVVAR, f"{runtime_version} resolves CDI names only with enable_cdi = true in its configuration"
    if runtime == "cri-o" and version is not None and version >= CRIO:
        return AllocationMode.CDI, f"kubelet {kubelet_version}, {runtime_version}"
    return AllocationMode.ENVVAR, f"runtime {runtime_version or 'of unknown kind'} is not known to resolve CDI names"


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def _enable_cdi(text: str | None) -> bool | None:
    """What the configuration says, wherever its version has the key; None where it says nothing."""
    try:
        return _find(tomllib.loads(text or ""))
    except tomllib.TOMLDecodeError:
        return None


def _find(table: dict[str, object]) -> bool | None:
    if isinstance(found := table.get("enable_cdi"), bool):
        return found
    inner = [_find(value) for value in table.values() if isinstance(value, dict)]
    return next((found for found in inner if found is not None), None)

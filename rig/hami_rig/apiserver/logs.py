"""What ``kubectl logs`` shows: the file that a rig's kubelet gives a container's process. Containers that are not processes say nothing.

The path is made of the pod's node and UID, which this server has given or checked, and of a container that the pod's spec names: nothing that a
client sends becomes part of it unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hami_runtime.kube.store_errors import ApiError

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a longer log, the end is shown."""


def read(nodes: Path | None, pod: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
    """The log of one container of ``pod``; ``nodes`` is the folder of the kubelets' folders.

    Raises:
        ApiError: there is no such container, several to choose from, no node yet, or no folder.
    """
    if nodes is None:
        raise ApiError.bad_request("this server does not know where containers keep their logs")
    name, spec = pod["metadata"]["name"], pod["spec"]
    container = _container(name, spec, query.get("container", ""))
    if not spec.get("nodeName"):
        raise ApiError.bad_request(f"pod {name} does not have a host assigned")
    path = nodes / spec["nodeName"] / "containers" / pod["metadata"]["uid"] / f"{container}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - MOST_BYTES, 0))
            return _tail(file.read(MOST_BYTES), query.get("tailLines", ""))
    except FileNotFoundError:
        return b""


def _container(pod: str, spec: Mapping[str, Any], wanted: str) -> str:
    names = [str(each["name"]) for kind in ("containers", "initContainers") for each in spec.get(kind) or ()]
    if wanted:
        if wanted not in names:
            raise ApiError.bad_request(f"container {wanted} is not valid for pod {pod}")
        return wanted
    if len(spec["containers"]) > 1:
        raise ApiError.bad_request(f"a container name must be specified for pod {pod}, choose one of: {names}")
    return names[0]


def _tail(content: bytes, lines: str) -> bytes:
    if not lines.isascii() or not lines.isdigit():
        return content
    return b"".join(content.splitlines(keepends=True)[-int(lines) :]) if int(lines) else b""

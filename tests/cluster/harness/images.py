"""Image archives made of files of this machine, for pods that no registry serves. A small busybox is in each.

``archive`` writes what ``ctr image import`` reads: one layer, a configuration, a manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX = "docker.io/local/busybox:1"
PAUSE = "docker.io/local/pause:1"
TOOLS = "docker.io/local/hami-tools:1"
_APPLETS = (
    *("sh", "sleep", "cat", "ls", "env", "grep", "echo", "mkdir", "id", "true", "false"),
    *("find", "sort", "test", "touch", "hexdump", "kill", "wc", "sed", "rm"),
)
_FOLDERS = ("bin", "etc", "tmp", "proc", "sys", "dev", "usr", "usr/local")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(name: str, path: Path, *, entrypoint: Sequence[str], files: Mapping[str, Path] | None = None) -> None:
    """Write the image ``name`` to ``path``; ``files`` are put where their keys say, with the shared libraries that they need."""
    layer = _layer(files or {})
    configuration = {
        "architecture": _MACHINES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    config = json.dumps(configuration).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{digest}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        _add(tar, f"{digest}.json", config)
        _add(tar, "layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(files: Mapping[str, Path]) -> bytes:
    everything = {"/bin/busybox": Path("/bin/busybox")}
    for path, source in files.items():
        everything |= {**libraries(source), path: source}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in _FOLDERS:
            _add(tar, folder, kind=tarfile.DIRTYPE)
        for applet in _APPLETS:
            _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, link="busybox")
        for path, source in everything.items():
            _add(tar, path, source.read_bytes())
    return out.getvalue()


def libraries(binary: Path) -> dict[str, Path]:
    """The shared libraries that a program needs, by the path at which it finds them."""
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
    return {path: Path(os.path.realpath(path)) for path in re.findall(r"(/\S+) \(0x", listed)}


def _add(tar: tarfile.TarFile, path: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size, entry.mode, entry.type, entry.linkname = len(data), 0o755, kind, link
    tar.addfile(entry, io.BytesIO(data))

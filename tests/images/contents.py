"""What is in an image: its configuration, its files, its size."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.images.tools import run


@contextmanager
def mounted(image: str) -> Iterator[Path]:
    """The root of an image, to be read."""
    container = run("buildah", "from", "--pull-never", image).strip()
    try:
        yield Path(run("buildah", "mount", container).strip())
    finally:
        run("buildah", "rm", container)


def inspected(image: str) -> dict[str, Any]:
    """What podman knows of an image."""
    (found,) = json.loads(run("podman", "image", "inspect", image))
    return dict(found)


def files(root: Path) -> dict[str, tuple[str, ...]]:
    """Everything below ``root`` but for times: kind and mode, owner, and the content's digest or where a link leads."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder, name)
            status = path.lstat()
            content = ""
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = (oct(status.st_mode), f"{status.st_uid}:{status.st_gid}", content)
    return found

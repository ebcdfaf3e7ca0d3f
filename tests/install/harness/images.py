"""The images of an installation as archives: our own from their Dockerfiles, and those of other projects, made of the programs that are here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from tests.cluster.harness import building
from tests.cluster.harness.images import archive, libraries
from tests.images import building as images

NATS: Final = "docker.io/library/nats:2.14.6-alpine"
RELOADER: Final = "docker.io/natsio/nats-server-config-reloader:0.23.0"
BUSYBOX: Final = "docker.io/library/busybox:1.36"
"""The image of the examples, with the fake driver and the programs that allocate on it."""
KUBE_SCHEDULER: Final = "registry.k8s.io/kube-scheduler"
GLIBC: Final = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6")
"""What every image with glibc has, and the shim is linked to: it is built against 2.17, where they were libraries of their own."""
NEWER: Final = "0.2.0"
"""The second version of our images: the same sources under another tag and label."""
VARIABLE: Final = "HAMI_TEST_IMAGES"
"""A folder of our images' archives that are built already, as ``<service>-<version>-*.tar``."""
_SHIM: Final = building.ROOT / "build" / "cshim"


def ours(*, version: str = "") -> list[Path]:
    """Our images, at the project's version or another."""
    if folder := os.environ.get(VARIABLE):
        return sorted(Path(folder).glob(f"*-{version or images.images.version()}-*.tar"))
    return list(images.archives(images.SERVICES, version=version).values())


def of_others(folder: Path, binaries: Path, kubernetes: str) -> list[Path]:
    """The other images, written to ``folder``; ``kubernetes`` is the cluster's version, as v1.37.2."""
    beside = Path(sys.executable).parent
    contents: dict[str, tuple[list[str], dict[str, Path]]] = {
        NATS: (["/usr/local/bin/nats-server"], {"/usr/local/bin/nats-server": beside / "nats-server"}),
        RELOADER: (["/bin/sh", "/reloader.sh"], {"/reloader.sh": Path(__file__).with_name("reloader.sh")}),
        f"{KUBE_SCHEDULER}:{kubernetes}": (["/bin/kube-scheduler"], {"/bin/kube-scheduler": binaries / "kube-scheduler"}),
        BUSYBOX: (["/bin/sh"], _tools()),
    }
    made = []
    for name, (entrypoint, files) in contents.items():
        path = folder / f"{name.replace('/', '_')}.tar"
        archive(name, path, entrypoint=entrypoint, files=files)
        made.append(path)
    return made


def _tools() -> dict[str, Path]:
    programs = {f"/bin/{name}": _SHIM / name for name in ("vgpu-alloc", "vgpu-smi")}
    driver = {f"/usr/lib/{name}": _SHIM / "fake" / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
    (libc,) = [path for path in libraries(_SHIM / "vgpu-alloc") if "libc.so" in path]
    glibc = {str(path): path for name in GLIBC if (path := Path(libc).with_name(name)).exists()}
    return programs | driver | glibc

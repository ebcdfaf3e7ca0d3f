"""Builds our images with buildah, once for what they are built from: ``python -m tests.images.building [TARGET...]``.

The images are in a storage below ``build/images``, where podman finds them, and as OCI archives beside it, for `ctr image import`.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.images import bases, tools
from tests.images.tools import FOLDER, ROOT
from tools import images

TARGETS: Final = images.TARGETS
SERVICES: Final = tuple(target for target in TARGETS if target != "rig")
REGISTRY: Final = "docker.io"
"""What kubelet and containerd put before a name without a host."""


def tag(target: str, version: str = "") -> str:
    """The name that manifests use, as ``hami/scheduler:0.1.0``."""
    return f"{images.REPOSITORY}/{target}:{version or images.version()}"


def archives(targets: Sequence[str] = TARGETS, *, version: str = "") -> dict[str, Path]:
    """The OCI archive of each target; what has changed since it was built is built anew. ``version`` is another tag and label.

    Raises:
        ToolError: a build failed; the text has its output.
    """
    return {target: _archive(target, version or images.version()) for target in targets}


def build(*targets: str, version: str = "") -> None:
    """Have the images of ``targets`` in our storage, under the names of the manifests."""
    archives(targets or TARGETS, version=version)


def fingerprint() -> str:
    """A digest of everything that our images are built from: the Dockerfile, what it copies, and its bases."""
    digest = hashlib.sha256()
    for path in sorted(_sources()):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_mode & 0o111}\0".encode())
        digest.update(path.read_bytes())
    for base in (bases.SLIM, bases.COMPILER):
        digest.update(tools.run("buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", base).encode())
    return digest.hexdigest()[:12]


def command(target: str, name: str, *, version: str, cache: bool = True) -> list[str]:
    """The command of `make images`, with what a machine without a registry needs besides."""
    found = images.command("buildah", target, name, labels={**images.labels(), "VERSION": version}, epoch=images.epoch())
    flags = ["--network", "host", "--pull-never", *tools.build_volumes(), *([] if cache else ["--no-cache"])]
    return [*found[:2], *flags, *found[2:]]


def _archive(target: str, version: str) -> Path:
    with _locked():
        bases.provide(bases.SLIM, bases.COMPILER)
        path = FOLDER / f"{target}-{version}-{fingerprint()}.tar"
        name = f"localhost/{tag(target, version)}"
        if path.exists():
            return path
        print(f"==> Building {tag(target, version)}", flush=True)
        begin = time.monotonic()
        tools.run(*command(target, name, version=version))
        for old in FOLDER.glob(f"{target}-{version}-*.tar"):
            old.unlink()
        partial = path.with_suffix(".partial")
        tools.run("buildah", "push", "--quiet", name, f"oci-archive:{partial}:{REGISTRY}/{tag(target, version)}")
        partial.rename(path)
        print(f"==> {tag(target, version)}: {time.monotonic() - begin:.0f} s", flush=True)
        return path


def _sources() -> Iterator[Path]:
    """The files that the Dockerfile copies from this checkout, and itself."""
    dockerfile = ROOT / images.DOCKERFILE
    yield dockerfile
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile.read_text(), re.MULTILINE)
    paths = sorted({path for line in copied for path in line.split()})
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *paths], cwd=ROOT, capture_output=True, check=True
    )
    for name in set(listed.stdout.decode().split("\0")) - {""}:
        if (path := ROOT / name).is_file():
            yield path


@contextmanager
def _locked() -> Iterator[None]:
    """One build at a time: tests of several lanes ask for the same images."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Make the machine ready, build, and print the archives."""
    tools.install_packages()
    if reason := tools.lacking():
        print(f"cannot build images here: {reason}", file=sys.stderr)
        return 3
    try:
        for path in archives(sys.argv[1:] or TARGETS).values():
            print(path)
    except tools.ToolError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The images of other projects that ours are built on and run beside: pulled, or made of Debian's packages where no registry answers.

A stand-in has what the Dockerfile may rely on, under the upstream name, and no more: the slim Python has no compiler.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.images.tools import FOLDER, ToolError, run

SLIM: Final = "docker.io/library/python:3.11-slim-bookworm"
COMPILER: Final = "docker.io/library/python:3.11-bookworm"
NATS: Final = "docker.io/library/nats:2.14.6-alpine"
STAND_IN: Final = "hami.test.stand-in"
"""Label of an image that was made here."""
PYTHON_PACKAGES: Final = ("python3", "python3-venv", "python3-pip", "ca-certificates", "netbase", "tzdata")
COMPILER_PACKAGES: Final = ("gcc", "libc6-dev", "make")
PULL_SECONDS: Final = 120
APPLETS: Final = ("sh", "wget", "sleep", "cat", "ls")


def provide(*names: str) -> None:
    """Have these images in our storage.

    Raises:
        ToolError: one can be neither pulled nor made.
    """
    for name in names:
        if _present(name):
            continue
        try:
            run("timeout", str(PULL_SECONDS), "buildah", "pull", "--quiet", name)
        except ToolError:
            print(f"==> Making a stand-in for {name}, which no registry serves here", flush=True)
            _MAKERS[name](name)


def is_stand_in(name: str) -> bool:
    """Whether an image was made here."""
    return STAND_IN in run("buildah", "inspect", "--type", "image", name)


def _present(name: str) -> bool:
    try:
        run("buildah", "inspect", "--type", "image", name)
    except ToolError:
        return False
    return True


def _slim(name: str) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        root = Path(folder) / "root"
        run("debootstrap", "--variant=minbase", f"--include={','.join(PYTHON_PACKAGES)}", "bookworm", root)
        for cached in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "var/log"):
            shutil.rmtree(root / cached, ignore_errors=True)
            (root / cached).mkdir(parents=True)
        (root / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        for link, target in (("python", "python3.11"), ("python3", "python3.11"), ("pip", "pip3")):
            (root / "usr/local/bin" / link).symlink_to(f"/usr/bin/{target}")
        _commit(name, root, env={"LANG": "C.UTF-8"}, command=["python3"])


def _compiler(name: str) -> None:
    provide(SLIM)
    container = run("buildah", "from", SLIM).strip()
    try:
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *COMPILER_PACKAGES]):
            run("buildah", "run", container, "--", "apt-get", "--quiet", *arguments)
        run("buildah", "commit", "--quiet", container, name)
    finally:
        run("buildah", "rm", container)


def _nats(name: str) -> None:
    """The wheel's program, which is static, beside a shell and what a health check calls."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        root = Path(folder) / "root"
        for each in ("bin", "usr/local/bin", "data", "tmp"):
            (root / each).mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        for applet in APPLETS:
            (root / "bin" / applet).symlink_to("busybox")
        shutil.copy(Path(sys.executable).with_name("nats-server"), root / "usr/local/bin/nats-server")
        _commit(name, root, env={}, command=[], entrypoint=["nats-server"])


def _commit(name: str, root: Path, *, env: Mapping[str, str], command: Sequence[str], entrypoint: Sequence[str] = ()) -> None:
    container = run("buildah", "from", "scratch").strip()
    try:
        run("buildah", "add", "--quiet", container, root, "/")
        flags = ["--label", f"{STAND_IN}=true", "--cmd", " ".join(command)]
        for key, value in {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **env}.items():
            flags += ["--env", f"{key}={value}"]
        if entrypoint:
            flags += ["--entrypoint", f'["{entrypoint[0]}"]']
        run("buildah", "config", *flags, container)
        run("buildah", "commit", "--quiet", container, name)
    finally:
        run("buildah", "rm", container)


_MAKERS: Final[Mapping[str, Callable[[str], None]]] = {SLIM: _slim, COMPILER: _compiler, NATS: _nats}

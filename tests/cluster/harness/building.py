"""Builds Kubernetes' own programs, etcd and containerd from their Go modules, once per version: ``build/kube/<key>/bin``.

The key is made from everything that decides what comes out (go.mod, go.sum, our few lines of Go), so a changed version is built anew and an
unchanged one is found. Where it cannot be built, ``lacking`` says why in words for people.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULES = Path(__file__).parents[1] / "modules"
DEFAULT_VERSION = "1.37"
VERSION_VARIABLE = "HAMI_TEST_KUBE_VERSION"
BINARIES_VARIABLE = "HAMI_TEST_KUBE_BIN"
"""A folder of programs that are built already, in place of the cache."""
GO_VERSION = (1, 26)
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
)
PACKAGES = {"/usr/sbin/runc": "runc", "/usr/lib/cni/loopback": "containernetworking-plugins", "/bin/busybox": "busybox-static"}
"""What else a node needs, and the Debian package that brings it."""


class CannotRun(Exception):  # noqa: N818 - reads as the condition it names
    """This machine cannot be a Kubernetes node; the text says why."""


def version() -> str:
    """Which Kubernetes is asked for, as ``1.37``."""
    return os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION


def versions() -> list[str]:
    """Those that there is a module for."""
    return [*sorted(path.name for path in (MODULES / "versions").iterdir()), DEFAULT_VERSION]


def minor(wanted: str) -> int:
    """The 37 of ``1.37``."""
    return int(wanted.split(".")[1])


def lacking() -> str:
    """Why no node can be started here; empty where it can."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "it needs root: containers, mount namespaces and cgroups are made"
    if missing := [f"{path} (Debian package {package})" for path, package in PACKAGES.items() if not Path(path).exists()]:
        return f"missing: {', '.join(missing)}; `make cluster-test` installs them where apt-get exists"
    return "" if given() or _all_there(_folder(version()) / "bin") else _lacking_go()


def given() -> Path | None:
    """The folder of programs that the environment names."""
    named = os.environ.get(BINARIES_VARIABLE)
    return Path(named) if named else None


def binaries() -> Path:
    """The folder with all programs, built where it is missing.

    Raises:
        CannotRun: they cannot be built here.
    """
    if (found := given()) is not None:
        if not _all_there(found):
            raise CannotRun(f"{BINARIES_VARIABLE}: {found} lacks some of {', '.join(PROGRAMS)}")
        return found
    folder = _folder(version())
    if not _all_there(folder / "bin"):
        if reason := _lacking_go():
            raise CannotRun(reason)
        _build(version(), folder)
    return folder / "bin"


def install_packages() -> None:
    """Install the Debian packages that are missing, where apt-get and root are there; ``lacking`` tells the rest."""
    missing = [package for path, package in PACKAGES.items() if not Path(path).exists()]
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"==> Installing {' '.join(missing)}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    if subprocess.run(install, env=environ, check=False).returncode != 0:
        subprocess.run(["apt-get", "update", "--quiet"], env=environ, check=False)
        subprocess.run(install, env=environ, check=False)


def _lacking_go() -> str:
    if not shutil.which("go"):
        return "it needs Go to build Kubernetes, and there is no `go` on the path"
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < GO_VERSION:
        return f"it needs Go {GO_VERSION[0]}.{GO_VERSION[1]} or later to build Kubernetes, and this is {said or 'none'}"
    return ""


def _modfile(wanted: str) -> Path:
    if wanted == DEFAULT_VERSION:
        return MODULES / "kubernetes" / "go.mod"
    path = MODULES / "versions" / wanted / "go.mod"
    if not path.exists():
        raise CannotRun(f"{VERSION_VARIABLE}: {wanted!r} is not accepted; accepted: {', '.join(versions())}")
    return path


def _folder(wanted: str) -> Path:
    digest = hashlib.sha256()
    for path in _sources(wanted):
        digest.update(path.read_bytes())
    return ROOT / "build" / "kube" / f"{wanted}-{digest.hexdigest()[:12]}"


def _sources(wanted: str) -> Iterator[Path]:
    modfile = _modfile(wanted)
    yield from (modfile, modfile.with_name("go.sum"))
    yield from sorted(path for module in ("kubernetes", "containerd") for path in (MODULES / module).rglob("main.go"))
    yield from (MODULES / "containerd" / "go.mod", MODULES / "containerd" / "go.sum")


def _all_there(folder: Path) -> bool:
    return all((folder / program).exists() for program in PROGRAMS)


def _build(wanted: str, folder: Path) -> None:
    modfile = _modfile(wanted)
    release = re.search(r"k8s\.io/kubernetes (v1\.\S+)", modfile.read_text())
    assert release, modfile
    print(f"==> Building Kubernetes {release[1]}, etcd and containerd into {folder} (minutes with cold caches, two cores)", flush=True)
    partial = folder / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={release[1]}"  # kubectl cannot read a version that is not set
    _go(MODULES / "kubernetes", "-modfile", str(modfile), "-ldflags", stamp, "-o", f"{partial}/", "./...")
    _go(MODULES / "containerd", "-ldflags", "-s -w", "-tags", "no_btrfs,no_devmapper,no_zfs", "-o", f"{partial}/", "./...")
    partial.rename(folder / "bin")


def _go(module: Path, *arguments: str) -> None:
    """Build: nobody debugs these, so nothing is written for debuggers, and the compiler may take memory rather than time."""
    command = ["go", "build", "-mod=readonly", "-gcflags=all=-dwarf=false", *arguments]
    done = subprocess.run(command, cwd=module, env={"GOGC": "400", **os.environ}, check=False)
    if done.returncode != 0:
        raise CannotRun(f"go build in {module} ended with exit status {done.returncode}; see above")

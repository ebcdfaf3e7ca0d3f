"""Builds programs of other projects from their Go modules, once for what they are built from: ``build/kube/<group>-<key>``.

A group is built by one call of Go: Kubernetes with etcd (by version), containerd, and what the installation test needs besides. Its key is made
from everything that decides what comes out (go.mod, go.sum, our few lines of Go), so a changed group is built anew and an unchanged one is found.
``binaries`` shows all groups as one folder of links. Where they cannot be built, ``lacking`` says why in words for people.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
MODULES = Path(__file__).parents[1] / "modules"
CACHE = ROOT / "build" / "kube"
DEFAULT_VERSION = "1.37"
VERSION_VARIABLE = "HAMI_TEST_KUBE_VERSION"
BINARIES_VARIABLE = "HAMI_TEST_KUBE_BIN"
"""A folder of programs that are built already; a group that is not whole there is built."""
GO_VERSION = (1, 26)


class Group(NamedTuple):
    """Programs that are built together."""

    name: str
    programs: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """Of ``go build``."""
    cgo: bool = True
    package: str = "./..."
    """Which packages of the module, or of those that it requires."""


KUBERNETES = Group("kubernetes", ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"))
CONTAINERD = Group("containerd", ("containerd", "containerd-shim-runc-v2", "ctr"), ("-tags", "no_btrfs,no_devmapper,no_zfs"))
ADDONS = Group("addons", ("coredns", "network-policies", "cert-manager"), cgo=False)
"""A cluster's DNS, what enforces NetworkPolicies, and cert-manager: for the installation test."""
HELM = Group("helm", ("helm",), cgo=False, package="helm.sh/helm/v3/cmd/helm")
CLUSTER = (KUBERNETES, CONTAINERD)


class Module(NamedTuple):
    """A Go module of which files are used as they are."""

    path: str
    version: str
    digest: str
    """As in go.sum."""


CERT_MANAGER = Module("github.com/cert-manager/cert-manager", "v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=")
PROMETHEUS_OPERATOR = Module(
    "github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
)
PACKAGES = {
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/loopback": "containernetworking-plugins",
    "/bin/busybox": "busybox-static",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/ipset": "ipset",
    "/usr/sbin/ip": "iproute2",
    "/usr/sbin/conntrack": "conntrack",
}
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


def lacking(*groups: Group) -> str:
    """Why no node can be started here, with the programs of ``groups`` besides; empty where it can."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "it needs root: containers, mount namespaces and cgroups are made"
    if missing := [f"{path} (Debian package {package})" for path, package in PACKAGES.items() if not Path(path).exists()]:
        return f"missing: {', '.join(missing)}; `make cluster-test` installs them where apt-get exists"
    return _lacking_go() if any(_place(group) is None for group in (*CLUSTER, *groups)) else ""


def given() -> Path | None:
    """The folder of programs that the environment names."""
    named = os.environ.get(BINARIES_VARIABLE)
    return Path(named) if named else None


def binaries(*groups: Group) -> Path:
    """A folder with all programs of a cluster, and of ``groups``; what is missing is built.

    Raises:
        CannotRun: they cannot be built here.
    """
    wanted = (*CLUSTER, *groups)
    links: dict[str, Path] = {}
    for group in wanted:
        if (place := _place(group)) is None:
            if reason := _lacking_go():
                raise CannotRun(reason)
            place = _build(group)
        links |= {program: place / program for program in group.programs}
    key = hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:12]
    folder = CACHE / f"bin-{version()}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    for program, target in links.items():
        with contextlib.suppress(FileExistsError):
            (folder / program).symlink_to(target)
    return folder


def source(module: Module) -> Path:
    """The folder of a module's files.

    Raises:
        CannotRun: it cannot be downloaded, or is another than the one that was looked at.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        command = ["go", "mod", "download", "-json", f"{module.path}@{module.version}"]
        done = subprocess.run(command, cwd=nowhere, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    if found.get("Sum") != module.digest:
        raise CannotRun(
            f"{module.path} {module.version}: {found.get('Error') or found.get('Sum') or done.stderr}; accepted: {module.digest}"
        )
    return Path(found["Dir"])


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


def _modfile(group: Group) -> Path:
    wanted = version()
    if group != KUBERNETES or wanted == DEFAULT_VERSION:
        return MODULES / group.name / "go.mod"
    path = MODULES / "versions" / wanted / "go.mod"
    if not path.exists():
        raise CannotRun(f"{VERSION_VARIABLE}: {wanted!r} is not accepted; accepted: {', '.join(versions())}")
    return path


def _place(group: Group) -> Path | None:
    """Where a group's programs are: in the folder that is given, or in the cache."""
    for folder in (given(), _folder(group)):
        if folder is not None and all((folder / program).exists() for program in group.programs):
            return folder.resolve()
    return None


def _folder(group: Group) -> Path:
    digest = hashlib.sha256(repr(group).encode())
    for path in _sources(group):
        digest.update(path.read_bytes())
    name = f"{group.name}-{version()}" if group == KUBERNETES else group.name
    return CACHE / f"{name}-{digest.hexdigest()[:12]}"


def _sources(group: Group) -> Iterator[Path]:
    modfile = _modfile(group)
    yield from (modfile, modfile.with_name("go.sum"))
    yield from sorted((MODULES / group.name).rglob("main.go"))


def _build(group: Group) -> Path:
    """Build a group; two processes that do it at once do it one after the other."""
    folder, modfile, stamp = _folder(group), _modfile(group), "-s -w"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        release = re.search(r"k8s\.io/kubernetes (v1\.\S+)", modfile.read_text())
        if release and group == KUBERNETES:
            stamp += f" -X k8s.io/component-base/version.gitVersion={release[1]}"  # kubectl cannot read a version that is not set
        print(f"==> Building {', '.join(group.programs)} into {folder} (minutes with cold caches, two cores)", flush=True)
        partial = folder.with_name(f"{folder.name}.partial")  # with_suffix would cut the version at its dot
        partial.mkdir(exist_ok=True)
        begin = time.monotonic()
        environ = {} if group.cgo else {"CGO_ENABLED": "0"}
        _go(
            MODULES / group.name,
            *("-modfile", str(modfile), "-ldflags", stamp, *group.flags, "-o", f"{partial}/", group.package),
            environ=environ,
        )
        partial.rename(folder)
        print(f"==> {group.name}: built in {time.monotonic() - begin:.0f} s", flush=True)
    return folder


def _go(module: Path, *arguments: str, environ: Mapping[str, str]) -> None:
    """Build: nobody debugs these, so nothing is written for debuggers, and the compiler may take memory rather than time."""
    command = ["go", "build", "-mod=readonly", "-gcflags=all=-dwarf=false", *arguments]
    done = subprocess.run(command, cwd=module, env={"GOGC": "400", **os.environ, **environ}, check=False)
    if done.returncode != 0:
        raise CannotRun(f"go build in {module} ended with exit status {done.returncode}; see above")

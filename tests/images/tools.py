"""The programs that build and run containers on a machine that may have no image registry and no systemd.

Debian's buildah and podman, with a storage and a configuration of their own below ``build/images``: what else is on the machine is
neither used nor changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "images"
PACKAGES: Final = {
    "buildah": "buildah",
    "podman": "podman",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "catatonit": "catatonit",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "/bin/busybox": "busybox-static",
}
"""Programs, and the Debian package of each."""


class ToolError(Exception):
    """A program failed; the text is its command and what it printed."""


def lacking() -> str:
    """Why no image is built and run here; empty where it is."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "it needs root: base images are made with debootstrap, and containers are started"
    missing = _missing()
    return f"missing: {', '.join(missing)} (Debian packages); `make images-test` installs them where apt-get exists" if missing else ""


def install_packages() -> None:
    """Install the Debian packages that are missing, where apt-get and root are there."""
    missing = _missing()
    if not missing or sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"==> Installing {' '.join(missing)}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing]
    if subprocess.run(install, env=environ, check=False).returncode:
        subprocess.run(["apt-get", "update", "--quiet"], env=environ, check=False)
        subprocess.run(install, env=environ, check=False)


def environ() -> dict[str, str]:
    """The environment in which buildah, podman and podman-compose use our own storage and configuration."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in _configuration():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(path)
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("HAMI_", "COMPOSE_"))},
        "CONTAINERS_STORAGE_CONF": str(FOLDER / "storage.conf"),
        "CONTAINERS_CONF": str(FOLDER / "containers.conf"),
        "BUILDAH_ISOLATION": "chroot",
    }


def run(*command: str | Path, text: str | None = None, cwd: Path = ROOT) -> str:
    """What a command prints.

    Raises:
        ToolError: it failed.
    """
    done = subprocess.run([*map(str, command)], env=environ(), cwd=cwd, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_volumes() -> list[str]:
    """Flags that let pip and uv in a build reach their index as pip does on this machine: its certificate authority and address."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    found: dict[str, str] = dict(re.findall(r"(cert|index-url)='(.*)'$", listed, re.MULTILINE))
    files = {"/etc/pip.conf": "[global]\n" + "".join(f"{key} = {value}\n" for key, value in found.items())}
    index = f'[[index]]\nurl = "{found["index-url"]}"\ndefault = true\n' if "index-url" in found else ""
    files["/etc/uv/uv.toml"] = f"system-certs = true\n{index}"
    mounts = {found["cert"]: found["cert"]} if "cert" in found else {}
    for target, text in files.items():
        path = FOLDER / Path(target).name
        path.write_text(text)
        mounts[str(path)] = target
    return [flag for source, target in mounts.items() for flag in ("--volume", f"{source}:{target}:ro")]


def _configuration() -> Iterator[tuple[str, str]]:
    yield (
        "storage.conf",
        f"""[storage]
driver = "overlay"
runroot = "{FOLDER}/run"
graphroot = "{FOLDER}/storage"
[storage.options.overlay]
skip_mount_home = "true"
""",
    )
    yield (
        "containers.conf",
        f"""[containers]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[engine.runtimes]
runc = ["{Path(__file__).with_name("runc-without-limits")}"]
[network]
network_backend = "netavark"
network_config_dir = "{FOLDER}/networks"
""",
    )


def _missing() -> list[str]:
    return [package for program, package in PACKAGES.items() if not shutil.which(program)]

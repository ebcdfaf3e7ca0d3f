"""What a compose file starts, as processes of this machine.

Every service gets a loopback address of its own, which stands for its name, its ``0.0.0.0`` and its ``127.0.0.1``; every path that is mounted into
a container stands for a folder here. Commands, environments, health checks and mounted files are taken as they are written, but for these
names. Services start when what they depend on is as they say.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hami_rig import project
from hami_rig.processes import ManagedProcess
from tests.dockerfile import stages

TRIES = 400
PAUSE_SECONDS = 0.1
ENTRYPOINTS = {"nats": "nats-server", "prom/prometheus": "prometheus"}
"""Of other people's images."""

Service = dict[str, Any]


@dataclass(kw_only=True)
class Composed:
    """The services of one file."""

    root: Path
    """The folder of the file."""
    folder: Path
    """Where volumes, changed files and logs are kept."""
    services: Mapping[str, Service]
    programs: Mapping[str, str]
    """Path of a program, by its name."""
    network: int
    """Number of this network, so that several do not meet."""
    processes: dict[str, ManagedProcess] = field(default_factory=dict)

    def address(self, name: str) -> str:
        """The address of a service, which is that of another where it shares its network."""
        shared = str(self.services[name].get("network_mode", "")).removeprefix("service:")
        return f"127.77.{self.network}.{sorted(self.services).index(shared or name) + 1}"

    def text(self, name: str, text: str) -> str:
        """What ``text`` of a service says here."""
        own = self.address(name)
        for other in sorted(self.services, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(other)}(?=:\d)", self.address(other), text)
        text = text.replace("0.0.0.0", own).replace("127.0.0.1", own)
        for source, target in sorted(self._mounts(name), key=lambda mount: len(mount[1]), reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(target)}(?![\w.-])", str(source), text)
        return text

    def command(self, name: str) -> list[str]:
        """The command of a service, its entry point first."""
        service = self.services[name]
        given = [self.text(name, each) for each in [*service.get("entrypoint", ()), *service.get("command", ())]]
        entry = self.entrypoint(service)
        words = [entry, *given] if entry else given
        return [self.programs.get(words[0], words[0]), *words[1:]]

    def entrypoint(self, service: Service) -> str:
        """The program that an image starts; empty where the command names it."""
        if "entrypoint" in service:
            return ""
        if "build" in service:
            given = stages()[service["build"]["target"]].all("ENTRYPOINT")
            return str(*json.loads(given[0])) if given else ""
        return ENTRYPOINTS[service["image"].partition(":")[0]]

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a service."""
        return {key: self.text(name, value) for key, value in (self.services[name].get("environment") or {}).items()}

    async def up(self, names: Iterable[str]) -> None:
        """Start services and what they depend on, each when it may."""
        for name in names:
            if name in self.processes:
                continue
            conditions = self.services[name].get("depends_on") or {}
            await self.up(conditions)
            for other, condition in conditions.items():
                if condition["condition"] == "service_healthy":
                    await self.healthy(other)
            await self._start(name)

    async def healthy(self, name: str) -> None:
        """Return once the service's own health check says so."""
        test = self.services[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        words = [self.text(name, each) for each in test[1:]]
        said = b""
        for _ in range(TRIES):
            assert self.processes[name].pid, self.processes[name].obituary()
            check = await asyncio.create_subprocess_exec(
                self.programs.get(words[0], words[0]), *words[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            said, _ = await check.communicate()
            if check.returncode == 0:
                return
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(f"{name} is not healthy: {said.decode()}\n{self.processes[name].log_tail()}")

    async def down(self) -> None:
        """Stop everything, the last first."""
        for process in reversed(self.processes.values()):
            await process.stop(grace_seconds=5.0)

    async def _start(self, name: str) -> None:
        for mount in self.services[name].get("volumes") or ():
            self._put(name, mount)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
        environ = {**inherited, "PYTHONUNBUFFERED": "1", **self.environment(name)}
        if "install-shim" in str(self.services[name].get("entrypoint")):
            environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "HAMI_SHIM_SOURCE": str(self.root / project.SHIM)}
        process = ManagedProcess(name, self.command(name), folder=self.folder, environ=environ)
        self.processes[name] = process
        await process.start()

    def _mounts(self, name: str) -> list[tuple[Path, str]]:
        """Where each mounted path is here. Files of the project are copied, since they have names in them; volumes are shared by all."""
        found = []
        for mount in self.services[name].get("volumes") or ():
            source, target, *_ = mount.split(":")
            here = self.folder / "files" / name / source.lstrip("./") if source.startswith(".") else self.folder / "volumes" / source
            found.append((here, target))
        return found

    def _put(self, name: str, mount: str) -> None:
        source, _, rest = mount.partition(":")
        if not source.startswith("."):
            (self.folder / "volumes" / source).mkdir(parents=True, exist_ok=True)
            return
        assert rest.endswith(":ro"), mount
        here = self.folder / "files" / name / source.lstrip("./")
        here.parent.mkdir(parents=True, exist_ok=True)
        if (self.root / source).is_dir():
            shutil.copytree(self.root / source, here)
        else:
            here.write_text(self.text(name, (self.root / source).read_text()))


def read(root: Path, folder: Path, *, network: int) -> Composed:
    """The compose file in ``root``, to be started in ``folder``."""
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    beside = Path(sys.executable).parent
    programs = {name: str(beside / name) for name in ("hami", "kubectl", "nats-server", "python", *(f"hami-{each}" for each in SERVICES))}
    return Composed(root=root, folder=folder, services=services, programs=programs, network=network)


SERVICES = ("node-agent", "registry", "scheduler", "webhook")

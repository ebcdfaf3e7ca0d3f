"""Starts a whole rig as local processes and takes it down again: NATS, API server, kubelets, the four services, kube-scheduler's stand-in.

``Rig`` is an async context manager. Every port is a free one and everything lies in one folder of its own, so rigs run side by side. What a program
needs of another (a port, a kubeconfig) it is given once the other is ready; everything else starts at the same time. A program that is started
again listens where it did before. Whatever happens to the rig's own process, none of its programs outlives it, and ``janitor`` removes the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from hami_devices.catalog import Catalog
from hami_devices.config import ConfigError
from hami_devices.config import load as load_device_config
from hami_node_agent import shim_install
from hami_node_agent.needs import HostPaths
from hami_rig import janitor, project
from hami_rig.apiserver import kubeconfig
from hami_rig.kubelet import cards
from hami_rig.kubelet.kubelet import NodeFolder
from hami_rig.processes import ManagedProcess, ProcessFailed
from hami_rig.profile import Profile, ProfileError, RigNode
from hami_rig.scheduler import configuration
from hami_rig.service_settings import LOOPBACK, REGISTRY, SCHEDULER, ServicePaths, service_environments, user_tokens
from hami_runtime.kube import http
from hami_runtime.kube.cluster import NODES

READY_SECONDS = 60.0
GRACE_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.05
COUNTED_SECONDS = 15.0
"""Longer than a kubelet's period of writing its node's status."""
NATS = "nats"
API_SERVER = "api-server"
KUBE_SCHEDULER = "kube-scheduler"
KUBELETS = "kubelets"


class Rig:
    """A running rig.

    Args:
        profile: its nodes.
        folder: where it keeps everything, which must not exist yet; a new temporary folder where not given. It is removed at the end.
        log_level: of all its programs.
        otlp_endpoint: where the services send traces and metrics (OTLP over HTTP); empty for nowhere.
        say: told of every step, for people.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        folder: Path | None = None,
        log_level: str = "info",
        otlp_endpoint: str = "",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.profile = profile
        self._catalog = _catalog(profile)
        self.folder = _new_folder(folder)
        self.kubeconfig = self.folder / "kubeconfig"
        self.processes: dict[str, ManagedProcess] = {}
        self.ports: dict[str, dict[str, Any]] = {}
        self.nats_url = ""
        self._log_level = log_level
        self._otlp_endpoint = otlp_endpoint
        self._say = say
        self._janitor: asyncio.subprocess.Process | None = None

    @property
    def nodes(self) -> tuple[RigNode, ...]:
        """The rig's nodes."""
        return self.profile.expanded()

    @property
    def scheduler_url(self) -> str:
        """Where our scheduler answers ``/v1``."""
        return f"http://{LOOPBACK}:{self.ports[SCHEDULER]['api']}"

    @property
    def registry_url(self) -> str:
        """Where our registry answers ``/v1``."""
        return f"http://{LOOPBACK}:{self.ports[REGISTRY]['api']}"

    def node_folder(self, name: str) -> NodeFolder:
        """Where one node keeps its sockets, CDI specs and container records."""
        return NodeFolder(self.folder / "nodes" / name)

    async def __aenter__(self) -> Self:
        try:
            await self._start_janitor()
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop everything, the foundations last, and remove the folder."""
        foundations = {NATS, API_SERVER}
        await self._stop(process for name, process in self.processes.items() if name not in foundations)
        await self._stop(process for name, process in self.processes.items() if name in foundations)
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()
            await self._janitor.wait()
            self._janitor = None
        shutil.rmtree(self.folder, ignore_errors=True)

    async def kill(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Kill one program and wait until it is dead."""
        process = self.processes[name]
        process.send(signum)
        await process.wait()

    async def restart(self, name: str) -> None:
        """Start one program again, where it was, and wait until it is ready."""
        process = self.processes[name]
        await process.stop(grace_seconds=GRACE_SECONDS)
        await process.start()
        await process.ready(timeout_seconds=READY_SECONDS)

    async def first_failure(self) -> ManagedProcess:
        """Wait until a program ends that nobody stopped."""
        while True:
            for process in self.processes.values():
                if process.ended_unasked:
                    return process
            await asyncio.sleep(0.2)

    async def _start(self) -> None:
        self._say("starting NATS and the API server")
        await _together(self._start_nats(), self._start_api_server())
        for node in self.nodes:
            await cards.write(self.node_folder(node.name), node)
        paths = ServicePaths(
            folder=self.folder,
            nats_url=self.nats_url,
            device_config=self._write_device_config(),
            shim=self._install_shim(),
            log_level=self._log_level,
            otlp_endpoint=self._otlp_endpoint,
        )
        self._write_kubeconfigs(paths)
        services = service_environments(self.nodes, paths)
        self._say(f"starting webhook, scheduler, registry, {len(self.nodes)} nodes with their agents")
        for name, (module, environ) in services.items():
            self._define(name, ["-c", f"from {module} import main; main()"], environ)
        self._define_kubelets(paths)
        await _together(*(self._start_one(name) for name in (KUBELETS, *services)))
        self._say("starting kube-scheduler")
        self._define_kube_scheduler(paths)
        await self._start_one(KUBE_SCHEDULER)
        self._say("waiting until every service is able to do its job")
        await _together(*(self.able(name) for name in services))
        self._say("waiting until every kubelet has counted its devices")
        await self._counted()

    async def _counted(self) -> None:
        """Wait until each node with cards has some allocatable, or kubelets have had the time for it: until then no pod is placed there."""
        wanted = {node.name: self._catalog.by_device_type(node.devices["vendor"]) for node in self.nodes if _has_cards(node)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNTED_SECONDS), http.connect(str(self.kubeconfig)) as cluster:
                while True:
                    listed = {node.metadata.name: node.status.allocatable or {} for node in (await cluster.list(NODES)).items}
                    if all(vendor is None or _some(listed.get(name, {}), vendor.count_resource) for name, vendor in wanted.items()):
                        return
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def able(self, name: str) -> None:
        """Wait until a service answers ``/readyz`` with yes.

        Raises:
            ProcessFailed: it does not; the text has the reason that it gives.
        """
        process, url = self.processes[name], f"http://{LOOPBACK}:{self.ports[name]['health']}/readyz"
        reason = ""
        try:
            async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
                while process.pid:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                            reason = await answer.text()
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError as exc:
            raise ProcessFailed(f"{name} is not ready after {READY_SECONDS:.0f} s: {reason}\n{process.log_tail()}") from exc
        raise ProcessFailed(process.obituary())

    async def _start_one(self, name: str) -> None:
        process = self.processes[name]
        await process.start()
        self.ports[name] = await process.ready(timeout_seconds=READY_SECONDS)
        for listener, port in self.ports[name].items():
            variable = f"HAMI_{listener.upper()}_PORT"
            if variable in process.environ:
                process.environ[variable] = str(port)
        self._say(f"{name} is ready")

    async def _start_nats(self) -> None:
        program = _program("nats-server")
        arguments = ["--addr", LOOPBACK, "--jetstream", "--store_dir", str(self.folder / "jetstream"), "--ports_file_dir", str(self.folder)]
        process = self._define(NATS, [*arguments, "--port", "-1"], {}, program=program)
        await process.start()
        found = self.folder / f"nats-server_{process.pid}.ports"
        await _appears(found, process)
        self.nats_url = msgspec.json.decode(found.read_bytes())["nats"][0]
        port = self.nats_url.rpartition(":")[2]
        process.command[1:] = [*arguments, "--port", port]
        process.ready_content = {"nats": int(port)}
        self.ports[NATS] = process.ready_content

    async def _start_api_server(self) -> None:
        arguments = ["-m", "hami_rig.apiserver", "--port", "0", "--kubeconfig", str(self.kubeconfig)]
        arguments += ["--nodes-folder", str(self.folder / "nodes")]
        process = self._define(API_SERVER, arguments, {})
        await process.start()
        await _appears(self.kubeconfig, process)
        self.ports[API_SERVER] = process.ready_content = {}

    def _define_kubelets(self, paths: ServicePaths) -> None:
        path = self.folder / "profile.yaml"
        path.write_bytes(msgspec.yaml.encode(self.profile))
        arguments = ["--profile", str(path), "--kubeconfig", str(paths.kubeconfig(KUBELETS)), "--folder", str(self.folder / "nodes")]
        self._define(KUBELETS, ["-m", "hami_rig.kubelet", *arguments, "--log-level", self._log_level], {})

    def _define_kube_scheduler(self, paths: ServicePaths) -> None:
        url = f"http://{LOOPBACK}:{self.ports[SCHEDULER]['extender']}"
        path = self.folder / "kube-scheduler.yaml"
        path.write_bytes(msgspec.yaml.encode(configuration.generate(self._catalog.managed_resources, extender_url=url)))
        arguments = ["--config", str(path), "--kubeconfig", str(paths.kubeconfig(KUBE_SCHEDULER)), "--log-level", self._log_level]
        self._define(KUBE_SCHEDULER, ["-m", "hami_rig.scheduler", *arguments], {})

    def _define(self, name: str, arguments: list[str], environ: dict[str, str], *, program: str = sys.executable) -> ManagedProcess:
        process = ManagedProcess(name, [program, *arguments], folder=self.folder, environ=environ)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")}
        process.environ = {**inherited, **environ, "HAMI_READY_FILE": str(process.ready_file), "PYTHONUNBUFFERED": "1"}
        self.processes[name] = process
        return process

    def _write_kubeconfigs(self, paths: ServicePaths) -> None:
        url = msgspec.yaml.decode(self.kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]
        for process, token in user_tokens(self.nodes).items():
            path = paths.kubeconfig(process)
            path.parent.mkdir(exist_ok=True)
            path.write_text(kubeconfig(url, token))

    def _install_shim(self) -> bool:
        source = project.find(project.SHIM)
        if source is None:
            self._say(f"the shim is not built ({project.SHIM}): containers get their grants without it")
            return False
        for node in self.nodes:  # a host each: agents clear away what belongs to no pod of theirs
            folder = self.node_folder(node.name)
            shim_install.install(source, HostPaths(hook=str(folder.root / "hook")), cdi_folder=folder.cdi)
        return True

    def _write_device_config(self) -> Path | None:
        if not self.profile.device_config:
            return None
        path = self.folder / "device-config.yaml"
        path.write_bytes(msgspec.yaml.encode(self.profile.device_config))
        return path

    async def _start_janitor(self) -> None:
        self._janitor = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", janitor.__file__, str(self.folder), stdin=asyncio.subprocess.PIPE, start_new_session=True
        )

    async def _stop(self, processes: Iterable[ManagedProcess]) -> None:
        async with asyncio.TaskGroup() as group:
            for process in processes:
                group.create_task(process.stop(grace_seconds=GRACE_SECONDS))


def _new_folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="hami-rig-"))
    try:
        wanted.mkdir(mode=0o700, parents=True)
    except FileExistsError as exc:
        raise ProcessFailed(f"{wanted}: exists; accepted: a folder that does not, since it is removed at the end") from exc
    except OSError as exc:
        raise ProcessFailed(f"{wanted}: {exc.strerror}") from exc
    return wanted.resolve()


def _has_cards(node: RigNode) -> bool:
    return bool(node.devices.get("count") or node.devices.get("devices"))


def _some(allocatable: Mapping[str, object], resource: str) -> bool:
    return str(allocatable.get(resource, "0")) != "0"


def _catalog(profile: Profile) -> Catalog:
    if not profile.device_config:
        return Catalog()
    try:
        config, _ = load_device_config(msgspec.yaml.encode(profile.device_config).decode())
    except ConfigError as exc:
        raise ProfileError(f"device_config: {exc}") from exc
    return Catalog(config)


def _program(name: str) -> str:
    """A program that was installed beside this Python, or is on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise ProcessFailed(f"{name} is not installed; it comes with: pip install 'hami[rig]'")
    return found


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


async def _appears(path: Path, process: ManagedProcess) -> None:
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not _has_content(path):
                if not process.pid:
                    raise ProcessFailed(process.obituary())
                await asyncio.sleep(0.02)
    except TimeoutError as exc:
        raise ProcessFailed(f"{process.name} is not ready after {READY_SECONDS:.0f} s\n{process.log_tail()}") from exc


async def _together(*starts: Awaitable[None]) -> None:
    """Run all; of several failures the first is raised alone, as it was."""
    results = await asyncio.gather(*starts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result

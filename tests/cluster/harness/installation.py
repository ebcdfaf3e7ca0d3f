"""A whole real cluster: control plane, nodes, NATS, our four services as processes, and kube-scheduler with our extender.

The services get the settings that the rig gives them, so that they are the same processes in both; what is below them is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import yaml

from hami_devices.catalog import Catalog
from hami_node_agent import profile as agent_profile
from hami_node_agent import shim_install
from hami_node_agent.needs import HostPaths
from hami_node_agent.profile import ProfileHardware
from hami_rig import profile, project
from hami_rig.kubectl import kubectl
from hami_rig.processes import ManagedProcess, ProcessFailed
from hami_rig.profile import RigNode
from hami_rig.service_settings import LOOPBACK, REGISTRY, SCHEDULER, ServicePaths, agent_process, service_environments
from tests.cluster.harness import images, ports
from tests.cluster.harness.control_plane import GRACE_SECONDS, READY_SECONDS, ControlPlane, _inherited
from tests.cluster.harness.node import Node
from tests.cluster.harness.users import NAMESPACE
from tools import scheduler_configuration

NATS = "nats"
KUBE_SCHEDULER = "kube-scheduler"
PROGRAMS = frozenset({"ConfigMap", "DaemonSet", "Deployment", "StatefulSet"})
"""Kinds of the deployment that are not applied."""
FIXTURES = Path(__file__).parents[1] / "fixtures"
LOOK_AGAIN_SECONDS = 0.1
APPLY_SECONDS = 120.0
ROLL_SECONDS = 30.0
"""As the termination grace period of our pods."""


class Installation:
    """HAMi on a real cluster, from nothing to ready; everything is gone afterwards.

    Args:
        nodes: the rig's profile of nodes, as YAML.
        say: told of every step.
    """

    def __init__(self, nodes: str, *, say: Callable[[str], None] = lambda _: None) -> None:
        self.profile = profile.parse(nodes)
        self.rig_nodes: dict[str, RigNode] = {node.name: node for node in self.profile.expanded()}
        self.folder = Path(tempfile.mkdtemp(prefix="hami-cluster-"))
        self.plane = ControlPlane(nodes=self.rig_nodes, folder=self.folder, say=say)
        self.nodes: dict[str, Node] = {}
        self.ports: dict[str, dict[str, Any]] = {}
        self.nats_url = ""
        self.cards: dict[str, list[str]] = {}
        """UUIDs of each node's cards, in the order of their indexes."""
        self._say = say
        self._rolled: dict[str, int] = {}

    @property
    def kubeconfig(self) -> Path:
        """Of somebody who may do everything."""
        return self.plane.admin

    @property
    def processes(self) -> dict[str, ManagedProcess]:
        """Every program by its name."""
        return self.plane.processes

    @property
    def scheduler_url(self) -> str:
        """Where our scheduler answers ``/v1``."""
        return f"http://{LOOPBACK}:{self.ports[SCHEDULER]['api']}"

    @property
    def registry_url(self) -> str:
        """Where our registry answers ``/v1``."""
        return f"http://{LOOPBACK}:{self.ports[REGISTRY]['api']}"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop services, nodes and control plane, in this order, and remove what they left."""
        services = [name for name in self.processes if name in self.ports or name == KUBE_SCHEDULER]
        await asyncio.gather(*(self.processes[name].stop(grace_seconds=GRACE_SECONDS) for name in services))
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await self.plane.close()

    async def restart(self, name: str) -> None:
        """Start one program of ours again, where it was, and wait until it is able."""
        process = self.processes[name]
        await process.stop(grace_seconds=GRACE_SECONDS)
        await process.start()
        await process.ready(timeout_seconds=READY_SECONDS)

    async def roll(self, name: str) -> None:
        """Replace a program of ours as a rolling update with a surge does: the new process is able before the old one is asked to end."""
        old, number = self.processes[name], self._rolled.get(name, 0) + 1
        newer = ManagedProcess(f"{name}-{number}", old.command, folder=self.folder, environ={})
        newer.environ = {**old.environ, "HAMI_READY_FILE": str(newer.ready_file), "HAMI_HEALTH_PORT": "0"}
        self._rolled[name] = number
        self.processes[f"{name}-old"], self.processes[name] = old, newer
        await newer.start()
        self.ports[name] = await newer.ready(timeout_seconds=READY_SECONDS)
        newer.environ["HAMI_HEALTH_PORT"] = str(self.ports[name]["health"])
        await self.able(name)
        await old.stop(grace_seconds=ROLL_SECONDS)
        del self.processes[f"{name}-old"]

    async def reboot(self, name: str) -> None:
        """Cut a node's power; its agent, a pod of the node, comes back with it."""
        agent = self.processes[agent_process(name)]
        await agent.stop(grace_seconds=GRACE_SECONDS)
        await self.nodes[name].reboot()
        await agent.start()
        await agent.ready(timeout_seconds=READY_SECONDS)

    async def able(self, name: str, *, seconds: float = READY_SECONDS) -> None:
        """Wait until a service answers ``/readyz`` with yes.

        Raises:
            ProcessFailed: it does not; the text has its reason.
        """
        process, url, reason = self.processes[name], f"http://{LOOPBACK}:{self.ports[name]['health']}/readyz", ""
        try:
            async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
                while process.pid:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                            reason = await answer.text()
                    await asyncio.sleep(LOOK_AGAIN_SECONDS)
        except TimeoutError as exc:
            raise ProcessFailed(f"{name} is not ready after {seconds:.0f} s: {reason}\n{process.log_tail()}") from exc
        raise ProcessFailed(process.obituary())

    async def _start(self) -> None:
        await self.plane.__aenter__()
        write_images(self.folder / "images")
        await asyncio.gather(self._start_nats(), self.apply_deployment(), *(self._start_node(node) for node in self.rig_nodes.values()))
        paths = ServicePaths(folder=self.folder, nats_url=self.nats_url, device_config=None, shim=self._install_shim(), log_level="info")
        services = service_environments(self.rig_nodes.values(), paths)
        self._say(f"starting {', '.join(services)}")
        for name, (module, environ) in services.items():
            self._define(name, module, environ)
        for node in self.nodes:
            self.processes[agent_process(node)].environ["HAMI_CDI_BASE_SPEC"] = str(self._driver_spec(node))
        await asyncio.gather(*(self._start_service(name) for name in services))
        self._say("starting kube-scheduler")
        await self.plane.start_program(KUBE_SCHEDULER, *self._scheduler_arguments())
        self._say("waiting until every service is able to do its job")
        await asyncio.gather(*(self.able(name) for name in services))
        await self._registered()

    async def _start_node(self, described: RigNode) -> None:
        node = Node(self.plane, described.name, labels=described.description.labels)
        self.nodes[node.name] = node
        node.folder.make()
        content = msgspec.yaml.encode(described.devices)
        node.folder.device_profile.write_bytes(content)
        inventory = await ProfileHardware(agent_profile.read(content), node=node.name).scan()
        lines = [f"uuid={card.uuid} name={card.type.replace(' ', '-')} memory_mib={card.memory_mib}\n" for card in inventory.devices]
        node.folder.cards.write_text("".join(lines))
        self.cards[node.name] = [card.uuid for card in inventory.devices]
        await node.start()

    def _driver_spec(self, node: str) -> Path:
        """What ``nvidia-ctk cdi generate`` would write: a device node for each card (here it is ``/dev/null`` under another name) and one for all."""
        folder = self.nodes[node].root / "dev"
        folder.mkdir(exist_ok=True)

        def device(name: str) -> dict[str, str]:
            path = folder / name
            if not path.exists():
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            return {"path": f"/dev/{name}", "hostPath": str(path), "permissions": "rw"}

        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "containerEdits": {"deviceNodes": [device("nvidiactl")]},
            "devices": [
                {"name": uuid, "containerEdits": {"deviceNodes": [device(f"nvidia{index}")]}} for index, uuid in enumerate(self.cards[node])
            ],
        }
        path = self.nodes[node].root / "driver.yaml"
        path.write_bytes(msgspec.yaml.encode(spec))
        return path

    async def _start_nats(self) -> None:
        port = ports.free()
        self.nats_url = f"nats://{LOOPBACK}:{port}"
        program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "nats-server"
        command = [program, "--addr", LOOPBACK, "--port", str(port), "--jetstream", "--store_dir", str(self.folder / "jetstream")]
        process = ManagedProcess(NATS, command, folder=self.folder, environ=_inherited())
        process.ready_content = {"nats": port}
        self.processes[NATS] = process
        self.ports[NATS] = process.ready_content
        await process.start()

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
            except OSError:
                return False
            writer.close()
            return True

        await self.plane.until(listens, NATS, "it does not listen")

    async def remove_admission(self) -> None:
        """Take webhooks and policies away, as before an installation of ours."""
        kinds = (
            "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicybindings,validatingadmissionpolicies"
        )
        await kubectl(self.kubeconfig, "delete", kinds, "--all")

    async def apply_deployment(self) -> None:
        """What of the deployment is the API server's; the programs run as processes of this harness."""
        everything = yaml.safe_load_all(await kubectl(self.kubeconfig, "kustomize", str(FIXTURES)))
        path = self.folder / "deployment.yaml"
        path.write_text(yaml.safe_dump_all([body for body in everything if body["kind"] not in PROGRAMS]))
        await kubectl(self.kubeconfig, "apply", "-f", str(path), timeout_seconds=APPLY_SECONDS)

    def _define(self, name: str, module: str, environ: dict[str, str]) -> None:
        command = [sys.executable, "-c", f"from {module} import main; main()"]
        process = ManagedProcess(name, command, folder=self.folder, environ={})
        environ = {**environ, "HAMI_NAMESPACE": NAMESPACE}
        process.environ = {**_inherited(), **environ, "HAMI_READY_FILE": str(process.ready_file), "PYTHONUNBUFFERED": "1"}
        self.processes[name] = process

    async def _start_service(self, name: str) -> None:
        process = self.processes[name]
        await process.start()
        self.ports[name] = await process.ready(timeout_seconds=READY_SECONDS)
        for listener, port in self.ports[name].items():
            variable = f"HAMI_{listener.upper()}_PORT"
            if variable in process.environ:
                process.environ[variable] = str(port)

    def _scheduler_arguments(self) -> Iterable[str]:
        body = scheduler_configuration.kube_scheduler(Catalog().managed_resources)
        body["clientConnection"]["kubeconfig"] = str(self.plane.kubeconfig(KUBE_SCHEDULER))
        body["leaderElection"] = {"leaderElect": False}
        body["profiles"] = [{"schedulerName": "default-scheduler"}, *body["profiles"]]  # no other kube-scheduler is here
        body["extenders"][0]["urlPrefix"] = f"http://{LOOPBACK}:{self.ports[SCHEDULER]['extender']}"
        path = self.folder / "kube-scheduler.yaml"
        path.write_bytes(msgspec.yaml.encode(body))
        return ("--config", str(path), "--secure-port", "0", "-v", "2")

    def _install_shim(self) -> bool:
        source = project.find(project.SHIM)
        if source is None:
            return False
        for node in self.nodes.values():
            shim_install.install(source, HostPaths(hook=str(node.root / "hook")), cdi_folder=node.folder.cdi)
        return True

    async def _registered(self) -> None:
        """Wait until kubelet counts the shares of every node."""
        async with self.plane.session() as session:

            async def counted() -> bool:
                for name in self.rig_nodes:
                    async with session.get(f"/api/v1/nodes/{name}") as answer:
                        node = await answer.json()
                    if node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") == "0":
                        return False
                return True

            await self.plane.until(counted, SCHEDULER, "nvidia.com/gpu is not allocatable on every node")


def write_images(folder: Path) -> None:
    """Write the images that nodes import into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    images.archive(images.PAUSE, folder / "pause.tar", entrypoint=["/bin/sleep", "2147483647"])
    images.archive(images.BUSYBOX, folder / "busybox.tar", entrypoint=["/bin/sh"])
    tools = {f"/bin/{name}": path for name in ("vgpu-alloc", "vgpu-smi") if (path := project.find(f"build/cshim/{name}")) is not None}
    driver = project.find(project.FAKE_DRIVER)
    if driver is not None and tools:
        libraries = {f"/usr/lib/{path.name}": path for path in driver.iterdir() if ".so" in path.name}
        images.archive(images.TOOLS, folder / "tools.tar", entrypoint=["/bin/vgpu-alloc"], files={**tools, **libraries})

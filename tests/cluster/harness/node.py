"""One node: containerd and kubelet in a process and a mount namespace of their own.

Kubelet's folder for device plugins is fixed (``/var/lib/kubelet/device-plugins``), as are several of the runtime's; in the node's mount
namespace each of them is a folder of the node's own, so that nodes run side by side and the machine's folders stay as they are. When the
namespace's first process is killed, the kernel kills everything in it, containers too, and every mount is gone: nothing can be left behind.

Seen from outside, the node's sockets and files are below ``folder``, laid out as the rig lays out its fake nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hami_rig.kubelet.kubelet import NodeFolder
from hami_rig.processes import ManagedProcess
from tests.cluster.harness import images, janitor, ports
from tests.cluster.harness.control_plane import GRACE_SECONDS, ControlPlane, _inherited

_ENTER = """
set -e
mount --bind {root}/var-lib /var/lib
mount --bind {root}/log /var/log
mount -t tmpfs tmpfs /run
mkdir -p /run/cdi /var/lib/kubelet/device-plugins
mount --bind {root}/cdi /run/cdi
mount --bind {root}/device-plugins /var/lib/kubelet/device-plugins
mount --make-rshared /
touch {root}/entered
while :; do sleep 3600 & wait; done
"""
CONTAINERD = """
version = 3
root = "{root}/containerd-root"
state = "{root}/containerd-state"

[grpc]
  address = "{socket}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true        # a machine without CAP_SYS_RESOURCE cannot lower it, and runc fails
  enable_unprivileged_ports = false    # both write sysctls that a locked-down machine refuses
  enable_unprivileged_icmp = false
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{cni}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
"""
"""containerd's settings on a node of the tests; a string to be formatted."""
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "failCgroupV1": False,  # the machine may still have cgroup v1
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "cgroupDriver": "cgroupfs",
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "evictionHard": {},
    "resolvConf": "",
    "featureGates": {"KubeletCrashLoopBackOffMax": True},  # on by default from 1.35
}
"""What every kubelet of the tests is set to; the rest depends on its node."""
_NETWORK = {"cniVersion": "0.4.0", "name": "loopback-only", "plugins": [{"type": "loopback"}]}
CHECKPOINT = "kubelet_internal_checkpoint"


class InNamespace(ManagedProcess):
    """A program inside the node's namespaces; ``nsenter`` waits for it outside."""

    def send(self, signum: signal.Signals) -> None:
        """Signal the program itself: nsenter hands no signal on."""
        outside = self.pid
        self._ending = self._ending or signum in (signal.SIGTERM, signal.SIGKILL)
        with contextlib.suppress(OSError):
            for child in _children(outside):
                os.kill(child, signum)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Node:
    """A running node.

    Args:
        plane: the control plane that it belongs to.
        name: the node's name; ``plane`` was told of it.
        labels: of its Node object.
    """

    def __init__(self, plane: ControlPlane, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.folder = NodeFolder(plane.folder / "nodes" / name)
        self._plane = plane
        self._labels = dict(labels or {})
        self._port = ports.free()
        self._inside = 0

    @property
    def root(self) -> Path:
        """Where everything of the node is."""
        return self.folder.root

    @property
    def checkpoint(self) -> Path:
        """The device manager's record of who holds what."""
        return self.folder.device_plugins / CHECKPOINT

    def log(self, namespace: str, pod: str, uid: str, container: str, *, restart: int = 0) -> Path:
        """The file that kubelet keeps a container's output in."""
        return self.root / "pod-logs" / f"{namespace}_{pod}_{uid}" / container / f"{restart}.log"

    async def start(self) -> None:
        """Start the node and wait until kubelet says that it is ready for pods."""
        self._plane.say(f"starting containerd and kubelet of {self.name}")
        await self._enter()
        await self._start_containerd()
        await self.start_kubelet()

    async def stop(self) -> None:
        """Stop everything in the node, containers too."""
        ids = janitor.containers(self._plane.folder)
        if self._inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._inside, signal.SIGKILL)
            await self._plane.processes[self._process("namespace")].wait()
            self._inside = 0
        for part in ("kubelet", "containerd"):
            if (process := self._plane.processes.get(self._process(part))) is not None:
                await process.stop(grace_seconds=GRACE_SECONDS)
        janitor.remove_cgroups(ids)

    async def start_kubelet(self) -> None:
        """Start kubelet, and wait until it has said that it is ready."""
        (self.folder.device_plugins / "kubelet.sock").unlink(missing_ok=True)
        await self._run(
            "kubelet",
            *("--kubeconfig", str(self._plane.kubeconfig(f"kubelet-{self.name}")), "--config", str(self._kubelet_config())),
            *("--hostname-override", self.name, "--root-dir", str(self.root), "-v", "2"),
            *("--node-labels", ",".join(f"{key}={value}" for key, value in self._labels.items())),
        )
        await self._ready()

    async def stop_kubelet(self) -> None:
        """Stop kubelet; containers go on."""
        await self._plane.processes[self._process("kubelet")].stop(grace_seconds=GRACE_SECONDS)

    async def restart_kubelet(self) -> None:
        """Stop kubelet and start it again."""
        await self.stop_kubelet()
        await self.start_kubelet()

    async def reboot(self) -> None:
        """Cut the power: everything ends at once, ``/run`` and with it ``/var/run`` is empty, the disk keeps what it had; then start again."""
        await self.stop()
        for path in self.folder.cdi.iterdir():
            path.unlink()
        for name in ("containerd.sock", "containerd.sock.ttrpc", "entered"):
            (self.root / name).unlink(missing_ok=True)
        await self.start()

    async def images(self) -> str:
        """What is there, as ctr lists it."""
        return await self._ctr("image", "ls", "--quiet")

    def _process(self, part: str) -> str:
        return f"{part}-{self.name}"

    async def _enter(self) -> None:
        self.folder.make()
        for name in ("var-lib", "log", "cni"):
            (self.root / name).mkdir(exist_ok=True)
        entered = self.root / "entered"
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", _ENTER.format(root=self.root)]
        process = ManagedProcess(self._process("namespace"), command, folder=self._plane.folder, environ=_inherited())
        self._plane.processes[process.name] = process
        await process.start()

        async def there() -> bool:
            return entered.exists()

        await self._plane.until(there, process.name, "the namespaces are not set up")
        self._inside = _children(process.pid)[0]

    async def _start_containerd(self) -> None:
        (self.root / "cni" / "loopback.conflist").write_bytes(msgspec.json.encode(_NETWORK))
        config = self.root / "containerd.toml"
        paths = {"root": self.root, "socket": f"{self.root}/containerd.sock", "cni": f"{self.root}/cni"}
        config.write_text(CONTAINERD.format(**paths, snapshotter="native", pause=images.PAUSE))
        await self._run("containerd", "--config", str(config))

        async def answers() -> bool:
            process = await asyncio.create_subprocess_exec(
                *self._ctr_command("version"), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            return await process.wait() == 0

        await self._plane.until(answers, self._process("containerd"), "containerd does not answer")
        for archive in sorted((self._plane.folder / "images").glob("*.tar")):
            await self._ctr("image", "import", "--local", "--snapshotter", "native", str(archive))

    async def _run(self, program: str, *arguments: str) -> None:
        enter = ["nsenter", "--target", str(self._inside), "--mount", "--pid", "--", str(self._plane.binaries / program), *arguments]
        path = f"{self._plane.binaries}:{os.environ['PATH']}"
        process = InNamespace(self._process(program), enter, folder=self._plane.folder, environ={**_inherited(), "PATH": path})
        self._plane.processes[process.name] = process
        await process.start()

    def _ctr_command(self, *arguments: str) -> list[str]:
        return [str(self._plane.binaries / "ctr"), "--address", f"{self.root}/containerd.sock", "--namespace", "k8s.io", *arguments]

    async def _ctr(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *self._ctr_command(*arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {output.decode(errors='replace')}")
        return output.decode(errors="replace")

    def _kubelet_config(self) -> Path:
        path = self.root / "kubelet.yaml"
        path.write_bytes(
            msgspec.yaml.encode(
                {
                    **KUBELET,
                    "address": "127.0.0.1",
                    "port": self._port,
                    "readOnlyPort": 0,
                    "healthzPort": 0,
                    "containerRuntimeEndpoint": f"unix://{self.root}/containerd.sock",
                    "podLogsDir": f"{self.root}/pod-logs",
                    "makeIPTablesUtilChains": False,
                    "maxPods": 250,
                    "nodeStatusUpdateFrequency": "1s",  # what a device plugin offers is counted soon, not after ten seconds
                    "syncFrequency": "5s",  # what failed is tried again soon, not after ten seconds
                    "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},  # what crashes is started again soon, not after 10 and 20
                    "registryPullQPS": 0,
                    "kubeAPIQPS": 200,
                    "kubeAPIBurst": 400,
                    "serializeImagePulls": False,
                }
            )
        )
        return path

    async def _ready(self) -> None:
        async with self._plane.session() as session:

            async def ready() -> bool:
                if not (self.folder.device_plugins / "kubelet.sock").exists():
                    return False
                async with session.get(f"/api/v1/nodes/{self.name}") as answer:
                    if answer.status != 200:
                        return False
                    node = await answer.json()
                conditions = {each["type"]: each for each in node.get("status", {}).get("conditions", ())}
                return conditions.get("Ready", {}).get("status") == "True" and not node["spec"].get("taints")

            await self._plane.until(ready, self._process("kubelet"), "the node is not ready")

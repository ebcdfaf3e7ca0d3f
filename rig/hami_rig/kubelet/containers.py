"""Containers of the rig: a record of what each was given, and something that runs: a timer, or a local process under the real shim.

Annotations of the pod decide what runs: ``rig.hami.io/run-seconds`` (app containers end by themselves after so long; without it they run until
they are stopped), ``rig.hami.io/init-seconds`` (the same for ordinary init containers, 0 without it), ``rig.hami.io/exit-code`` and
``rig.hami.io/init-exit-code``, ``rig.hami.io/stop-seconds`` (how long containers take to end once they are asked to, within their grace), and
``rig.hami.io/process: "true"`` (the container's command is really started).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from hami_node_agent.api import deviceplugin_pb2 as pb
from hami_protocol import kubernetes as k
from hami_protocol.devices import ContainerKind
from hami_rig.kubelet import cdi
from hami_rig.kubelet import process_environment as processes
from hami_rig.kubelet.devices import Held
from hami_rig.kubelet.grant_copy import GrantCopy
from hami_rig.kubelet.process_environment import StartFailed
from hami_rig.processes import die_with_parent

RUN_SECONDS = "rig.hami.io/run-seconds"
INIT_SECONDS = "rig.hami.io/init-seconds"
EXIT_CODE = "rig.hami.io/exit-code"
INIT_EXIT_CODE = "rig.hami.io/init-exit-code"
STOP_SECONDS = "rig.hami.io/stop-seconds"
PROCESS = "rig.hami.io/process"
KILLED_EXIT_CODE = 137


class RunningContainer:
    """One started container. ``exit_code`` is set by whoever it ends through."""

    def __init__(self, seconds: float | None, exit_code: int, *, stop_seconds: float = 0.0) -> None:
        self._planned_seconds = seconds
        self._stop_seconds = stop_seconds
        self._planned_exit_code = exit_code
        self._stopped = asyncio.Event()

    async def wait(self) -> int:
        """Wait until it ends; its exit code."""
        try:
            async with asyncio.timeout(self._planned_seconds):
                await self._stopped.wait()
        except TimeoutError:
            return self._planned_exit_code
        return KILLED_EXIT_CODE

    async def stop(self, grace_seconds: float) -> None:
        """End it, after as much of the grace as it takes."""
        await asyncio.sleep(min(self._stop_seconds, grace_seconds))
        self._stopped.set()


class ProcessContainer(RunningContainer):
    """A container that is a local process."""

    def __init__(self, process: asyncio.subprocess.Process, grant: GrantCopy | None = None) -> None:
        super().__init__(None, 0)
        self._process = process
        self._grant = grant

    async def wait(self) -> int:
        """Wait for the process; a signal counts as 128 and its number."""
        following = asyncio.create_task(self._grant.follow()) if self._grant is not None else None
        try:
            code = await self._process.wait()
        finally:
            if following is not None:
                following.cancel()
        return code if code >= 0 else 128 - code

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to its whole group, then SIGKILL."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)

    def _signal(self, signum: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signum)


def given_to(container: k.Container, held: tuple[Held, ...], cdi_folder: Path) -> cdi.Given:
    """What the container is started with: its own environment, the plugins' answers, and the CDI specs that they name.

    Raises:
        StartFailed: a CDI name is in no spec.
    """
    env = {variable.name: variable.value for variable in container.env or () if variable.value_from is None}
    mounts: list[cdi.Mount] = []
    nodes: list[cdi.DeviceNode] = []
    names: list[str] = []
    for each in held:
        answer = pb.ContainerAllocateResponse.FromString(each.answer)
        env |= dict(answer.envs)
        mounts += [
            cdi.Mount(host_path=mount.host_path, container_path=mount.container_path, options=("ro" if mount.read_only else "rw", "bind"))
            for mount in answer.mounts
        ]
        nodes += [
            cdi.DeviceNode(path=device.container_path, host_path=device.host_path, permissions=device.permissions)
            for device in answer.devices
        ]
        names += [device.name for device in answer.cdi_devices]
    try:
        edits = cdi.resolve(names, read_specs(cdi_folder)) if names else []
    except cdi.UnresolvableDevices as exc:
        raise StartFailed("CreateContainerError", str(exc)) from exc
    return cdi.merged(env, mounts, nodes, names, edits)


def read_specs(folder: Path) -> list[cdi.Spec]:
    """All specs in ``folder``; one that cannot be read is passed over, as containerd does."""
    specs = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            with contextlib.suppress(OSError, msgspec.DecodeError):
                specs.append(cdi.decode(path.read_bytes()))
    return specs


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Write what a container was given, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    temporary.replace(path)


async def start(
    annotations: Mapping[str, str], container: k.Container, kind: ContainerKind, given: cdi.Given, folder: Path, *, cards: Path
) -> RunningContainer:
    """Start the container as its pod's annotations say.

    Args:
        annotations: of its pod.
        container: what its pod says of it.
        kind: which part of its pod it is.
        given: what it is given.
        folder: where a process's output goes.
        cards: the fake driver's description of the node's cards, for processes.

    Raises:
        StartFailed: it is to be a process and cannot be one.
    """
    if annotations.get(PROCESS) == "true" and container.command:
        grant = processes.grant_copy(given, folder / container.name)
        return await _start_process(container, processes.environment(given, cards, grant), folder, grant)
    stop_seconds = seconds_of(annotations, STOP_SECONDS) or 0.0
    if kind is ContainerKind.INIT:
        seconds, exit_code = seconds_of(annotations, INIT_SECONDS) or 0.0, seconds_of(annotations, INIT_EXIT_CODE)
        return RunningContainer(seconds, int(exit_code or 0), stop_seconds=stop_seconds)
    seconds_to_run = None if kind is ContainerKind.SIDECAR else seconds_of(annotations, RUN_SECONDS)
    return RunningContainer(seconds_to_run, int(seconds_of(annotations, EXIT_CODE) or 0), stop_seconds=stop_seconds)


def seconds_of(annotations: Mapping[str, str], key: str) -> float | None:
    """The number in an annotation; None where there is none, or one that makes no sense."""
    try:
        value = float(annotations[key])
    except (KeyError, ValueError):
        return None
    return value if 0 <= value < 10**9 else None


async def _start_process(container: k.Container, env: Mapping[str, str], folder: Path, grant: GrantCopy | None) -> RunningContainer:
    command = [*(container.command or ()), *(container.args or ())]
    program = shutil.which(command[0], path=env.get("PATH")) or command[0]
    with _open_log(folder, container.name) as output:
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as exc:
            raise StartFailed("RunContainerError", f"{command[0]}: {exc.strerror}") from exc
    return ProcessContainer(process, grant)


def _open_log(folder: Path, name: str) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"{name}.log").open("ab")

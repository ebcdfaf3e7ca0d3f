"""A Linux host in namespaces of its own: mounts, processes, network and host name. Nothing of the real host changes, and one kill ends it all.

/etc and /usr/local are the host's, with what is written kept in the machine's folder; /var/lib and /var/log are the folder's; /run is empty
memory. The network has one bridge, ``cni0``, at ``ADDRESS``. iptables' rules belong to it and vanish with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hami_rig.processes import die_with_parent
from tests.cluster.harness import janitor

ADDRESS: Final = "172.29.0.1"
NETWORK: Final = "172.29.0.0/24"
NODE: Final = "node-1"
WAIT_SECONDS: Final = 300.0
"""Long: other lanes compute beside this one."""
LOOK_AGAIN_SECONDS: Final = 0.2
REMOVALS: Final = 50
_ENTER: Final = f"""
set -e
overlay() {{ mkdir -p "$1/fs$2" "$1/work$2"; mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/fs$2,workdir=$1/work$2" "$2"; }}
overlay "$1" /etc; overlay "$1" /usr/local
mkdir -p "$1/fs/var/lib" "$1/fs/var/log"
mount --bind "$1/fs/var/lib" /var/lib; mount --bind "$1/fs/var/log" /var/log
mount -t tmpfs tmpfs /run; mkdir -p /run/cdi /var/lib/kubelet
mount --make-rshared /
hostname {NODE}
printf '127.0.0.1 localhost\\n{ADDRESS} {NODE}\\n' >/etc/hosts; : >/etc/resolv.conf
ip link set lo up
ip link add cni0 type bridge; ip addr add {ADDRESS}/24 dev cni0; ip link set cni0 up
sysctl -qw net.ipv4.ip_forward=1
ip route add default dev cni0
touch "$1/entered"
while :; do sleep 3600 & wait; done
"""


class CommandFailed(Exception):  # noqa: N818 - reads as the condition it names
    """A command ended with an error; the text is the command and what it printed."""


class Machine:
    """A running host; everything of it is below ``folder``, which has to be empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self._first = 0
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[tuple[str | Path, ...], Mapping[str, str] | None]] = {}
        self._janitor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the namespaces, mounts and the bridge."""
        self.logs.mkdir(parents=True)
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        self._enter()

    def reboot(self) -> None:
        """Cut the power and boot: no program runs, ``/run`` and the network are empty, the disk has what it had. ``again`` starts programs."""
        self._end_programs()
        for path in (self.folder / "entered", *self.folder.glob("nodes/*/containerd-state")):
            _remove(path)
        self._enter()

    def stop(self) -> None:
        """End every process of it and remove its folder."""
        self._end_programs()
        if self._janitor is not None:
            assert self._janitor.stdin is not None
            self._janitor.stdin.close()  # it removes the folder
            self._janitor.wait()

    def on_node(self, *command: str | Path) -> list[str]:
        """The command line that runs ``command`` among the machine's files, processes and network."""
        enter = ["nsenter", "--target", str(self._first), "--mount", "--pid", "--net", "--uts", f"--wd={self.folder}", "--"]
        return [*enter, *map(str, command)]

    def on_network(self, *command: str | Path) -> list[str]:
        """The command line that runs ``command`` with the machine's network and this host's files, as an administrator's machine."""
        return ["nsenter", "--target", str(self._first), "--net", "--", *map(str, command)]

    def spawn(self, name: str, *command: str | Path, environ: Mapping[str, str] | None = None) -> None:
        """Start a program of the node; its output goes to ``logs/<name>``."""
        self._commands[name] = (command, environ)
        self._start(name, self.on_node(*command), environ=environ)

    def end(self, name: str, signum: int = signal.SIGTERM) -> None:
        """Send a program a signal, and wait for its end."""
        program = self._programs.pop(name)
        (child,) = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()  # nsenter passes no signal on
        os.kill(int(child), signum)
        program.wait()

    def again(self, name: str) -> None:
        """Start a program as it was started before."""
        command, environ = self._commands[name]
        self._start(name, self.on_node(*command), environ=environ)

    def check(self) -> None:
        """Raise where a program has ended.

        Raises:
            CommandFailed: one has; the text has the end of its log.
        """
        for name, program in self._programs.items():
            if program.poll() is not None:
                tail = (self.logs / name).read_text(errors="replace")[-3000:]
                raise CommandFailed(f"{name} ended with exit status {program.returncode}\n{tail}")

    def until(self, holds: Callable[[], object], what: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Return once ``holds``; a command that fails, or an assertion, counts as not yet.

        Raises:
            CommandFailed: it does not hold in time, or a program has ended.
        """
        end, reason = time.monotonic() + seconds, ""
        while True:
            self.check()
            try:
                if holds():
                    return
            except (CommandFailed, AssertionError) as exc:
                reason = str(exc)
            if time.monotonic() > end:
                raise CommandFailed(f"{what}: not after {seconds:.0f} s\n{reason}")
            time.sleep(LOOK_AGAIN_SECONDS)

    def _enter(self) -> None:
        namespaces = ("--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "--kill-child")
        outer = self._start("machine", ["unshare", *namespaces, "bash", "-c", _ENTER, "machine", str(self.folder)])
        self.until(lambda: (self.folder / "entered").exists(), "the machine's namespaces")
        (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        self._first = int(child)

    def _end_programs(self) -> None:
        """Kill the first process, with which the kernel kills all others and drops every mount; containers' cgroups are removed."""
        ids = janitor.containers(self.folder)
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
        for program in self._programs.values():
            program.kill()
            program.wait()
        self._programs.clear()
        janitor.remove_cgroups(ids)

    def _start(self, name: str, command: list[str], *, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.logs / name).open("ab") as log:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._programs[name] = program
        return program


def _remove(path: Path) -> None:
    """Remove a file or folder; mounts of the namespaces that have just ended may hold it for a moment."""
    for _ in range(REMOVALS):
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        except OSError:
            time.sleep(LOOK_AGAIN_SECONDS)
        else:
            return
    raise CommandFailed(f"{path}: cannot be removed")


def run(command: list[str], *, given: str | None = None, environ: Mapping[str, str] | None = None, seconds: float = WAIT_SECONDS) -> str:
    """What a command prints.

    Raises:
        CommandFailed: it failed, or did not end in time.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            env={**os.environ, **(environ or {})},
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise CommandFailed(f"{' '.join(command)}: no end after {seconds:.0f} s\n{exc.stdout!r}{exc.stderr!r}") from exc
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout

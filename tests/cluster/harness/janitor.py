"""Takes down what a node leaves when whoever started it was killed: run as a script beside the harness, on the standard library alone.

Arguments: the harness's folder. Standard input is a pipe that only the harness holds open; its end means that the harness is gone. The kernel has
then killed every program and container (the node's process namespace) and dropped every mount (its mount namespace); what is left is the folder and
the containers' empty cgroups.
"""

import contextlib
import shutil
import signal
import sys
import time
from pathlib import Path

ATTEMPTS = 100
PAUSE_SECONDS = 0.1
CGROUPS = Path("/sys/fs/cgroup")


def containers(folder: Path) -> set[str]:
    """Ids of the containers that the nodes in ``folder`` have had tasks of."""
    return {path.name for path in folder.glob("nodes/*/containerd-state/io.containerd.runtime.v2.task/k8s.io/*")}


def remove_cgroups(ids: set[str]) -> None:
    """Remove the cgroups of ``ids``, in every hierarchy, where no process is left in them."""
    hierarchies = [CGROUPS, *(path for path in CGROUPS.iterdir() if path.is_dir())] if CGROUPS.is_dir() else []
    for hierarchy in hierarchies:
        parent = hierarchy / "k8s.io"
        for name in ids:
            _remove(parent / name)
        _remove(parent)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def main() -> None:
    """Wait for the end of the pipe, then clean up; programs may take a moment to die."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    ids = containers(folder)
    for _ in range(ATTEMPTS):
        ids |= containers(folder)
        shutil.rmtree(folder, ignore_errors=True)
        remove_cgroups(ids)
        if not folder.exists():
            return
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()

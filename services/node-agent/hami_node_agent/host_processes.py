"""What the host knows of processes, as a port: which are gone, and which container one belongs to. Adapter: ``/proc``.

Needs the host's pid namespace, and no right to look into processes: what is read is open to everybody.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, Protocol

from hami_node_agent.region import Owner

INITIAL_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the host's own pid namespace (Linux, PROC_PID_INIT_INO)."""
_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")
_POD_UID: Final = re.compile(r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}")
_START_FIELD: Final = 19
"""Of /proc/<pid>/stat, counted behind the name: start time in clock ticks."""


class HostProcesses(Protocol):
    """Processes of this node."""

    def gone(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """Which of them have certainly ended."""
        ...

    def belongs_to(self, pid: int) -> tuple[str, str]:
        """The pod's UID and the container's id of a process, by its pid on the host; both empty where it is in no container."""
        ...


class NoProcesses:
    """A host of which nothing is known."""

    def gone(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """See ``HostProcesses``."""
        del owners
        return frozenset()

    def belongs_to(self, pid: int) -> tuple[str, str]:
        """See ``HostProcesses``."""
        del pid
        return "", ""


class ProcProcesses:
    """Read from ``/proc``."""

    def __init__(self, root: Path = Path("/proc"), *, own_namespace: int | None = None) -> None:
        self._root = root
        self._own_namespace = self._read_namespace() if own_namespace is None else own_namespace

    def _read_namespace(self) -> int:
        try:
            return (self._root / "self/ns/pid").stat().st_ino
        except OSError:
            return 0

    def gone(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """See ``HostProcesses``. Judged are processes of the agent's own pid namespace, and from the host's own those of every other."""
        ended: set[Owner] = set()
        nested: list[Owner] = []
        for owner in owners:
            if owner.namespace and owner.namespace == self._own_namespace:
                if self._started_ticks(str(owner.pid)) != owner.started_ticks:
                    ended.add(owner)
            elif owner.namespace:
                nested.append(owner)
        if nested and self._own_namespace == INITIAL_NAMESPACE:
            alive = frozenset(self._alive(frozenset(owner.started_ticks for owner in nested)))
            ended.update(owner for owner in nested if (owner.pid, owner.started_ticks) not in alive)
        return frozenset(ended)

    def belongs_to(self, pid: int) -> tuple[str, str]:
        """See ``HostProcesses``."""
        groups = self._text(f"{pid}/cgroup")
        uid, container = _POD_UID.search(groups), _CONTAINER_ID.findall(groups)
        return uid.group().replace("_", "-") if uid else "", container[-1] if container else ""

    def _alive(self, started_ticks: Collection[int]) -> Iterator[tuple[int, int]]:
        """Of every process that started at one of these moments, its pid in each namespace that it is in, and the moment."""
        for entry in self._root.iterdir():
            started = self._started_ticks(entry.name) if entry.name.isdigit() else None
            if started is None or started not in started_ticks:
                continue
            for line in self._text(f"{entry.name}/status").splitlines():
                if line.startswith("NSpid:"):
                    yield from ((int(pid), started) for pid in line.split()[1:])

    def _started_ticks(self, pid: str) -> int | None:
        """When a process started; None where there is none, or only what its parent has not fetched yet."""
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        if len(fields) <= _START_FIELD or fields[0] == "X":
            return None
        return int(fields[_START_FIELD])

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors="replace")
        except OSError:
            return ""

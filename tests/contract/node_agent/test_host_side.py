"""The host as the monitor sees it: processes of the real /proc, and files that a tenant has made something else of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hami_node_agent.host_processes import INITIAL_NAMESPACE, ProcProcesses
from hami_node_agent.hostfiles import HostFiles, MemoryFiles, RealFiles
from hami_node_agent.region import Owner


def owner_of(pid: int) -> Owner:
    """As the shim in that process writes it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Owner(pid=pid, started_ticks=int(fields[19]), namespace=Path("/proc/self/ns/pid").stat().st_ino)


def test_a_process_is_gone_once_it_has_ended_and_a_reused_pid_is_another_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        owner = owner_of(child.pid)
        before = Owner(pid=owner.pid, started_ticks=owner.started_ticks - 1, namespace=owner.namespace)
        assert ProcProcesses().gone([owner, before]) == {before}
        child.kill()
    assert ProcProcesses().gone([owner]) == {owner}


def test_a_process_of_a_namespace_that_cannot_be_seen_is_not_declared_gone(tmp_path: Path) -> None:
    elsewhere = Owner(pid=4, started_ticks=1, namespace=12345)
    assert ProcProcesses(tmp_path).gone([elsewhere]) == frozenset()


def process(root: Path, pid: int, *, started_ticks: int, pids: str) -> None:
    """A process as ``/proc`` shows it, with its pids in each namespace that it is in."""
    (root / str(pid)).mkdir()
    (root / str(pid) / "stat").write_text(f"{pid} (a name) S" + " 0" * 18 + f" {started_ticks} 0 0\n")
    (root / str(pid) / "status").write_text(f"Name:\ta name\nNSpid:\t{pids}\n")


def test_the_host_knows_the_processes_of_every_container_by_pid_and_start(tmp_path: Path) -> None:
    process(tmp_path, 900, started_ticks=50, pids="900 4")
    process(tmp_path, 901, started_ticks=60, pids="901 5")
    (tmp_path / "uptime").write_text("1 1")
    alive, reused, ended = (Owner(pid=pid, started_ticks=ticks, namespace=7) for pid, ticks in ((4, 50), (5, 50), (6, 60)))
    assert ProcProcesses(tmp_path, own_namespace=INITIAL_NAMESPACE).gone([alive, reused, ended]) == {reused, ended}


@pytest.mark.parametrize(
    "groups",
    [
        "0::/kubepods.slice/kubepods-pod0b8f2a0e_6a0b_4c43_9a5d_0e1f7b7a4c11.slice/cri-containerd-{id}.scope",
        "12:devices:/kubepods/besteffort/pod0b8f2a0e-6a0b-4c43-9a5d-0e1f7b7a4c11/{id}",
    ],
    ids=["systemd", "cgroupfs"],
)
def test_a_process_belongs_to_the_container_that_its_control_group_names(tmp_path: Path, groups: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(groups.replace("{id}", "ab" * 32))
    assert ProcProcesses(tmp_path).belongs_to(7) == ("0b8f2a0e-6a0b-4c43-9a5d-0e1f7b7a4c11", "ab" * 32)
    assert ProcProcesses(tmp_path).belongs_to(8) == ("", "")


def test_a_link_a_pipe_and_a_folder_are_no_region(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    files = RealFiles()
    for name in ("link", "pipe", "folder", "nothing"):
        assert files.peek(str(tmp_path / name), limit_bytes=10) is None
    assert files.peek(str(secret), limit_bytes=10) == b"x" * 10


@pytest.mark.parametrize("files", [RealFiles(), MemoryFiles()], ids=["real", "memory"])
def test_words_are_stored_in_the_file_that_others_have_mapped(files: HostFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "grant")
    files.write(path, bytes(24))
    before = files.stamp(path)
    files.store(path, ((8, b"12345678"), (16, b"abcdefgh"), (8, b"87654321")))
    after = files.stamp(path)
    assert files.read(path) == bytes(8) + b"87654321abcdefgh"
    assert before is not None
    assert after is not None
    assert after.inode == before.inode

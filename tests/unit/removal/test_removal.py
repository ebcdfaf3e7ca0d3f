"""What a tenant leaves in a folder of ours is removed in bounded steps, whatever it is; the rest is left and reported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hami_node_agent import removal
from hami_node_agent.removal import Removal

COMPLETE = Removal(complete=True)


def nested(folder: Path, levels: int) -> None:
    """``levels`` folders, one in the other: deeper than any path may be long."""
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inside = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.close(here)


def removed(path: Path, *, steps: int) -> int:
    """After how many calls nothing is left."""
    for calls in range(1, 10_000):
        if removal.remove(str(path), steps=steps).complete:
            return calls
    raise AssertionError(f"{path} is still there")


@pytest.mark.parametrize("levels", [1, 1_500, 20_000])
def test_nesting_has_no_depth_that_stops_it(tmp_path: Path, levels: int) -> None:
    nested(tmp_path / "top", levels)
    removed(tmp_path / "top", steps=removal.STEPS)
    assert list(tmp_path.iterdir()) == []


def test_many_files_are_removed_a_bounded_number_at_a_time_and_the_next_call_goes_on(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    for number in range(1000):
        (tmp_path / "top" / str(number)).touch()
    assert removal.remove(str(tmp_path / "top"), steps=100) == Removal(complete=False)
    left = len(list((tmp_path / "top").iterdir()))
    assert 900 <= left < 1000
    assert removed(tmp_path / "top", steps=100) >= 9


def test_a_wide_and_deep_tree_with_every_kind_of_entry_goes_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    for branch in range(5):
        for leaf in range(5):
            folder = tmp_path / "top" / f"a{branch}" / f"b{leaf}" / "c"
            folder.mkdir(parents=True)
            (folder / "file").touch()
            (folder / "to-folder").symlink_to(outside)
            (folder / "to-file").symlink_to(outside / "kept")
            (folder / "nowhere").symlink_to("/nowhere/at/all")
            os.link(outside / "kept", folder / "hard")
            os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "top" / "a0" / "s"))
    (tmp_path / "top" / "self").symlink_to(".")
    removed(tmp_path / "top", steps=37)
    assert (outside / "kept").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_a_file_a_link_and_nothing_are_removed_at_once(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    for name in ("link", "file", "absent", "file/beneath"):
        assert removal.remove(str(tmp_path / name)) == COMPLETE
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_link_in_place_of_the_folder_above_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert removal.remove(str(tmp_path / "link" / "file")).complete
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("where", ["top", "top/a", "top/a/b/c"])
def test_a_mount_is_not_entered_but_left_and_reported(tmp_path: Path, where: str) -> None:
    """A bind mount within one file system, which no device number gives away."""
    outside, point = tmp_path / "outside", tmp_path / where
    outside.mkdir()
    (outside / "kept").touch()
    point.mkdir(parents=True)
    (tmp_path / "top" / "goes").touch()
    program = (
        "import sys; from hami_node_agent import removal\n"
        "for _ in range(3): found = removal.remove(sys.argv[1])\n"
        "print(found.complete, found.obstacle)"
    )
    script = f'mount --bind "{outside}" "{point}" && exec "$0" -c "$1" "{tmp_path / "top"}"'
    shell = ["unshare", "-m", "sh", "-c", script, sys.executable, program]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    if done.returncode and "mount" in done.stderr + done.stdout:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    assert done.stdout.startswith("False "), done.stderr
    assert "busy" in done.stdout
    assert (outside / "kept").exists()
    assert where == "top" or not (tmp_path / "top" / "goes").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root removes all the same")
def test_what_may_not_be_removed_is_left_and_reported_and_the_rest_goes(tmp_path: Path) -> None:
    closed = tmp_path / "top" / "closed"
    closed.mkdir(parents=True)
    (closed / "inside").touch()
    (tmp_path / "top" / "goes").touch()
    closed.chmod(0o500)
    found = removal.remove(str(tmp_path / "top"))
    closed.chmod(0o700)
    assert not found.complete
    assert "inside" in found.obstacle
    assert not (tmp_path / "top" / "goes").exists()


def test_a_tenant_that_goes_on_writing_cannot_keep_one_call_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removed file comes back under another name."""
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "0").touch()
    unlink, count = os.unlink, 0

    def refilled(name: str, *, dir_fd: int) -> None:
        nonlocal count
        unlink(name, dir_fd=dir_fd)
        count += 1
        os.close(os.open(f"again-{count}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=dir_fd))

    monkeypatch.setattr(os, "unlink", refilled)
    assert not removal.remove(str(tmp_path / "top"), steps=500).complete
    assert count < 500

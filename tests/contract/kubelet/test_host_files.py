"""Host files: the real adapter and the one in memory make the same promises."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import stat
from pathlib import Path

import pytest

from hami_node_agent.hostfiles import HostFiles, MemoryFiles, RealFiles


class HostFilesContract:
    """What every adapter does; a subclass gives the fixture ``files``."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def test_what_is_written_is_read(self, files: HostFiles, root: str) -> None:
        assert files.read(f"{root}/a/b") is None
        files.write(f"{root}/a/b", b"one")
        files.write(f"{root}/a/b", b"two")
        assert files.read(f"{root}/a/b") == b"two"
        assert files.names(f"{root}/a") == ["b"]

    def test_a_file_that_was_replaced_has_another_stamp(self, files: HostFiles, root: str) -> None:
        assert files.stamp(f"{root}/f") is None
        files.write(f"{root}/f", b"x")
        first = files.stamp(f"{root}/f")
        assert files.stamp(f"{root}/f") == first
        files.write(f"{root}/f", b"x")
        assert files.stamp(f"{root}/f") != first

    async def test_folders_go_with_all_that_is_in_them_and_absence_is_no_error(self, files: HostFiles, root: str) -> None:
        files.make_folder(f"{root}/d/e", mode=0o777)
        files.write(f"{root}/d/e/f", b"x")
        files.write(f"{root}/dd", b"x")
        await files.remove(f"{root}/d")
        await files.remove(f"{root}/d")
        assert files.read(f"{root}/d/e/f") is None
        assert files.names(f"{root}/d") == []
        assert files.names(root) == ["dd"]

    async def test_files_that_are_too_long_are_cut_and_named_and_others_left(self, files: HostFiles, root: str) -> None:
        assert await files.shorten(f"{root}/none", limit_bytes=10) == {}
        files.write(f"{root}/d/long", b"0123456789abc")
        files.write(f"{root}/d/short", b"0123")
        files.write(f"{root}/d/exact", b"0123456789")
        files.make_folder(f"{root}/d/folder")
        assert await files.shorten(f"{root}/d", limit_bytes=10) == {"long": 13}
        assert await files.shorten(f"{root}/d", limit_bytes=10) == {}
        assert [files.read(f"{root}/d/{name}") for name in ("long", "short", "exact")] == [b"0123456789", b"0123", b"0123456789"]

    def test_a_folder_that_is_there_keeps_its_content(self, files: HostFiles, root: str) -> None:
        files.make_folder(f"{root}/d")
        files.write(f"{root}/d/f", b"x")
        files.make_folder(f"{root}/d")
        assert files.read(f"{root}/d/f") == b"x"

    def test_a_plain_file_is_made_in_place_of_anything_else_and_kept_where_it_is(self, files: HostFiles, root: str) -> None:
        files.write(f"{root}/folder/inside", b"x")
        files.make_folder(f"{root}/kept")
        for path in (f"{root}/folder", f"{root}/kept/new"):
            files.make_plain(path)
            assert files.read(path) == b""
        files.write(f"{root}/kept/new", b"x")
        files.make_plain(f"{root}/kept/new")
        assert files.read(f"{root}/kept/new") == b"x"


class TestMemoryFiles(HostFilesContract):
    @pytest.fixture
    def files(self) -> HostFiles:
        return MemoryFiles()


class TestRealFiles(HostFilesContract):
    @pytest.fixture
    def files(self) -> HostFiles:
        return RealFiles()

    def test_modes_are_exact_whatever_the_umask(self, files: HostFiles, root: str) -> None:
        files.make_folder(f"{root}/d", mode=0o777)
        files.write(f"{root}/f", b"x", mode=0o600)
        assert stat.S_IMODE(Path(f"{root}/d").stat().st_mode) == 0o777
        assert stat.S_IMODE(Path(f"{root}/f").stat().st_mode) == 0o600

    async def test_a_link_is_removed_not_followed(self, files: HostFiles, root: str) -> None:
        files.write(f"{root}/kept/f", b"x")
        (Path(root) / "link").symlink_to(f"{root}/kept")
        await files.remove(f"{root}/link")
        assert files.names(root) == ["kept"]
        assert files.read(f"{root}/kept/f") == b"x"

    def test_a_link_or_a_pipe_in_place_of_a_region_is_not_followed_nor_waited_for(self, files: HostFiles, root: str) -> None:
        files.write(f"{root}/host", b"of the host, and long")
        Path(f"{root}/d").mkdir()
        Path(f"{root}/d/link").symlink_to(f"{root}/host")
        os.mkfifo(f"{root}/d/pipe")
        files.write(f"{root}/d/long", b"0123456789abc")
        assert asyncio.run(files.shorten(f"{root}/d", limit_bytes=10)) == {"long": 13}
        assert files.read(f"{root}/host") == b"of the host, and long"

    def test_blocks_that_are_allocated_behind_the_end_of_a_file_are_given_back(self, files: HostFiles, root: str) -> None:
        """``fallocate`` with ``FALLOC_FL_KEEP_SIZE``: the disk fills up while the file's length stays as it was."""
        path = Path(f"{root}/d/region")
        files.write(str(path), b"x" * 10)
        libc, keep_size = ctypes.CDLL(None, use_errno=True), 1
        with path.open("r+b") as file:
            if libc.fallocate(file.fileno(), keep_size, ctypes.c_long(0), ctypes.c_long(2**25)) != 0:
                pytest.skip("this file system cannot allocate blocks behind a file's end")
        assert path.stat().st_blocks * 512 >= 2**25
        grown = asyncio.run(files.shorten(f"{root}/d", limit_bytes=10))
        assert grown["region"] >= 2**25
        assert path.stat().st_blocks * 512 < 2**20

    def test_a_mapping_of_the_regions_size_outlives_a_cut(self, files: HostFiles, root: str) -> None:
        path = Path(f"{root}/d/region")
        files.write(str(path), b"x" * mmap.PAGESIZE)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            file.truncate(2**30)
            asyncio.run(files.shorten(f"{root}/d", limit_bytes=mmap.PAGESIZE))
            mapped[0:1] = b"y"
            assert mapped[:] == b"y" + b"x" * (mmap.PAGESIZE - 1)
        assert path.stat().st_size == mmap.PAGESIZE

    def test_a_write_replaces_a_link(self, files: HostFiles, root: str) -> None:
        files.write(f"{root}/kept/f", b"x")
        Path(f"{root}/file").symlink_to(f"{root}/kept/f")
        files.write(f"{root}/file", b"y")
        assert files.read(f"{root}/kept/f") == b"x"

    def test_a_large_folder_in_place_of_a_plain_file_is_moved_aside_and_not_entered(self, files: HostFiles, root: str) -> None:
        """The call must not take longer the more a tenant put there."""
        Path(root, "grant", *["d"] * 100).mkdir(parents=True)
        files.make_plain(f"{root}/grant")
        assert files.read(f"{root}/grant") == b""
        (moved,) = [name for name in files.names(root) if name != "grant"]
        assert moved.startswith(".moved-")

    def test_a_link_in_place_of_a_plain_file_is_removed_not_followed(self, files: HostFiles, root: str) -> None:
        files.write(f"{root}/host", b"of the host")
        Path(f"{root}/grant").symlink_to(f"{root}/host")
        Path(f"{root}/dangling").symlink_to(f"{root}/nowhere")
        for name in ("grant", "dangling"):
            files.make_plain(f"{root}/{name}")
            assert not Path(f"{root}/{name}").is_symlink()
            assert files.read(f"{root}/{name}") == b""
        assert files.read(f"{root}/host") == b"of the host"

    def test_an_unfinished_write_of_a_dead_process_is_no_obstacle(self, files: HostFiles, root: str) -> None:
        Path(f"{root}/.f.unfinished").write_bytes(b"half")
        files.write(f"{root}/f", b"whole")
        assert sorted(path.name for path in Path(root).iterdir()) == ["f"]

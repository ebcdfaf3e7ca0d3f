"""The host's files as a port, so that the simulation needs no disk.

A write is by rename: a reader sees the old file or the new one. Only ``store`` changes a file in place, one that processes have mapped.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from hami_node_agent import removal
from hami_node_agent.removal import Removal

_BLOCK_BYTES: Final = 512
"""Of ``st_blocks``, on every file system."""
_SLACK_BYTES: Final = 2**20
"""What a file system may allocate for itself: the last block, extents, attributes."""


class Stamp(NamedTuple):
    """Which file lies at a path and in which state. An inode number alone is used again at once by some file systems."""

    inode: int
    changed_ns: int
    size: int


class HostFiles(Protocol):
    """Files and folders of the host. Paths are absolute. Errors are ``OSError``."""

    def read(self, path: str) -> bytes | None:
        """The content, None where there is no file."""
        ...

    def stamp(self, path: str) -> Stamp | None:
        """Which file it is, links not followed, None where there is none."""
        ...

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Put ``data`` there by rename; folders above are made."""
        ...

    def peek(self, path: str, *, limit_bytes: int) -> bytes | None:
        """The start of a file that somebody else may replace, shorten or make a link of; None where there is no regular file."""
        ...

    def store(self, path: str, words: Sequence[tuple[int, bytes]]) -> None:
        """Write aligned words of 8 bytes in place, each with one store and in this order, into a file that processes have mapped."""
        ...

    async def shorten(self, folder: str, *, limit_bytes: int) -> dict[str, int]:
        """Cut every regular file of a folder to at most ``limit_bytes``; the bytes that each one cut had taken, by name. Links are not followed."""
        ...

    def make_folder(self, path: str, *, mode: int = 0o755) -> None:
        """Make a folder with exactly this mode; one that is there keeps its content and gets the mode."""
        ...

    def make_plain(self, path: str) -> None:
        """Make an empty file where there is none; a link in its place is removed, a folder moved aside, a file left as it is."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; empty where there is none."""
        ...

    async def remove(self, path: str) -> Removal:
        """Remove a file, or a folder with what is in it, as far as one call goes (``removal``). Raises nothing of the host's."""
        ...


class RealFiles:
    """The machine's own files."""

    def read(self, path: str) -> bytes | None:
        """See ``HostFiles``."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def stamp(self, path: str) -> Stamp | None:
        """See ``HostFiles``."""
        try:
            found = Path(path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stamp(found.st_ino, max(found.st_mtime_ns, found.st_ctime_ns), found.st_size)

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See ``HostFiles``."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, and with a name that no reader of the folder takes for its own.
        unfinished = target.with_name(f".{target.name}.unfinished")
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
        unfinished.rename(target)

    def peek(self, path: str, *, limit_bytes: int) -> bytes | None:
        """See ``HostFiles``."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            return None  # none, or a link, or whatever else its owner made of it
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return os.pread(descriptor, limit_bytes, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def store(self, path: str, words: Sequence[tuple[int, bytes]]) -> None:
        """See ``HostFiles``."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with mmap.mmap(descriptor, os.fstat(descriptor).st_size) as mapped, memoryview(mapped) as view, view.cast("Q") as places:
                for offset, word in words:
                    places[offset // 8] = int.from_bytes(word, sys.byteorder)
        finally:
            os.close(descriptor)

    async def shorten(self, folder: str, *, limit_bytes: int) -> dict[str, int]:
        """See ``HostFiles``; in a thread, since a long file takes a while to cut."""
        return await asyncio.to_thread(_shorten, folder, limit_bytes)

    def make_folder(self, path: str, *, mode: int = 0o755) -> None:
        """See ``HostFiles``."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if stat.S_IMODE(folder.lstat().st_mode) != mode:
            folder.chmod(mode)  # mkdir's own mode is cut by the umask

    def make_plain(self, path: str) -> None:
        """See ``HostFiles``."""
        target = Path(path)
        with contextlib.suppress(FileNotFoundError):
            found = target.lstat().st_mode
            if stat.S_ISREG(found):
                return
            if stat.S_ISDIR(found):  # as large as its owner likes: it goes with the folder that it is in
                target.rename(target.with_name(f".moved-{secrets.token_hex(8)}"))
            else:
                target.unlink()
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))

    def names(self, path: str) -> list[str]:
        """See ``HostFiles``."""
        try:
            return sorted(entry.name for entry in os.scandir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    async def remove(self, path: str) -> Removal:
        """See ``HostFiles``; in a thread, for a tenant may have made any number of files."""
        return await asyncio.to_thread(removal.remove, path)


def _shorten(folder: str, limit_bytes: int) -> dict[str, int]:
    grown: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # removed meanwhile, or no file: the others are cut all the same
                if (size := _taken(entry.stat(follow_symlinks=False), limit_bytes)) > limit_bytes:
                    _cut(entry.path, limit_bytes)
                    grown[entry.name] = size
    return grown


def _taken(status: os.stat_result, limit_bytes: int) -> int:
    """How long a file is, or how much of the disk it has where that is more: blocks can be allocated behind its end."""
    if not stat.S_ISREG(status.st_mode):
        return 0
    blocks = status.st_blocks * _BLOCK_BYTES
    return max(status.st_size, blocks if blocks > limit_bytes + _SLACK_BYTES else 0)


def _cut(path: str, limit_bytes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


class MemoryFiles:
    """A host without a disk; deterministic, for the simulation and for tests."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.folders: dict[str, int] = {}
        self._stamps: dict[str, Stamp] = {}
        self._writes = 0

    def read(self, path: str) -> bytes | None:
        """See ``HostFiles``."""
        return self.contents.get(path)

    def stamp(self, path: str) -> Stamp | None:
        """See ``HostFiles``."""
        return self._stamps.get(path)

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See ``HostFiles``; the mode is not kept."""
        del mode
        self._writes += 1
        self.contents[path] = data
        self._stamps[path] = Stamp(self._writes, self._writes, len(data))

    def peek(self, path: str, *, limit_bytes: int) -> bytes | None:
        """See ``HostFiles``."""
        content = self.contents.get(path)
        return None if content is None else content[:limit_bytes]

    def store(self, path: str, words: Sequence[tuple[int, bytes]]) -> None:
        """See ``HostFiles``."""
        content = bytearray(self.contents[path])
        for offset, word in words:
            content[offset : offset + len(word)] = word
        self.contents[path] = bytes(content)

    async def shorten(self, folder: str, *, limit_bytes: int) -> dict[str, int]:
        """See ``HostFiles``."""
        grown = {
            name: len(content)
            for name in self.names(folder)
            if (content := self.contents.get(f"{folder}/{name}")) is not None and len(content) > limit_bytes
        }
        for name in grown:
            self.contents[f"{folder}/{name}"] = self.contents[f"{folder}/{name}"][:limit_bytes]
        return grown

    def make_folder(self, path: str, *, mode: int = 0o755) -> None:
        """See ``HostFiles``."""
        self.folders[path] = mode

    def make_plain(self, path: str) -> None:
        """See ``HostFiles``."""
        if path not in self.contents:
            self._remove(path)
            self.write(path, b"")

    def names(self, path: str) -> list[str]:
        """See ``HostFiles``."""
        prefix = path.rstrip("/") + "/"
        return sorted({found[len(prefix) :].split("/", 1)[0] for found in (*self.contents, *self.folders) if found.startswith(prefix)})

    async def remove(self, path: str) -> Removal:
        """See ``HostFiles``; always complete."""
        self._remove(path)
        return Removal(complete=True)

    def _remove(self, path: str) -> None:
        prefix = path.rstrip("/") + "/"
        for found in [found for found in self.contents if found == path or found.startswith(prefix)]:
            del self.contents[found]
            del self._stamps[found]
        for found in [found for found in self.folders if found == path or found.startswith(prefix)]:
            del self.folders[found]

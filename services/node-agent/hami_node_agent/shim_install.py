"""Puts the shim on the host: ``hami-node-agent install-shim``, run before the agent, so that no Allocate can come first.

A library that a running container maps is never written to: each version has a name made from its content, and the name that new containers
get is one link, changed in one step. ``ld.so.preload`` is written when it is not there or differs, by rename. Old versions go only when no
process maps them and no CDI spec names them. Running it twice changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from hami_node_agent.needs import INSIDE, HostPaths, Shim

log = structlog.get_logger()
LIBRARY: Final = "libvgpu.so"
_DIGEST_CHARACTERS: Final = 16
_ELF: Final = b"\x7fELF"


class ShimError(Exception):
    """The shim cannot be installed, with the reason."""


def install(source: Path, paths: HostPaths, *, proc: Path = Path("/proc"), cdi_folder: Path = Path("/var/run/cdi")) -> str:
    """Install the library ``source`` and return its version, the first characters of its digest.

    Raises:
        ShimError: there is no library, or it cannot be written.
    """
    try:
        content = source.read_bytes()
    except OSError as exc:
        raise ShimError(f"{source}: {exc.strerror}") from exc
    if not content.startswith(_ELF):
        raise ShimError(f"{source} is not a shared library")
    version = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
    folder = Path(paths.vgpu)
    target = folder / f"{LIBRARY}.{version}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != content:
            _put(target, content, mode=0o755)
        _point(folder / LIBRARY, target.name)
        preload = f"{INSIDE}/{LIBRARY}\n".encode()
        if not Path(paths.preload).exists() or Path(paths.preload).read_bytes() != preload:
            _put(Path(paths.preload), preload, mode=0o644)
        removed = _remove_unused(folder, target.name, proc, cdi_folder)
    except OSError as exc:
        raise ShimError(f"{exc.filename or folder}: {exc.strerror}") from exc
    log.info("shim installed", version=version, path=str(target), removed=removed)
    return version


class InstalledShim:
    """What is installed, looked at again when the link or what it points to has changed: an upgrade may come while the agent runs."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._link = Path(paths.vgpu) / LIBRARY
        self._seen: tuple[tuple[int, ...], Shim] | None = None

    def __call__(self) -> Shim:
        """What new containers are given: the versioned file, never the link, since it stays what it is as long as they run.

        Its library is empty where nothing is installed, or not all of it.
        """
        try:
            link, target, preload = self._link.lstat(), self._link.stat(), Path(self._paths.preload).stat()
        except OSError:
            return Shim()
        stamp = (link.st_ino, link.st_ctime_ns, target.st_ino, target.st_ctime_ns, preload.st_ino)
        if self._seen is None or self._seen[0] != stamp:
            self._seen = (stamp, self._look())
        return self._seen[1]

    def _look(self) -> Shim:
        try:
            target = self._link.resolve(strict=True)
            content = target.read_bytes()
        except OSError:
            return Shim()
        if not content.startswith(_ELF):
            return Shim()
        folder = Path(self._paths.vgpu)
        optional = {name: str(folder / file) for name, file in (("license", "license"), ("validator", "vgpuvalidator"))}
        return Shim(
            host_path=str(target),
            version=hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS],
            **{name: path if Path(path).is_file() else "" for name, path in optional.items()},
        )


def _put(target: Path, content: bytes, *, mode: int) -> None:
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _point(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    new = link.with_name(f".{link.name}.{os.getpid()}.unfinished")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(link)


def _remove_unused(folder: Path, current: str, proc: Path, cdi_folder: Path) -> list[str]:
    old = [path for path in sorted(folder.glob(f"{LIBRARY}.*")) if path.name != current and path.is_file()]
    if not old:
        return []
    mapped = _mapped(proc)
    named = b"".join(path.read_bytes() for path in cdi_folder.glob("*.json")) if cdi_folder.is_dir() else b""
    unused = [path for path in old if _file_id(path) not in mapped and path.name.encode() not in named]
    for path in unused:
        path.unlink()
    return [path.name for path in unused]


def _mapped(proc: Path) -> frozenset[tuple[int, int, int]]:
    """Device and inode of every mapped file: inside a container the path is another one."""
    found: set[tuple[int, int, int]] = set()
    for maps in proc.glob("[0-9]*/maps"):
        try:
            found.update(_ids(maps.read_text(errors="replace").splitlines()))
        except OSError:
            continue  # ended meanwhile, or not ours to see
    return frozenset(found)


def _ids(lines: Iterable[str]) -> Iterable[tuple[int, int, int]]:
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) > 5:
            major, _, minor = fields[3].partition(":")
            yield int(major, 16), int(minor, 16), int(fields[4])


def _file_id(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino

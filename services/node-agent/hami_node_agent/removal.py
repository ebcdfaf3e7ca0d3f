"""Removes a folder whose content a tenant made: a bounded number of steps, no recursion, no link followed, no mount entered.

A nested folder is emptied by moving its subfolders up into the top folder, so the depth never exceeds two levels however deep the tenant
nested. The state is the disk alone: an interrupted removal goes on where it stopped. What cannot be removed is left and reported.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

STEPS: Final = 50_000
"""Entries that one call looks at: some hundred milliseconds of work in a thread."""
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """Result of one call.

    Attributes:
        complete: nothing is left at the path.
        obstacle: why an entry could not be removed; empty where the call only ran out of steps, or is complete.
    """

    complete: bool
    obstacle: str = ""


def remove(path: str, *, steps: int = STEPS) -> Removal:
    """Remove what is at ``path``, within ``steps`` entries; call again until it is complete. Absence is complete."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        parent = os.open(folder, _OPEN_FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return Removal(complete=True)
    except OSError as exc:
        return Removal(complete=False, obstacle=f"{folder}: {exc.strerror}")
    try:
        return _Remover(steps).remove(parent, name)
    finally:
        os.close(parent)


class _Fate(Enum):
    """What became of one entry."""

    GONE = "gone"
    FULL = "a folder that is not empty"
    BLOCKED = "cannot be removed"


class _Remover:
    """One call's budget and first obstacle."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._obstacle = ""
        self._prefix = f".{secrets.token_hex(8)}"
        self._moved = 0

    def remove(self, parent: int, name: str) -> Removal:
        fate = self._take(parent, name)
        if fate is _Fate.FULL:
            try:
                with _opened(parent, name) as top:
                    self._empty(top)
                fate = self._take(parent, name)
            except OSError as exc:
                self._block(name, exc)
        return Removal(complete=fate is _Fate.GONE, obstacle="" if fate is _Fate.GONE else self._obstacle)

    def _empty(self, top: int) -> None:
        """Remove what is in ``top``; folders that one pass has moved up are left to the next."""
        changed = True
        while changed:
            changed = False
            with os.scandir(top) as entries:
                for entry in entries:
                    if self._steps <= 0:
                        return
                    fate = self._take(top, entry.name)
                    changed |= self._flatten(top, entry.name) if fate is _Fate.FULL else fate is _Fate.GONE

    def _flatten(self, top: int, name: str) -> bool:
        """Remove the folder ``name`` of ``top``: its files go, its folders are moved up. Whether anything changed."""
        changed = False
        try:
            with _opened(top, name) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    if self._steps <= 0:
                        return changed
                    fate = self._take(folder, entry.name)
                    changed |= self._move_up(folder, entry.name, top) if fate is _Fate.FULL else fate is _Fate.GONE
        except OSError as exc:
            self._block(name, exc)
        return self._take(top, name) is _Fate.GONE or changed

    def _move_up(self, folder: int, name: str, top: int) -> bool:
        self._moved += 1
        try:
            os.rename(name, f"{self._prefix}-{self._moved}", src_dir_fd=folder, dst_dir_fd=top)
        except OSError as exc:
            self._block(name, exc)
            return False
        return True

    def _take(self, folder: int, name: str) -> _Fate:
        """Remove a file, a link or an empty folder. A mount point is busy, so it is never entered."""
        self._steps -= 1
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return _Fate.GONE
        except OSError as exc:
            return self._take_folder(folder, name, exc)
        return _Fate.GONE

    def _take_folder(self, folder: int, name: str, not_a_file: OSError) -> _Fate:
        try:
            os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return _Fate.GONE
        except NotADirectoryError:
            self._block(name, not_a_file)
            return _Fate.BLOCKED
        except OSError as exc:
            if exc.errno == errno.ENOTEMPTY:
                return _Fate.FULL
            self._block(name, exc)
            return _Fate.BLOCKED
        return _Fate.GONE

    def _block(self, name: str, exc: OSError) -> None:
        self._obstacle = self._obstacle or f"{name[:80]!r}: {exc.strerror}"


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)

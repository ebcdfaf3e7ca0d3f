"""A process container's own copy of its grant, kept true while it runs.

A container with a mount namespace of its own maps the agent's file itself. A local process cannot: there the grant must name the region by its place
on the host. Whatever the agent changes in its file, the copy follows a moment later, word by word, as ``grant.h`` orders it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from hami_node_agent import grant_file
from hami_node_agent.grant_file import Grant, GrantError
from hami_node_agent.hostfiles import RealFiles

log = structlog.get_logger()
LOOK_SECONDS: Final = 0.1


class GrantCopy:
    """The copy of one container's grant."""

    def __init__(self, source: Path, copy: Path, region_path: str) -> None:
        """Copy ``source`` to ``copy``, with the region at ``region_path``.

        Raises:
            OSError: the file cannot be read, or the copy not be written.
            GrantError: it is no grant, or the region's path is too long for one.
        """
        self.path = copy
        self._source = source
        self._region_path = region_path
        self._files = RealFiles()
        self._files.write(str(copy), self._wanted(source.read_bytes()))

    async def follow(self) -> None:
        """Follow the source, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.refresh()
            except GrantError:
                continue  # in the middle of a change
            except OSError as exc:
                log.debug("grant not followed", path=str(self._source), reason=str(exc))

    def refresh(self) -> None:
        """Bring the copy up to date.

        Raises:
            OSError: a file cannot be read or written.
            GrantError: the source is being changed.
        """
        source, copy = self._source.read_bytes(), self.path.read_bytes()
        words = (*grant_file.rewrite_words(copy, self._wanted(source)), *grant_file.live_words(copy, grant_file.live(source)))
        if words:
            self._files.store(str(self.path), words)

    def _wanted(self, source: bytes) -> bytes:
        grant: Grant = grant_file.decode(source)
        return grant_file.encode(replace(grant, region_path=self._region_path))

"""Lanes: several pytest at once, each with clusters of its own, since the suites wait more than they compute.

What a lane prints is shown when it has ended, and is in its log until then. What fails runs once more, alone, when all lanes have ended: both
results are shown, and the second counts.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hami_rig.processes import die_with_parent

ROOT = Path(__file__).parents[1]
STARTED_AGAIN_SECONDS = 15.0
"""Between the starts of two lanes: all of them compute most at their start."""
INTERRUPTED = 130
NOTHING_CHOSEN = 5
"""What pytest ends with where the arguments choose none of a lane's tests."""


class Lane(NamedTuple):
    """What one pytest runs."""

    name: str
    paths: tuple[str, ...]


class Lanes(NamedTuple):
    """Lanes that run side by side."""

    mark: str
    """The tests of a lane have this marker."""
    lanes: tuple[Lane, ...]
    steps: bool = False
    """The tests of a file build upon each other: after a failure the whole lane runs again."""

    async def run(self, arguments: Sequence[str]) -> int:
        """Run all lanes; 0 where all tests have passed, or did when they ran again."""
        interrupted = asyncio.Event()  # Ctrl-C reaches the lanes too, by itself: they clean up, and end
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        running = [
            asyncio.create_task(self._lane(lane, arguments, after_seconds=at * STARTED_AGAIN_SECONDS)) for at, lane in enumerate(self.lanes)
        ]
        codes = await asyncio.gather(*running)
        failed = [lane for lane, code in zip(self.lanes, codes, strict=True) if code]
        if interrupted.is_set():
            return INTERRUPTED
        for lane in failed:
            print(
                f"=== {lane.name}, once more: what has just failed, alone. Controllers, kubelets and their timing are not ours.", flush=True
            )
            chosen = () if self.steps else ("--last-failed", "--last-failed-no-failures=none")
            again = await self._pytest(lane, [*arguments, *chosen])
            print(again.said, flush=True)
            if again.code:
                return again.code
        return 0

    async def _lane(self, lane: Lane, arguments: Sequence[str], *, after_seconds: float) -> int:
        await asyncio.sleep(after_seconds)
        print(f"==> {lane.name}: running, as {self._log(lane).relative_to(ROOT)} tells", flush=True)
        begin = time.monotonic()
        ended = await self._pytest(lane, arguments)
        print(f"=== {lane.name}: {time.monotonic() - begin:.0f} s\n{ended.said}", flush=True)
        return 0 if ended.code == NOTHING_CHOSEN and arguments else ended.code

    async def _pytest(self, lane: Lane, arguments: Sequence[str]) -> _Ended:
        log = self._log(lane)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-m",
                    self.mark,
                    "-o",
                    f"cache_dir={log.parent / lane.name}",
                    *arguments,
                    *lane.paths,
                ),
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        code = await process.wait()
        return _Ended(code, log.read_text(errors="replace"))

    def _log(self, lane: Lane) -> Path:
        """What a lane prints, in the folder where pytest remembers its failures too."""
        return ROOT / "build" / f"{self.mark}-test" / f"{lane.name}.log"


class _Ended(NamedTuple):
    code: int
    said: str

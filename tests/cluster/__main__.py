"""Runs everything that needs a real Kubernetes: ``python -m tests.cluster [pytest's arguments]``, which `make cluster-test` does.

The suites wait more than they compute, so they run in lanes, each a pytest of its own with clusters of its own, at once. What a lane says is shown
when it has ended, and is in its log until then. What fails is run once more, alone, when all lanes have ended: both are shown, and the second counts.
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
from tests.cluster.harness import __main__ as harness
from tests.cluster.harness import building

FOLDER = "tests/cluster"
_PODS = ("shares", "shares_inside", "workloads", "preemption", "rights", "deployment", "migration")
PODS = tuple(f"{FOLDER}/test_{name}.py" for name in _PODS)
KEPT = building.ROOT / "build" / "cluster-test"
"""What lanes say, and what pytest remembers of each."""
STARTED_AGAIN_SECONDS = 15.0
"""Between the starts of two lanes: all of them compute most at their start."""
INTERRUPTED = 130
NOTHING_CHOSEN = 5
"""What pytest ends with where the arguments choose none of a lane's tests."""


class Lane(NamedTuple):
    """What one pytest runs."""

    name: str
    paths: tuple[str, ...]


LANES = (
    Lane("pods", PODS),
    Lane("contracts", ("tests/contract",)),
    Lane("operation", (FOLDER, *(f"--ignore={path}" for path in PODS))),
)
"""Each takes about as long as the others; a new file of this folder is in the last."""


async def run(arguments: Sequence[str]) -> int:
    """Run all lanes; 0 where all tests have passed, or did when they ran again."""
    interrupted = asyncio.Event()  # Ctrl-C reaches the lanes too, by itself: they clean up, and end
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    lanes = [asyncio.create_task(_lane(lane, arguments, after_seconds=at * STARTED_AGAIN_SECONDS)) for at, lane in enumerate(LANES)]
    codes = await asyncio.gather(*lanes)
    failed = [lane for lane, code in zip(LANES, codes, strict=True) if code]
    if interrupted.is_set():
        return INTERRUPTED
    for lane in failed:
        print(f"=== {lane.name}, once more: what has just failed, alone. Controllers, kubelets and their timing are not ours.", flush=True)
        again = await _pytest(lane, [*arguments, "--last-failed", "--last-failed-no-failures=none"])
        print(again.said, flush=True)
        if again.code:
            return again.code
    return 0


class _Ended(NamedTuple):
    code: int
    said: str


async def _lane(lane: Lane, arguments: Sequence[str], *, after_seconds: float) -> int:
    await asyncio.sleep(after_seconds)
    print(f"==> {lane.name}: running, as {_log(lane).relative_to(building.ROOT)} tells", flush=True)
    begin = time.monotonic()
    ended = await _pytest(lane, arguments)
    print(f"=== {lane.name}: {time.monotonic() - begin:.0f} s\n{ended.said}", flush=True)
    return 0 if ended.code == NOTHING_CHOSEN and arguments else ended.code


async def _pytest(lane: Lane, arguments: Sequence[str]) -> _Ended:
    log = _log(lane)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", "-m", "cluster", "-o", f"cache_dir={KEPT / lane.name}", *arguments, *lane.paths),
            cwd=building.ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    code = await process.wait()
    return _Ended(code, log.read_text(errors="replace"))


def _log(lane: Lane) -> Path:
    return KEPT / f"{lane.name}.log"


def main() -> int:
    """Make the machine ready, and run."""
    if code := harness.main([]):
        return code
    return asyncio.run(run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())

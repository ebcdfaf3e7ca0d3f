"""What is fuzzed, and what running it says."""

from __future__ import annotations

import random
import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fuzz.mutation import Pool, damaged

SLOW_SECONDS: Final = 2.0
"""Of a processor, for one input: more is a fault, as an exception that nobody documents is."""
MOST_FAULTS: Final = 3
_FIGURES: Final = re.compile(rb"|\d+|'[^']*'|\"[^\"]*\"|`[^`]*`".decode())


@dataclass(frozen=True, kw_only=True)
class Target:
    """One decoder, or a chain of what follows it."""

    name: str
    call: Callable[[bytes], Any]
    """Decodes, and asserts what must hold of the result."""
    refuses: tuple[type[Exception], ...]
    """What the decoder says it raises. Anything else is a fault."""
    seeds: Sequence[bytes]
    """Valid inputs, as recorded or as documented."""
    covers: tuple[str, ...] = ()
    """Functions, by their full names, whose own decoding this is."""


@dataclass(kw_only=True)
class Fault:
    """An input that broke a target."""

    data: bytes
    what: str


@dataclass(kw_only=True)
class Report:
    """What one target was given."""

    name: str
    inputs: int = 0
    accepted: int = 0
    kinds: set[str] = field(default_factory=set)
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)


def run(target: Target, *, seed: int, inputs: int, seconds: float = float("inf")) -> Report:
    """Give ``target`` its seeds, then damaged ones, until there were so many or so long was spent.

    Args:
        target: which.
        seed: the same seed gives the same inputs, for as long as they last.
        inputs: at most so many.
        seconds: of the processor, at most so many.
    """
    rng = random.Random(f"{target.name}/{seed}")
    pool = Pool(target.seeds)
    report = Report(name=target.name)
    started = time.process_time()
    for number in range(inputs):
        data = target.seeds[number] if number < len(target.seeds) else damaged(pool, rng)
        before = time.process_time()
        kind = _outcome(target, data, report)
        now = time.process_time()
        report.inputs += 1
        report.slowest_seconds = max(report.slowest_seconds, now - before)
        if now - before > SLOW_SECONDS:
            report.faults.append(Fault(data=data, what=f"took {now - before:.1f} s"))
        if kind not in report.kinds:
            report.kinds.add(kind)
            pool.keep(data, rng)
        if now - started > seconds or len(report.faults) >= MOST_FAULTS:
            break
    report.seconds = time.process_time() - started
    return report


def _outcome(target: Target, data: bytes, report: Report) -> str:
    try:
        found = target.call(data)
    except target.refuses as exc:
        return f"{type(exc).__name__} {_FIGURES.sub('', str(exc))[:120]}"
    except Exception:  # noqa: BLE001 - this is what is looked for
        report.faults.append(Fault(data=data, what=traceback.format_exc(limit=-4)))
        return "fault"
    report.accepted += 1
    return f"accepted {str(found)[:40]}"

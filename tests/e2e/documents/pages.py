"""The commands of the documentation's pages, and what is shown beneath each. Pure.

In a fenced block of ``console`` a line that begins with ``$ `` is a command, ``> `` goes on with it, and what follows is what it prints. There
``…`` stands for anything within a line, a line of ``…`` alone for any lines, and the width of gaps does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).parents[3]
ANYTHING: Final = "…"
LANGUAGES: Final = frozenset({"c", "console", "go", "html", "ini", "javascript", "json", "promql", "python", "text", "yaml"})
"""What a fenced block may say that it is. A block of commands in any other dress would not be run."""
_FENCE = re.compile(r"^```(.*)$")


class Command(Struct, frozen=True, kw_only=True):
    """One command as a page has it."""

    page: str
    """Its path from the root of the repository."""
    line: int
    text: str
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Where it is and what it says, for a test's name or a failure."""
        return f"{self.page}:{self.line}: {self.text}"


class Block(Struct, frozen=True, kw_only=True):
    """A fenced block."""

    line: int
    language: str
    lines: tuple[str, ...]


def paths(root: Path = ROOT) -> list[Path]:
    """Every page that may have commands: the site's, and those that lie beside the code."""
    own = [root / "README.md", root / "CONTRIBUTING.md", *(root / "examples").rglob("README.md")]
    return [*own, *sorted((root / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    inside: list[str] | None = None
    start, language = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and inside is None:
            inside, start, language = [], number, fence[1].strip()
        elif fence and inside is not None:
            yield Block(line=start, language=language, lines=tuple(inside))
            inside = None
        elif inside is not None:
            inside.append(line)


def commands(page: str, text: str) -> list[Command]:
    """The commands of ``page``, in order."""
    found: list[Command] = []
    for block in blocks(text):
        if block.language != "console":
            continue
        for number, line in enumerate(block.lines, block.line + 1):
            if line.startswith("$ "):
                found.append(Command(page=page, line=number, text=line[2:].strip()))
            elif not found or found[-1].line <= block.line:
                raise ValueError(f"{page}:{number}: output before any command")
            elif line.startswith("> ") and not found[-1].shown:
                found[-1] = Command(page=page, line=found[-1].line, text=f"{found[-1].text}\n{line[2:]}")
            else:
                last = found[-1]
                found[-1] = Command(page=page, line=last.line, text=last.text, shown=(*last.shown, line))
    return found


def pattern(shown: Iterable[str]) -> re.Pattern[str]:
    """What a command's output matches, in full, where a page shows ``shown``."""
    parts = [r"(?:[^\n]*\n)*?" if _squeezed(line) == ANYTHING else f"{_line(line)}\n" for line in shown]
    return re.compile("".join(parts))


def matches(shown: Iterable[str], output: str) -> bool:
    """Whether ``output`` is what a page shows."""
    lines = [line for line in shown if line.strip()]
    printed = "".join(f"{_squeezed(line)}\n" for line in output.splitlines() if line.strip())
    return pattern(lines).fullmatch(printed) is not None


def _line(line: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in _squeezed(line).split(ANYTHING)).replace(r"\ [^", " ?[^").replace(r"]*\ ", "]* ?")


def _squeezed(line: str) -> str:
    return " ".join(line.split())

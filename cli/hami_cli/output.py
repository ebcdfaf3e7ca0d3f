"""How answers are written: tables for people, JSON and YAML for programs. The only I/O is the printing.

What a cluster's tenants can write (names, messages, annotations) is shown without its control characters: no text of theirs steers a terminal.
Colours are for terminals alone, and for nobody where ``NO_COLOR`` is set.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import msgspec
import typer

from hami_protocol.plain_text import plain as plain

GAP = "   "
_FIGURE = re.compile(r"[0-9]+([./][0-9]+)?( %)?")


class Format(StrEnum):
    """For whom an answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Format, typer.Option("--output", "-o", help="For people (table) or for programs.")]


def show(answer: Any, form: Format, text: Callable[[], str]) -> None:
    """Print ``answer``, or for people ``text``."""
    print(text() if form is Format.TABLE else encoded(answer, form))


def encoded(answer: Any, form: Format) -> str:
    """``answer``, a Struct or what is made of them, for programs."""
    if form is Format.YAML:
        return msgspec.yaml.encode(answer).decode().rstrip("\n")
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def columns(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as kubectl draws it: no lines, each column as wide as it must be, figures to the right."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[place]) for line in (list(headers), *cells)) for place in range(len(headers))]
    right = [bool(cells) and all(_is_figure(line[place]) for line in cells) for place in range(len(headers))]

    def drawn(line: Sequence[str]) -> str:
        parts = [cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(line, widths, right, strict=True)]
        return GAP.join(parts).rstrip()

    return "\n".join([strong(drawn(headers)), *(drawn(line) for line in cells)])


def strong(text: str) -> str:
    """``text`` in bold, on a terminal."""
    return typer.style(text, bold=True) if in_colour() else text


def coloured(text: str, colour: str) -> str:
    """``text`` in a colour, on a terminal."""
    return typer.style(text, fg=colour) if in_colour() else text


def faint(text: str) -> str:
    """``text`` dimmed, on standard error where that is a terminal."""
    return typer.style(text, dim=True) if in_colour(sys.stderr) else text


def in_colour(stream: TextIO | None = None) -> bool:
    """Whether ``stream``, standard output by default, is a terminal that wants colours."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and (stream or sys.stdout).isatty()


def percent(part: float, whole: float) -> str:
    """``part`` of ``whole``; a dash where there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def count_of(count: int, what: str) -> str:
    """``1 node``, ``1,200 nodes``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _is_figure(text: str) -> bool:
    return text == "-" or _FIGURE.fullmatch(text) is not None

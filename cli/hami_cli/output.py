"""How answers are written: tables for people, JSON and YAML for programs. The only I/O is the printing.

What a cluster's tenants can write (names, messages, annotations) is shown without its control characters: no text of theirs steers a terminal.
Colours are for terminals alone, and for nobody where ``NO_COLOR`` is set.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import msgspec
import typer

from hami_cli.tables import GAP, fit
from hami_protocol.figures import percent as percent
from hami_protocol.plain_text import plain as plain

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


def columns(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    cuttable: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> str:
    """A table as kubectl draws it: no lines, each column as wide as it must be, figures to the right.

    Args:
        headers: of the columns.
        rows: a cell for each.
        width: of the terminal; None fits nothing.
        cuttable: columns with names, which are cut in the middle where ``width`` is too small.
        optional: columns that may be left out then, the first first.
    """
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    shown: list[str] = list(headers)
    if width is not None:
        shown, cells = fit(headers, cells, width=width, cuttable=cuttable, optional=optional)
    widths = [max(len(line[place]) for line in (shown, *cells)) for place in range(len(shown))]
    right = [bool(cells) and all(_is_figure(line[place]) for line in cells) for place in range(len(shown))]

    def drawn(line: Sequence[str]) -> str:
        parts = [cell.rjust(width) if end else cell.ljust(width) for cell, width, end in zip(line, widths, right, strict=True)]
        return GAP.join(parts).rstrip()

    return "\n".join([strong(drawn(shown)), *(drawn(line) for line in cells)])


def terminal_width() -> int | None:
    """The columns of the terminal on standard output; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def warn(command: str, texts: Iterable[str]) -> None:
    """Print what an answer leaves out on standard error."""
    for text in texts:
        print(f"hami {command}: {plain(text)}", file=sys.stderr)


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


def count_of(count: int, what: str) -> str:
    """``1 node``, ``1,200 nodes``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _is_figure(text: str) -> bool:
    return text == "-" or _FIGURE.fullmatch(text) is not None

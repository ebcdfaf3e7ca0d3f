"""The Dockerfile as stages: what each is made from, and its instructions."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


class Stage(NamedTuple):
    """One stage, without those that it is made from."""

    base: str
    instructions: list[tuple[str, str]]
    """Instruction and the rest of its line, continued lines joined."""

    def all(self, instruction: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == instruction]


def stages() -> dict[str, Stage]:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    found: dict[str, Stage] = {}
    for word, rest in ((word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = current = Stage(base, [])
        elif found:
            current.instructions.append((word, rest))
    return found


def line_of(name: str) -> list[tuple[str, Stage]]:
    """A stage and those that it is made from, the first last."""
    known = stages()
    line = []
    while name in known:
        line.append((name, known[name]))
        name = known[name].base
    return line


def copied(name: str) -> list[str]:
    """What a stage and those before it copy from the checkout."""
    lines = [rest for _, stage in line_of(name) for rest in stage.all("COPY") if not rest.startswith("--from=")]
    return [source for rest in lines for source in rest.split()[:-1]]


def labels(name: str) -> dict[str, str]:
    """The labels of a stage, its own before those of the stages it is made from."""
    found: dict[str, str] = {}
    for _, stage in reversed(line_of(name)):
        for rest in stage.all("LABEL"):
            found |= dict(each.split("=", 1) for each in shlex.split(rest))
    return found

"""List, from the tests' own marks, where our result differs on purpose from the reference's: ``python tools/departures.py > docs/departures.md``."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HEADER = """# Where we depart from the reference

Made by `make docs` from the tests that are marked `departs`; each holds our result. The example is the worked example of the
reference that would give another one, where there is one.

| example | what we do, and why | test |
|---|---|---|
"""


class Departure(NamedTuple):
    """One marked test."""

    example: str
    reason: str
    test: str


def _marks(decorated: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[str]:
    for decorator in decorated.decorator_list:
        if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.func.attr == name:
            yield from (argument.value for argument in decorator.args[:1] if isinstance(argument, ast.Constant))
    for call in (node for decorator in decorated.decorator_list for node in ast.walk(decorator)):
        # Marks of single parameters: pytest.param(..., marks=pytest.mark.departs("..."))
        if isinstance(call, ast.keyword) and call.arg == "marks":
            for node in ast.walk(call.value):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                    yield from (argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant))


def departures(root: Path = ROOT) -> list[Departure]:
    """Every departure that a test marks, in a stable order."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                examples = ", ".join(dict.fromkeys(_marks(node, "example")))
                found += [
                    Departure(examples, reason, f"{path.relative_to(root)}::{node.name}")
                    for reason in dict.fromkeys(_marks(node, "departs"))
                ]
    return sorted(found)


def document(root: Path = ROOT) -> str:
    """The whole page."""
    rows = (f"| {d.example or '-'} | {d.reason.replace('|', '/')} | `{d.test}` |\n" for d in departures(root))
    return HEADER + "".join(rows)


if __name__ == "__main__":
    print(document(), end="")

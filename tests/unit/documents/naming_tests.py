"""Pages whose rows name the tests that hold them: ``path`` or ``path::function``, in backquotes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of each row of the table under ``heading``, without its head."""
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def assert_tests_exist(cell: str) -> None:
    """``cell`` names at least one test, and each that it names is there and is collected by pytest."""
    found = re.findall(r"`(tests/[^`]+)`", cell)
    assert found, cell
    for name in found:
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), path
        if function:
            assert Path(path).name.startswith("test_")  # else pytest does not collect it
            tree = ast.parse((ROOT / path).read_text())
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert function.startswith("test_")
            assert function in functions, name

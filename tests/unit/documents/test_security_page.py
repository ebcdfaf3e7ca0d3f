"""Each claim of the security page names the test that holds it; what nothing holds stands under "Not enforced"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "security.md").read_text()
TABLES = ("## Who could want what", "## Bounds")


def rows(heading: str) -> list[list[str]]:
    section = TEXT.partition(f"{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


CLAIMS = [(row[0][:60], row[-1]) for heading in TABLES for row in rows(heading)]


@pytest.mark.parametrize(("claim", "named"), CLAIMS, ids=[claim for claim, _ in CLAIMS])
def test_a_claim_names_a_test_that_there_is(claim: str, named: str) -> None:
    found = re.findall(r"`(tests/[^`]+)`", named)
    assert found, claim
    for name in found:
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), path
        if function:
            assert Path(path).name.startswith("test_")  # else pytest does not collect it
            tree = ast.parse((ROOT / path).read_text())
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert function.startswith("test_")
            assert function in functions, name


def test_what_nothing_holds_is_said() -> None:
    assert len(rows(TABLES[0])) >= 20
    assert len(rows(TABLES[1])) >= 10
    assert TEXT.count("\n## Not enforced\n") == 1

"""Every listed worked example has a test."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from hami_devices.model import Reason
from hami_devices.reasons import render
from tests.unit.vendors.test_standard_fit import CHIPS, ROWS, STANDARD

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


class Listed(NamedTuple):
    """One example of the list."""

    id: str
    tested_as: str
    tested_in: str


def listed() -> list[Listed]:
    """The list."""
    found = []
    for line in (HERE / "examples.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, file = line.partition(" @ ")
            own, _, alias = name.partition(" = ")
            found.append(Listed(own, alias or own, file))
    return found


@cache
def known_ids() -> frozenset[str]:
    """Every id of an example that some test carries; the standard fit makes its ids itself."""
    written = {
        node.value
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(written | {f"standard fit {row[0]} {vendor}" for row in ROWS for vendor in STANDARD})


def test_every_listed_example_has_a_test() -> None:
    ids = known_ids()
    missing = [
        each.id
        for each in listed()
        if not each.tested_in and not any(known == each.tested_as or known.startswith(f"{each.tested_as} ") for known in ids)
    ]
    assert missing == []


def test_files_that_are_said_to_hold_examples_are_there() -> None:
    assert [each.tested_in for each in listed() if each.tested_in and not (ROOT / each.tested_in).exists()] == []


def test_the_list_is_whole() -> None:
    ids = [each.id for each in listed()]
    assert len(set(ids)) == len(ids) == 238 + 100
    assert {f"standard fit {number}" for number in range(1, 17)} <= set(ids)
    assert len(CHIPS) == 11


@pytest.mark.departs("reasons are carried as numbers to the last: no text is parsed back")
@pytest.mark.example("reasons 248")
def test_reasons_are_counted_and_shown_in_one_order() -> None:
    counts = {Reason.MEMORY: 3, Reason.CORES: 2, Reason.HEALTH: 3}
    assert render(counts, 8) == "2/8 CardInsufficientCore, 3/8 CardInsufficientMemory, 3/8 CardNotHealth"

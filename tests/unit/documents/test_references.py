"""References lead to what a reader can open: a page of docs/, or an issue of Project-HAMi/HAMi."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRIVATE = re.compile(
    r"\b(?:cases?|traps?) [A-Z]?\d+\b(?!\s*[:|])"  # not a label of a C switch
    r"|\bsheets? \d|\b(?:fact|node-agent|scheduler|extender|vendors|shim) sheet\b"
    r"|\b(?:vendors|scheduler|node-agent) \d+(?:\.\d+)? [#LF]\d",
    re.IGNORECASE,
)


def texts() -> list[Path]:
    """Every text file of the repository but this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    suffixes = {".py", ".md", ".c", ".h", ".def", ".txt", ".toml", ".yaml", ".yml", ".js", ".sh"}
    return [ROOT / name for name in listed if Path(name).suffix in suffixes and (ROOT / name) != Path(__file__)]


def test_no_reference_leads_outside_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in texts()
        if path.exists()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["rounded down (case B12)", "trap T10", "(node-agent sheet, 7.3)", "vendors 1.9 F8", "scheduler 24.1 #3", "Cases A1 and A3"]
)
def test_private_references_are_recognized(text: str) -> None:
    assert PRIVATE.search(text)


@pytest.mark.parametrize(
    "text", ["\t\tcase 1:", "            case 1 | 2 | 3 if brand:", "HAMi#2336", "nats-server 2.11", "the usage report says"]
)
def test_other_text_is_not(text: str) -> None:
    assert not PRIVATE.search(text)

"""Make the index of decisions from the decisions themselves: ``python tools/decisions_page.py > docs/decisions/README.md``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "decisions"
HEADER = """\
# Decisions

Made by `make docs`. What a reader would question, and why it is as it is; where we differ from HAMi on purpose is in
[Departures](../departures.md), test by test.

| decision | |
|---|---|
"""


def document(folder: Path = FOLDER) -> str:
    """The page."""
    return HEADER + "".join(f"| {path.name[:4]} | [{_title(path)}]({path.name}) |\n" for path in sorted(folder.glob("[0-9]*.md")))


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


if __name__ == "__main__":
    print(document(), end="")

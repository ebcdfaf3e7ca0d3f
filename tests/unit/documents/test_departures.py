"""The page of departures lists every test that is marked so."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_of_departures_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "departures.py"))
    assert (ROOT / "docs" / "departures.md").read_text() == tool["document"](ROOT), "run `make docs`"

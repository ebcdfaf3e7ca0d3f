"""The page of vendors says what the specs say."""

import runpy
from pathlib import Path

from hami_devices.catalog import Catalog

ROOT = Path(__file__).parents[3]


def test_the_page_of_vendors_is_current_and_whole() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "vendor_pages.py"))
    page = (ROOT / "docs" / "vendors.md").read_text()
    assert page == tool["document"](), "run `make docs`"
    assert [vendor.name for vendor in Catalog().vendors if vendor.count_resource not in page] == []

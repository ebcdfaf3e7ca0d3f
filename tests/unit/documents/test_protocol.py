"""The page of the protocol says what the types say, the index of decisions lists them all."""

from __future__ import annotations

from pathlib import Path

from hami_protocol import schemas
from tools import decisions_page, protocol_page

ROOT = Path(__file__).parents[3]


def test_the_page_of_the_protocol_is_current_and_names_every_subject_and_message() -> None:
    api = schemas.asyncapi()
    page = (ROOT / "docs/protocol/README.md").read_text()
    assert page == protocol_page.document(api), "run `make docs`"
    assert [each["address"] for each in api["channels"].values() if f"`{each['address']}`" not in page] == []
    assert [each["name"] for each in api["components"]["messages"].values() if f"### {each['name']}\n" not in page] == []


def test_the_index_of_decisions_is_current() -> None:
    assert (ROOT / "docs/decisions/README.md").read_text() == decisions_page.document(), "run `make docs`"

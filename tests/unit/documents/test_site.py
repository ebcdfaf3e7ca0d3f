"""A built site is looked at as a browser would: what leads nowhere or to another host is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import site_check


def found(folder: Path, **pages: str) -> list[str]:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return list(site_check.faults(folder))


def test_links_to_pages_anchors_and_other_hosts_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("p { background: url('x.png'), url(data:image/svg+xml;x) }")
    style = '<link rel="stylesheet" href="a.css">'
    assert found(tmp_path, one=f'{style}<a href="two.html#here">x</a><a href="https://kubernetes.io/">y</a>', two='<p id="here"></p>') == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "one.html: gone.html leads nowhere"),
        ('<a href="../outside.html">x</a>', "one.html: ../outside.html leads nowhere"),
        ('<a href="#gone">x</a>', "one.html: #gone: there is no such anchor"),
        ('<img src="gone.svg">', "one.html: gone.svg leads nowhere"),
        ('<script src="//cdn.example/x.js"></script>', "one.html: loads //cdn.example/x.js from another host"),
        ('<link rel="stylesheet" href="https://fonts.example/x">', "one.html: loads https://fonts.example/x from another host"),
    ],
)
def test_what_leads_nowhere_or_is_loaded_from_elsewhere_is_named(tmp_path: Path, body: str, fault: str) -> None:
    assert found(tmp_path, one=body) == [fault]


def test_a_style_sheet_that_loads_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "https://fonts.example/x"; p { background: url(//cdn.example/y) }')
    assert found(tmp_path, one="") == [
        "a.css: loads https://fonts.example/x from another host",
        "a.css: loads //cdn.example/y from another host",
    ]


def test_a_folder_without_pages_is_a_fault(tmp_path: Path) -> None:
    assert found(tmp_path) == [f"{tmp_path}: no page in it"]


def test_every_page_has_its_place_in_the_navigation() -> None:
    docs = Path(__file__).parents[3] / "docs"
    navigation = (docs.parent / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = [str(path.relative_to(docs)) for path in docs.rglob("*.md") if path.parent.name != "decisions" or path.name == "README.md"]
    assert [page for page in pages if page not in navigation] == [], "name it in mkdocs.yml"

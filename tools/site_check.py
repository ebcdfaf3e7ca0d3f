"""Looks at a built site as a browser would: every link leads somewhere, nothing comes from another host. ``python tools/site_check.py FOLDER``.

MkDocs itself refuses broken links between pages of Markdown; this looks at what became of them, at generated anchors, and at the theme's files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src", "link": "href"}
STYLE_URL = re.compile(r"""url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""")


class Page(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADED and LOADED[tag] in given and given.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(given[LOADED[tag]])


def faults(folder: Path) -> Iterator[str]:
    """What is wrong with the site in ``folder``, a line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder}: no page in it"
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name}: loads {address} from another host" for address in page.loads if _foreign(address))
        if name.name == "404.html":
            continue  # its links are from the site's root, wherever that will be
        for address in (*page.links, *page.loads):
            if not _foreign(address) and (fault := _fault(folder, path, address, pages)):
                yield f"{name}: {fault}"
    for path in sorted(folder.rglob("*.css")):
        for match in STYLE_URL.finditer(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(folder)}: loads {match[1] or match[2]} from another host"


def _foreign(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "file")


def _fault(folder: Path, page: Path, address: str, pages: dict[Path, Page]) -> str:
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(folder) or not target.is_file():
        return f"{address} leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"{address}: there is no such anchor"
    return ""


def main() -> None:
    """Print the faults; exit with 1 where there are any."""
    found = list(faults(Path(sys.argv[1]).resolve()))
    print("\n".join(found), file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

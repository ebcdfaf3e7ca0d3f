"""Takes the pictures of the documentation: the page in light, dark and narrow, and the report as HTML. ``python -m tests.web.screenshots FOLDER``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hami_cli.report import Form, written
from hami_cli.report_facts import report
from hami_cli.snapshot import Heard, take
from hami_devices.catalog import Catalog
from hami_protocol import envelope, subjects
from hami_protocol.events import NodeUsage
from hami_runtime import logs
from hami_runtime.kube.cluster import NODES, PODS
from tests.web.conftest import NARROW, WIDE, browsing, opened
from tests.web.scene import Scene, populate, scene

if TYPE_CHECKING:
    from playwright.async_api import Browser

CUTS = {"page-light": {}, "page-dark": {"color_scheme": "dark"}, "page-narrow": {"viewport": NARROW}}
NODE = "gpu-0003"


async def take_all(folder: Path) -> None:
    """All pictures, into ``folder``."""
    async with scene() as shown, browsing() as browser:
        await populate(shown, 24)
        for name, options in CUTS.items():
            async with opened(browser, shown.url, **options) as page:
                await page.click(f"#node-{NODE}")
                await page.wait_for_selector("#detail article.card")
                busy = (
                    await page.locator("#detail article.card", has=page.locator("td"))
                    .first.locator("[data-history]")
                    .get_attribute("data-history")
                )
                await page.click(f"[data-history='{busy}']")
                await page.wait_for_selector(".history")
                await page.fill("[name=copies]", "12")
                await page.fill("[name=memoryMib]", "60000")
                await page.click("#simulate [type=submit]")
                await page.wait_for_selector("#simulated table")
                await page.evaluate("scrollTo(0, 0)")
                await page.screenshot(path=folder / f"{name}.png")
        await _report(shown, browser, folder / "report.png")


async def _report(shown: Scene, browser: Browser, path: Path) -> None:
    """The first screen of the report, on the same cluster."""
    world = shown.world
    nodes, pods = (await world.admin.list(NODES)).items, (await world.admin.list(PODS)).items
    usage = [envelope.open_message(message) for message in world.bus.kept(subjects.USAGE)]
    heard = Heard(usage=tuple(event for event in usage if isinstance(event, NodeUsage)))
    time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    content = written(report(take(nodes, pods, heard, Catalog(), time=time)), Form.HTML)
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        page = await browser.new_page(viewport=WIDE)
        await page.goto(Path(file.name).as_uri())
        await page.screenshot(path=path)


def main() -> None:
    """Take them."""
    logs.configure("error", "screenshots")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_all(folder))


if __name__ == "__main__":
    main()

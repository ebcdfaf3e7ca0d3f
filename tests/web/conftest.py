"""A real Chromium, and a page in it that may ask nobody but its own host and say nothing on its console."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PICTURES = Path("build/web")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDE = {"width": 1600, "height": 950}
NARROW = {"width": 390, "height": 844}


def chromium() -> str | None:
    """The browser of this machine, None where there is none."""
    return os.environ.get("HAMI_TEST_CHROMIUM") or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A headless browser."""
    from playwright.async_api import async_playwright

    program = chromium()
    if program is None:
        pytest.fail(f"none of {', '.join(PROGRAMS)} is installed, and HAMI_TEST_CHROMIUM names none")
    # Without its sandbox, which needs rights that a container does not give: it sees nothing but this page.
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(browser: Browser, url: str, *, live: bool = True, silent: bool = True, **options: Any) -> AsyncIterator[Page]:
    """The page at ``url``, once it is live; at the end, what it said on the console and whom it asked is looked at."""
    context = await browser.new_context(viewport=options.pop("viewport", WIDE), locale="en-GB", timezone_id="UTC", **options)
    page = await context.new_page()
    page.set_default_timeout(60_000)
    said: list[str] = []
    foreign: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: None if request.url.startswith(url) else foreign.append(request.url))
    try:
        await page.goto(url)
        if live:
            await page.wait_for_function("(word) => document.getElementById('connection').textContent === word", arg="live")
        yield page
        assert not foreign
        if silent:
            assert not said
    finally:
        await context.close()


async def picture(page: Page, name: str) -> None:
    """Keep a screenshot for people to look at."""
    await page.screenshot(path=PICTURES / f"{name}.png")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for a module."""
    async with browsing() as found:
        yield found

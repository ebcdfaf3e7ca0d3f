"""The page in a real browser, over a cluster whose scheduler places pods while we look."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from hami_protocol.events import PodRefused
from hami_runtime.clock import SystemClock
from hami_runtime.kube.access import AccessReviewer
from hami_runtime.kube.readers import Readers
from tests.builders import a_ref
from tests.contract.registry.test_page import Clerk
from tests.contract.scheduler.world import World
from tests.web.conftest import NARROW, PICTURES, opened, picture
from tests.web.scene import Scene, populate, scene

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.web, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

FAULTS, CONTRAST = [(Path(__file__).parent / name).read_text() for name in ("faults.js", "contrast.js")]
CUTS = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": NARROW},
    "narrow-dark": {"viewport": NARROW, "color_scheme": "dark"},
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shown() -> AsyncIterator[Scene]:
    """Twelve nodes with pods on most of them, some that wait, and a day gone by."""
    async with scene() as found:
        await populate(found, 12)
        yield found


async def says(page: Page, selector: str, text: str) -> None:
    """Return once the element says ``text``, somewhere."""
    await page.wait_for_function("([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", arg=[selector, text])


async def open_node(page: Page, name: str) -> None:
    await page.click(f"[id='node-{name}']")
    await says(page, "#detail-title", name)
    await page.wait_for_selector("#detail article.card")


async def test_nodes_cards_and_pods_have_bars_of_what_is_booked(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        assert await page.locator(".row").count() == 12
        assert await page.locator("#node-count").text_content() == "12"
        node = "gpu-0003"
        booked = {device.device.uuid: device.used_memory_mib for device in shown.scheduler.picture.state.devices(node)}
        row = page.locator(f"#node-{node}")
        memory_mib = sum(booked.values())
        width = await row.locator(".bar.memory .fill").evaluate("each => parseFloat(each.style.width)")
        assert width == pytest.approx(100 * memory_mib / (8 * 81920), abs=0.1)
        await open_node(page, node)
        bars = page.locator("#detail article.card > dl .bar.memory .fill")
        widths = [await bars.nth(place).evaluate("each => parseFloat(each.style.width)") for place in range(8)]
        assert widths == pytest.approx([100 * booked[f"GPU-{node}-{place:02}"] / 81920 for place in range(8)], abs=0.1)
        held = [entry.pod.name for entry in shown.scheduler.picture.state.entries_on(node)]
        listed = await page.locator("#detail .pods .name").all_text_contents()
        assert {name.rpartition("/")[2] for name in listed} == set(held)


async def test_waiting_pods_have_their_reasons(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        item = page.locator("#waiting li", has_text="research/too-big")
        text = await item.text_content()
        assert text is not None
        assert "CardInsufficientMemory" in text
        assert "163840" in text


async def test_a_new_pod_appears_by_itself_and_goes_again(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        await open_node(page, "gpu-0011")
        pods = page.locator("#node-gpu-0011 .number")
        before = int((await pods.text_content() or "").removeprefix("pods "))
        pod, node = await shown.run_pod("brand-new", "gpu-0011", gpu=1, gpumem=1234)
        assert node == "gpu-0011"
        await says(page, "#detail-body", "default/brand-new")
        await says(page, "#node-gpu-0011 .number", str(before + 1))
        await says(page, "#log", "default/brand-new")
        await shown.end_pod(pod, node)
        await page.wait_for_function("(name) => !document.querySelector('#detail-body').textContent.includes(name)", arg="brand-new")
        await says(page, "#node-gpu-0011 .number", str(before))


async def test_a_pod_that_is_refused_appears_among_those_that_wait(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        await shown.run_pod("just-refused", gpu=1, gpumem=7654321)
        await says(page, "#waiting", "default/just-refused")
        await says(page, "#waiting", "7654321")


async def test_the_slider_shows_a_moment_of_the_past_and_live_leads_back(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        now = await page.locator("#totals").text_content()
        slider = page.locator("#moment")
        await slider.focus()
        await page.keyboard.press("Home")
        await says(page, "#connection", "replay")
        past = await page.locator("#totals").text_content()
        assert past != now
        await says(page, "#caveats", "when this registry began to watch them")
        assert await slider.get_attribute("aria-valuetext") != "now"
        await page.keyboard.press("PageUp")
        await page.keyboard.press("PageUp")
        await page.wait_for_function("before => document.getElementById('totals').textContent !== before", arg=past)
        await open_node(page, "gpu-0000")
        await picture(page, "replay")
        await page.click("#live")
        await says(page, "#connection", "live")
        assert await page.locator("#totals").text_content() == now
        assert not await page.locator("#caveats").text_content()


async def test_replay_plays_the_day_and_can_be_paused(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        await page.click("#play")
        await says(page, "#connection", "replay")
        assert await page.locator("#play").text_content() == "Pause"
        first = await page.locator("#moment").input_value()
        await page.wait_for_function("first => Number(document.getElementById('moment').value) > Number(first) + 600", arg=first)
        await page.click("#play")
        assert await page.locator("#play").text_content() == "Replay"
        await page.click("#live")
        await says(page, "#connection", "live")


async def test_a_cards_day_is_drawn_and_told(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        busy = next(report.node for report in shown.reports if list(shown.scheduler.picture.state.entries_on(report.node)))
        uuid = next(entry.held[0].uuid for entry in shown.scheduler.picture.state.entries_on(busy))
        await open_node(page, busy)
        await page.click(f"[data-history='{uuid}']")
        await page.wait_for_selector(".history path.memory")
        assert await page.locator(f"[data-history='{uuid}']").get_attribute("aria-expanded") == "true"
        label = await page.locator(".history svg").get_attribute("aria-label")
        assert label is not None
        assert "at most" in label
        assert "V" in (await page.locator(".history path.memory").get_attribute("d") or "")
        assert await page.locator(".history li").count() > 0
        await page.click(f"[data-history='{uuid}']")
        await page.wait_for_selector(".history", state="detached")


async def test_the_form_asks_what_would_happen(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        before = len(list(shown.scheduler.picture.state.entries()))
        await page.fill("[name=copies]", "3")
        await page.fill("[name=memoryMib]", "200000")
        await page.click("#simulate [type=submit]")
        await says(page, "#simulated", "0 of 3 pods would be placed")
        await says(page, "#simulated", "nowhere")
        await page.fill("[name=nodes]", "1")
        await page.fill("[name=nodeMemoryMib]", "262144")
        await page.click("#simulate [type=submit]")
        await says(page, "#simulated", "3 of 3 pods would be placed, on 13 nodes")
        await says(page, "#simulated", "added-0")
        await page.fill("[name=cores]", "1000")
        await page.click("#simulate [type=submit]")
        await says(page, "#simulated .problem", "1000 is not accepted; accepted: 0 to 100 percent")
        assert await page.evaluate("document.activeElement.name") == "cores"
        assert await page.locator("[name=cores]").get_attribute("aria-invalid") == "true"
        assert len(list(shown.scheduler.picture.state.entries())) == before


async def test_everything_is_reached_by_keyboard(browser: Browser, shown: Scene) -> None:
    async with opened(browser, shown.url) as page:
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "nodes"
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.id") == "search"
        await page.keyboard.type("gpu-000")
        await says(page, "#node-count", "10 of 12")
        await page.keyboard.press("ArrowDown")
        assert await page.evaluate("document.activeElement.id") == "list"
        await page.keyboard.press("End")
        assert await page.locator("#list").get_attribute("aria-activedescendant") == "node-gpu-0009"
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Enter")
        await says(page, "#detail-title", "gpu-0008")
        await page.wait_for_function("(id) => document.activeElement.id === id", arg="detail-title")
        await page.wait_for_selector("#detail article.card")
        assert await page.locator("#node-gpu-0008").get_attribute("aria-selected") == "true"
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".history")
        assert await page.evaluate("document.activeElement.hasAttribute('data-history')")
        await page.keyboard.press("Escape")
        assert await page.evaluate("document.activeElement.id") == "list"
        await page.focus("#search")
        await page.keyboard.press("Escape")
        await says(page, "#node-count", "12")
        reached = set()
        for _ in range(60):
            await page.keyboard.press("Tab")
            reached.add(await page.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.tagName"))
        controls = {
            "live",
            "play",
            "moment",
            "search",
            "sort",
            "list",
            "log",
            "deviceType",
            "copies",
            "count",
            "memoryMib",
            "cores",
            "namespace",
        }
        assert controls <= reached


@pytest.mark.parametrize("cut", CUTS)
async def test_everybody_can_read_it(browser: Browser, shown: Scene, cut: str) -> None:
    async with opened(browser, shown.url, **CUTS[cut]) as page:
        await open_node(page, "gpu-0003")
        await page.locator("[data-history]").first.click()
        await page.wait_for_selector(".history")
        await page.click("#simulate [type=submit]")
        await says(page, "#simulated", "would be placed")
        assert await page.evaluate(FAULTS) == []
        contrast = await page.evaluate(CONTRAST)
        assert contrast["looked"] > 100
        assert contrast["found"] == []
        await page.evaluate("scrollTo(0, 0)")
        await picture(page, cut)


async def test_what_tenants_write_is_text_and_nothing_else(browser: Browser) -> None:
    hostile = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    async with scene(scheduling=False) as shown, opened(browser, shown.url) as page:
        await shown.add_node("n1", hostile, 32768, 1)
        await shown.say(PodRefused(pod=a_ref(), summary=hostile, node_count=1, reasons={hostile: 1}))
        await says(page, "#waiting", hostile)
        await page.click("#node-n1")
        await says(page, "#detail-body", hostile)
        assert await page.locator("main img, main script").count() == 0
        assert await page.title() == "HAMi"


async def test_a_token_is_asked_for_where_one_is_needed(browser: Browser) -> None:
    readers = Readers(AccessReviewer(Clerk(World(SystemClock()).store), SystemClock()))
    async with scene(authorize=readers) as shown, opened(browser, shown.url, live=False, silent=False) as page:
        await page.wait_for_selector("#sign-in[open]")
        await picture(page, "token")
        await page.fill("#token", "bob")
        await page.keyboard.press("Enter")
        await says(page, "#sign-in-why", "bob may not list pods")
        await page.wait_for_selector("#sign-in[open]")
        await page.fill("#token", "alice")
        await page.keyboard.press("Enter")
        await says(page, "#connection", "live")
        assert not await page.locator("#sign-in").is_visible()


async def test_a_thousand_nodes_are_shown_searched_and_scrolled(browser: Browser) -> None:
    async with scene() as shown:
        await populate(shown, 1000, pods_per_node=0.1, days=False)
        async with opened(browser, shown.url) as page:
            await says(page, "#node-count", "1000")
            timing = await page.evaluate(
                """() => {
                    const [load] = performance.getEntriesByType('navigation');
                    const all = [load, ...performance.getEntriesByType('resource')];
                    const overview = all.find((each) => each.name.endsWith('/overview'));
                    return {
                        firstPaintMilliseconds: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
                        loadMilliseconds: load.loadEventEnd,
                        nodesMilliseconds: overview?.responseEnd,
                        kilobytes: all.reduce((sum, each) => sum + each.transferSize, 0) / 1024,
                    };
                }"""
            )
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / "load-1000-nodes.json").write_text(json.dumps(timing, indent=2) + "\n")
            print(f"\n1,000 nodes: {json.dumps(timing)}")
            assert await page.locator(".row").count() < 60
            await page.focus("#list")
            await page.keyboard.press("End")
            assert await page.locator("#list").get_attribute("aria-activedescendant") == "node-gpu-0999"
            last = page.locator("#node-gpu-0999")
            assert await last.get_attribute("aria-posinset") == "1000"
            assert await last.is_visible()
            assert await page.locator(".row").count() < 60
            await page.fill("#search", "gpu-0420")
            await says(page, "#node-count", "1 of 1000")
            await page.wait_for_selector("#node-gpu-0420")
            await picture(page, "thousand")

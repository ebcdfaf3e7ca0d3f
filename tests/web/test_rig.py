"""The page over the rig: real processes, NATS, kubectl; what is placed while we look appears by itself."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hami_rig import profile
from hami_rig.kubectl import kubectl
from hami_rig.supervisor import Rig
from tests.web.conftest import browsing, opened, picture

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.web, pytest.mark.timeout(300)]

NODES = """
nodes:
  - {name: left, devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}}}
  - {name: right, devices: {count: 2, device: {memory_mib: 32768, model: Tesla V100-PCIE-32GB}}}
"""


def a_pod(name: str, memory_mib: int, node: str = "") -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": "30"}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"limits": limits}}]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def apply(rig: Rig, *pods: dict[str, Any]) -> None:
    path = rig.folder / "applied.json"
    await asyncio.to_thread(path.write_text, json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    await kubectl(rig.kubeconfig, "apply", "-f", str(path))


async def says(page: Page, selector: str, text: str) -> None:
    await page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", arg=[selector, text], timeout=60_000
    )


async def test_what_is_placed_on_the_rig_is_seen() -> None:
    async with Rig(profile.parse(NODES)) as rig, browsing() as browser, opened(browser, f"{rig.registry_url}/") as page:
        await page.wait_for_selector("#node-left")
        await page.wait_for_selector("#node-right")
        await apply(rig, a_pod("first", 3000), a_pod("too-big", 49152))
        await says(page, "#log", "default/first")
        await says(page, "#log", "allocated")
        await says(page, "#waiting", "default/too-big")
        await says(page, "#waiting", "needs 49152 MiB on one card")
        row = page.locator(".row", has_text="3000 MiB of")
        await row.wait_for()
        await row.click()
        await says(page, "#detail-body", "default/first")
        await says(page, "#detail-body", "allocated")
        await page.fill("[name=memoryMib]", "30000")
        await page.fill("[name=copies]", "5")
        await page.click("#simulate [type=submit]")
        await says(page, "#simulated", "3 of 5 pods would be placed, on 2 nodes")
        await picture(page, "rig")
        await kubectl(rig.kubeconfig, "delete", "pod", "first", "too-big", "--timeout=30s")
        await says(page, "#log", "released")
        await page.wait_for_selector("#detail-body .pods", state="detached", timeout=60_000)
        await says(page, "#waiting", "No pod waits for a device.")
        await page.focus("#moment")
        await page.keyboard.press("ArrowLeft")
        await says(page, "#connection", "replay")

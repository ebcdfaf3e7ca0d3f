"""The billing service beside a rig: what pods hold there is on the bill, also over its restart."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import CARD_MIB, World, a_pod, eventually
from tests.e2e.shell import Shell

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def billing(world: World, folder: Path) -> AsyncIterator[str]:
    """The process, with its database in ``folder``; gives the URL of its API."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    settings = {
        "HAMI_NATS_URL": world.rig.nats_url,
        "HAMI_KUBECONFIG": str(world.rig.kubeconfig),
        "HAMI_DATABASE_URL": f"sqlite:///{folder / 'billing.db'}",
        "HAMI_API_OPEN": "true",
        "HAMI_READY_FILE": str(ready),
    }
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HAMI_")} | settings
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "hami_billing.main", env=environ)
    try:
        await eventually(ready.exists)
        yield f"http://127.0.0.1:{json.loads(ready.read_text())['api']}"
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_what_a_pod_holds_is_on_the_bill(world: World, tmp_path: Path) -> None:
    shell = Shell(world.rig.kubeconfig)

    async def rows(url: str) -> dict[str, list[dict[str, Any]]]:
        answer = await shell.hami("bill", "--billing", url, "--by", "pod", "-o", "json")
        assert answer.code == 0, answer.err
        found: dict[str, list[dict[str, Any]]] = {}
        for row in json.loads(answer.out)["rows"]:
            found.setdefault(row["group"]["pod"] or row["kind"], []).append(row)
        return found

    async def until(url: str, pod: str) -> int:
        for _ in range(150):
            if pod in (found := await rows(url)):
                return int(found[pod][0]["cardMicroseconds"])
            await asyncio.sleep(0.2)
        pytest.fail(f"{pod} is not on the bill: {found}")

    async with billing(world, tmp_path) as url:
        await world.apply(a_pod("billed", mib=CARD_MIB // 2))
        await world.running("billed")
        first = await until(url, "billed")
    async with billing(world, tmp_path) as url:
        await world.kubectl("delete", "pod", "billed", "--timeout=30s")
        last = await until(url, "billed")
        assert last > first
        whole = await shell.hami("bill", "--billing", url)
        assert "card hours from" in whole.out
        wrong = await shell.hami("bill", "--billing", url, "--by", "colour")
        assert (wrong.code, "by: 'colour'; accepted:" in wrong.err) == (1, True)

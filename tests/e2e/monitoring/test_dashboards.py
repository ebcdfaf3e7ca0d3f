"""A real Prometheus scrapes a running rig, with our rules, and answers every query of our dashboards."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from hami_rig.processes import die_with_parent
from tests import debian
from tests.e2e.monitoring.conftest import Observed

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
DASHBOARDS = sorted((ROOT / "deploy" / "kustomize" / "components" / "grafana-dashboards").glob("*.json"))
RULES = ROOT / "deploy" / "prometheus" / "hami.rules.yaml"
TRIES = 300


class Prometheus:
    """A running server."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer, which must be one."""
        async with self._session.get(f"{self.url}/api/v1/{path}", params=parameters) as answer:
            body = await answer.json()
        assert body["status"] == "success", body
        return body["data"]

    async def wait_ready(self) -> None:
        """It listens before it can answer."""
        for _ in range(TRIES):
            async with self._session.get(f"{self.url}/-/ready") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)
        pytest.fail("Prometheus is not ready")

    async def query(self, expr: str) -> list[Any]:
        """What an expression gives now."""
        found: list[Any] = (await self.ask("query", query=expr))["result"]
        return found


async def _listens(stderr: asyncio.StreamReader, said: list[str]) -> str:
    while line := (await stderr.readline()).decode():
        said.append(line)
        if found := re.search(r'msg="Listening on" address=(\S+)', line):
            return found[1]
    pytest.fail("".join(said))


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def prometheus(observed: Observed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    program = debian.program("prometheus", "prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    scrapes = [
        {"job_name": name, "static_configs": [{"targets": [url.split("/")[2]]}], "honor_labels": True}
        for name, url in observed.metrics_urls.items()
    ]
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": scrapes,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        address = await _listens(process.stderr, [])
    reading = asyncio.create_task(process.stderr.read())  # so that it can go on writing
    async with aiohttp.ClientSession() as session:
        running = Prometheus(f"http://{address}", session)
        await running.wait_ready()
        yield running
    process.terminate()
    await process.wait()
    await reading


def queries() -> dict[str, str]:
    """By dashboard and panel, what it asks, with its variables as they are at first."""
    found: dict[str, str] = {}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expr = re.sub(r"\$(node|namespace)\b", ".*", target["expr"]).replace("$__rate_interval", "20s")
                assert "$" not in expr, expr
                found[f"{path.stem}: {panel['title']}: {target['refId']}"] = expr
    return found


async def test_every_query_of_the_dashboards_is_answered(prometheus: Prometheus) -> None:
    open_queries = queries()
    assert len(open_queries) > 50
    for _ in range(TRIES):
        open_queries = {name: expr for name, expr in open_queries.items() if not await prometheus.query(expr)}
        if not open_queries:
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"no answer: {json.dumps(open_queries, indent=1)}")


async def test_the_dashboards_variables_have_values(prometheus: Prometheus) -> None:
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
                assert found
                assert await prometheus.ask(f"label/{found[2]}/values", **{"match[]": found[1]}), variable["query"]


async def test_cards_are_what_the_rig_has(prometheus: Prometheus) -> None:
    (cards,) = await prometheus.query("count(max by (node, device_uuid) (hami_gpu_memory_limit_bytes))")
    assert cards["value"][1] == "5"


async def test_our_rules_are_loaded_and_none_is_broken(prometheus: Prometheus) -> None:
    groups = []
    for _ in range(TRIES):
        groups = (await prometheus.ask("rules"))["groups"]
        if groups and all(rule["health"] != "unknown" for group in groups for rule in group["rules"]):
            break
        await asyncio.sleep(0.2)
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


async def test_every_service_is_scraped(prometheus: Prometheus, observed: Observed) -> None:
    found = {each["metric"]["job"]: each["value"][1] for each in await prometheus.query("up")}
    assert found == dict.fromkeys(observed.metrics_urls, "1")

"""The page of metrics is what the code makes, and rules ask for nothing else."""

import re
from pathlib import Path

import pytest
import yaml

from tools import metrics_page

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "hami.rules.yaml").read_text())
ALL = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def test_the_page_of_metrics_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page.document(), "run `make docs`"


def test_a_metric_has_one_type_and_a_meaning() -> None:
    found: dict[str, str] = {}
    for metric in metrics_page.metrics():
        assert metric.meaning
        assert found.setdefault(metric.name, metric.kind) == metric.kind
    assert len(found) > 40


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_metrics_that_there_are(rule: dict[str, str]) -> None:
    shown = {metric.name + suffix for metric in metrics_page.metrics() for suffix in SUFFIXES[metric.kind]}
    recorded = {each["record"] for each in ALL if "record" in each}
    named = set(re.findall(r"\bhami[:_][a-z0-9_:]+", rule["expr"]))
    assert named
    assert named <= shown | recorded


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert heading in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_test_of_its_firing(rule: dict[str, str]) -> None:
    assert rule["alert"] in (ROOT / "deploy" / "prometheus" / "hami.rules.test.yaml").read_text()

"""What Prometheus' own tool says of our rules, and of what services show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hami_runtime.telemetry import Telemetry
from tests import debian

RULES = Path(__file__).parents[3] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> str:
    return debian.program("promtool", "prometheus")


def run(promtool: str, *arguments: str, given: bytes = b"") -> str:
    done = subprocess.run([promtool, *arguments], cwd=RULES, input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_the_rules_are_clean(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", "hami.rules.yaml")


def test_the_rules_do_what_they_say(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "hami.rules.test.yaml")


def test_a_page_of_metrics_can_be_read(promtool: str) -> None:
    telemetry = Telemetry("registry")
    telemetry.counter("hami_registry_writes", "what was written").add(1, {"kind": "x"})
    telemetry.histogram("hami_registry_seconds", "how long it took").record(0.1)
    run(promtool, "check", "metrics", given=telemetry.prometheus_text())

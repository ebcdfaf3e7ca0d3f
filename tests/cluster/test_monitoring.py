"""What Prometheus' own tool says of our rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.harness.building import ROOT

RULES = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program, of Debian's package ``prometheus`` where it is not installed."""
    if found := shutil.which("promtool"):
        return found
    unpacked = ROOT / "build" / "prometheus"
    program = unpacked / "usr" / "bin" / "promtool"
    if not program.exists() and shutil.which("apt-get"):
        unpacked.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "prometheus"], cwd=unpacked, check=False, capture_output=True)
        for package in unpacked.glob("prometheus_*.deb"):
            subprocess.run(["dpkg", "--extract", package, unpacked], check=True)
    if not program.exists():
        pytest.fail("no promtool here: it comes with Debian's package prometheus", pytrace=False)
    return str(program)


def run(promtool: str, *arguments: str, folder: Path = RULES) -> str:
    done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_clean(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", "hami.rules.yaml")


def test_the_rules_do_what_they_say(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "hami.rules.test.yaml")

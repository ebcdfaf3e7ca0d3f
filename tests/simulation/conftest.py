"""Prints which fresh seeds were run, so that a run can be repeated."""

import sys

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the first seed, where seeds were run."""
    seeds = sys.modules.get("tests.simulation.test_seeds")
    ran = [report for report in terminalreporter.stats.get("passed", ()) if "test_in_every_story" in report.nodeid]
    if seeds is not None and ran:
        terminalreporter.write_line(f"simulation: {seeds.SEEDS} seeds from {seeds.FRESH}; HAMI_TEST_FIRST_SEED={seeds.FRESH} repeats them")

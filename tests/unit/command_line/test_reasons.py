"""What goes wrong is shown in words: no error numbers, no library's notation, and always the value that was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hami_cli.main import app


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["explain", "p", "--url", "http://127.0.0.1:1"], 1, ["http://127.0.0.1:1", "connection refused"]),
        (["explain", "p", "--url", "http://nohost.invalid:1"], 1, ["host nohost.invalid is not known"]),
        (["top", "--kubeconfig", "/no/such"], 1, ["/no/such", "no such file or directory"]),
        (["simulate", "-f", "/no/such"], 1, ["/no/such: no such file or directory"]),
        (["summary", "--metrics", "/no/such"], 1, ["/no/such: no such file or directory"]),
        (["top", "hosts"], 2, ["'hosts' is not one of 'nodes', 'cards', 'pods'"]),
        (["rig", "up", "--log-level", "loud"], 2, ["'loud' is not one of 'debug'", "'error'"]),
    ],
)
def test_every_failure_names_what_was_given(arguments: list[str], code: int, shown: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    output = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == code, output
    assert all(text in output for text in shown), output
    assert not any(inside in output for inside in ("Errno", "ssl:", "Value error", "Traceback", "usage:"))


def test_a_server_that_is_not_reached_is_named(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}], contexts: [{name: a, context: {cluster: a, user: a}}], "
        "current-context: a, users: [{name: a, user: {}}]}"
    )
    result = CliRunner().invoke(app, ["top", "--kubeconfig", str(kubeconfig)])
    assert (result.exit_code, "connection to 127.0.0.1:9 failed: connection refused" in result.output) == (1, True)

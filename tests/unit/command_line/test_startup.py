"""Help, version and completion start without the libraries that commands need; every command of the table is there."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hami_cli.commands import COMMANDS
from hami_cli.main import app

HEAVY = ("aiohttp", "nats", "grpc", "kubernetes_asyncio", "structlog", "opentelemetry", "numpy", "yaml")
PROGRAM = """
import sys
from hami_cli.main import main
try:
    main()
finally:
    print(*sorted(set(sys.modules) & set({heavy!r})), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], ["-V"], [], ["no-such"], ["rig", "--help"]], ids=" ".join)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *arguments], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1:] == [""], done.stderr


def test_completion_of_a_commands_name_imports_nothing_heavy() -> None:
    environment = {"_HAMI_COMPLETE": "complete_bash", "COMP_WORDS": "hami di", "COMP_CWORD": "1"}
    program = PROGRAM.format(heavy=HEAVY).replace("main()\nf", "app(prog_name='hami')\nf").replace("import main", "import app")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["diagnose"]
    assert done.stderr.splitlines()[-1:] == [""], done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_one(name: str) -> None:
    group: Any = typer.main.get_command(app)
    command = group.get_command(None, name)
    assert command.name == name
    assert CliRunner().invoke(app, [name, "-h"]).exit_code == 0


@pytest.mark.parametrize(("typed", "meant"), [("tpo", "top"), ("explian", "explain"), ("diagnos", "diagnose")])
def test_a_misspelled_command_is_told_which_was_meant(typed: str, meant: str) -> None:
    result = CliRunner().invoke(app, [typed])
    assert result.exit_code == 2
    assert f"Did you mean '{meant}'?" in result.output

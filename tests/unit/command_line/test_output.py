"""What the command line says, and what it refuses."""

from __future__ import annotations

import importlib
import inspect
import io
import re
import shlex
import tomllib
import typing
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hami_cli import commands, exits, live
from hami_cli.main import app
from hami_cli.output import coloured, columns, strong
from hami_cli.places import place
from hami_protocol import events
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, PodRef, VendorAssignment
from hami_protocol.errors import ProtocolError
from hami_protocol.event_line import event_line
from hami_runtime.bus.port import BusUnavailable
from hami_runtime.kube.cluster import ClusterError
from tests.e2e.documents import pages

POD = PodRef(namespace="default", name="p", uid="u")
SHARE = DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=3000, cores=25)
ASSIGNMENT = VendorAssignment(
    vendor="NVIDIA",
    containers=(
        ContainerShares(container="plain", kind=ContainerKind.INIT),
        ContainerShares(container="main", kind=ContainerKind.APP, shares=(SHARE,)),
    ),
)


def test_a_grant_names_pod_node_container_share_and_card() -> None:
    event = events.PodAllocating(pod=POD, node="n1", assignments=(ASSIGNMENT,), bind_time_seconds=1)
    assert event_line(event) == "allocating  default/p to n1: main 3000 MiB 25 % of GPU-a"


@pytest.mark.parametrize("kind", typing.get_args(events.Event), ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_its_line(kind: type[events.Event]) -> None:
    values = {"pod": POD, "node": "n1", "assignments": (), "devices": (), "reasons": {}, "containers": ()}
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind) if field.required}
    built = {
        name: values.get(name, {"int": 1, "bool": True}.get(getattr(field.type, "__name__", ""), 1 if "int" in str(field.type) else "x"))
        for name, field in fields.items()
    }
    event = kind(**{msgspec_name(kind, name): value for name, value in built.items()})
    assert "\n" not in event_line(event)


def msgspec_name(kind: type[events.Event], encoded: str) -> str:
    return next(field.name for field in msgspec.structs.fields(kind) if field.encode_name == encoded)


COMMANDS = sorted(name for name in commands.COMMANDS if name != "rig")


def test_every_command_is_there() -> None:
    assert COMMANDS == [
        "bill", "cordon", "diagnose", "doctor", "events", "explain", "install", "report", "resize", "simulate", "summary", "top", "trace", "uncordon",
        "uninstall",
    ]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_what_a_command_is_for_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert f"$ hami {command}" in " ".join(result.output.split()) or f"hami {command} " in result.output
    assert "--output" in result.output or command in {"install", "uninstall"}  # their answer is manifests, or progress


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"hami {metadata.version('hami')}\n")


def test_help_of_the_rig_and_of_all_names_exit_codes() -> None:
    for arguments in (["rig", "--help"], ["rig", "up", "--help"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert "Start a rig" in CliRunner().invoke(app, ["rig", "up", "--help"]).output
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done" in " ".join(CliRunner().invoke(app, ["--help"]).output.split())


def _documented() -> list[str]:
    text = "\n".join(path.read_text() for path in pages.paths())
    modules = {name: importlib.import_module(f"hami_cli.{commands.COMMANDS[name].module}") for name in COMMANDS}
    helps = "\n".join(inspect.getdoc(getattr(module, commands.COMMANDS[name].function)) or "" for name, module in modules.items())
    return re.findall(r"^\s*\$ (hami .+?)(?:\s+#.*|\s+[|>].*)?$", f"{text}\n{helps}", re.MULTILINE)


@pytest.mark.parametrize("line", sorted(set(_documented())))
def test_every_command_that_is_documented_is_understood(line: str) -> None:
    words = shlex.split(line)[1:]
    group = typer.main.get_command(app)
    if words[0] == "--install-completion":
        return
    command = group.get_command(None, words[0])  # type: ignore[attr-defined]
    if words[0] == "rig":
        command, words = command.commands[words[1]], words[1:]
    if "--help" not in words:
        command.make_context("hami", [word for word in words[1:] if word != "&"])


def test_every_command_that_a_page_names_in_passing_is_there_with_its_options() -> None:
    group = typer.main.get_command(app)
    unknown = []
    for path in pages.paths():
        for said in re.findall(r"`hami ((?:rig )?[a-z-]+)([^`]*)`", path.read_text()):
            command: typing.Any = group
            for word in said[0].split():
                command = command.get_command(None, word) if hasattr(command, "get_command") else None
            options = {option for each in getattr(command, "params", ()) for option in (*each.opts, *each.secondary_opts)}
            missing = [word for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said[1]) if word not in options]
            if command is None or missing:
                unknown.append((path.name, *said, missing))
    assert unknown == []


def test_the_exit_codes_are_those_that_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/cli.md").read_text().partition("## Exit codes")[2]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert codes == [exits.OK, exits.FAILED, exits.USAGE, exits.FOUND, exits.INTERRUPTED]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_it(shell: str) -> None:
    result = CliRunner().invoke(app, [], prog_name="hami", env={"_HAMI_COMPLETE": f"source_{shell}"})
    assert result.exit_code == 0
    assert "_HAMI_COMPLETE" in result.output
    words = {"_HAMI_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "hami dia", "COMP_WORDS": "hami dia", "COMP_CWORD": "1"}
    assert "diagnose" in CliRunner().invoke(app, [], prog_name="hami", env={**words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}).output


def test_kubectl_finds_it_as_a_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["kubectl-hami"] == project["scripts"]["hami"] == "hami_cli.main:main"


def test_a_table_is_as_wide_as_its_words_and_has_figures_to_the_right() -> None:
    assert columns(("NAME", "MIB", "OF"), [("a", 5, "10 %"), ("longer", 1000, "-")]) == (
        "NAME      MIB     OF\na           5   10 %\nlonger   1000      -"
    )
    assert columns(("NAME", "MIB"), []) == "NAME   MIB"


@given(st.text(), st.text())
def test_no_text_of_a_tenant_breaks_a_table(first: str, second: str) -> None:
    lines = columns(("A", "B"), [(first, second)]).split("\n")
    assert len(lines) == 2
    assert all(character.isprintable() for line in lines for character in line)


def test_there_are_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coloured("x", "red") == strong("x") == "x"
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in coloured("x", "red")
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("x", "red") == "x"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_time_is_said_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    live.progress("reading nodes and pods")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    live.progress("reading nodes and pods")
    said = capsys.readouterr()
    assert (said.out, "reading nodes and pods ..." in said.err) == ("", True)


def test_an_age_that_makes_no_sense_is_refused_with_what_is_accepted() -> None:
    result = CliRunner().invoke(app, ["events", "--since", "yesterday"])
    assert result.exit_code == 2
    assert "30s, 10m, 2h or 1d" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "content", "found"),
    [
        ("nats://mine", b'{"nats_url": "nats://rig"}', "nats://mine"),
        ("", b'{"nats_url": "nats://rig"}', "nats://rig"),
        ("", b"torn", "nats://default"),
        ("", None, "nats://default"),
    ],
)
def test_kubeconfig_alone_leads_to_a_rigs_services(tmp_path: Path, given: str, content: bytes | None, found: str) -> None:
    if content is not None:
        (tmp_path / "rig.json").write_bytes(content)
    assert place("nats_url", given, "nats://default", kubeconfig=str(tmp_path / "kubeconfig")) == found


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    result = CliRunner().invoke(app, ["explain", "p", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "hami explain: http://127.0.0.1:1" in result.output


@pytest.mark.parametrize(
    "failure",
    [
        exits.CommandError("no such"),
        ProtocolError("no name"),
        ClusterError("refused"),
        BusUnavailable("away"),
        TimeoutError("late"),
        OSError("gone"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_what_cannot_be_done_is_said_in_one_line_and_never_as_a_traceback(failure: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    async def fails() -> None:
        raise failure

    with pytest.raises(SystemExit) as ended:
        exits.run("top", fails())
    assert ended.value.code == exits.FAILED
    assert capsys.readouterr().err == f"hami top: {failure}\n"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", ""])
def test_an_address_that_is_none_is_named(url: str) -> None:
    result = CliRunner().invoke(app, ["explain", "p", "--url", url or "http://127.0.0.1:2"])
    assert (result.exit_code, result.output.startswith("hami explain: ")) == (1, True)

"""Every command on every page is typed into a rig, in order, and prints what the page shows; what needs more than a rig is listed with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from typer.testing import CliRunner

from hami_cli.main import app
from hami_cli.places import FILE_NAME
from hami_rig import profile
from hami_rig.kubectl import kubectl
from hami_rig.supervisor import Rig
from tests.e2e.documents.pages import ROOT, Command, commands, matches, paths

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

TARGETS: Final = "the gate runs the README's in a clean clone, others take minutes; that there is such a target is tested beside this"
OWN_ACCOUNT: Final = "it writes into the user's own account or repository"
THE_RIG: Final = "it is what starts and names the rig that this test types into"
INSTALLED: Final = "it needs an installation on a cluster: tests/cluster has one"
IMAGES: Final = "it needs Docker"
ELSEWHERE: Final = "it needs Go, Node.js or jq: make subscribers-test"
NOT_RUN: Final[tuple[tuple[str, str], ...]] = (
    (r"make .*", TARGETS),
    (r"\S*pre-commit install.*", OWN_ACCOUNT),
    (r"hami --install-completion.*", OWN_ACCOUNT),
    (r"hami rig up\b.*|\. \.venv/bin/activate|export (KUBECONFIG|NATS_URL)=\S*…\S*", THE_RIG),
    (r"docker(-compose)? .*", IMAGES),
    (r"kubectl label node NODE .*|kubectl (apply|delete) -k .*|kubectl .*-n hami-(system|node-agent) .*|export HAMI_TOKEN=.*", INSTALLED),
    (r"kubectl create clusterrolebinding .*|kubectl proxy .*|curl .*/proxy/v1/.*", INSTALLED),
    (r"hami install(?! --dry-run).*|hami uninstall.*|kubectl apply -f hami.yaml|helm .*", INSTALLED),
    (r"nats .*|.*\| jq .*|(npm|node|go) .*|cd examples/subscribers/(go|javascript)", ELSEWHERE),
)
"""Patterns of the whole command, each with why it is not typed here. One that no page has any more has to go."""
GOES_ON: Final = re.compile(r"hami events .*--follow.*|.*subscribe\.py|.*bill_gpu_hours\.py(?!.*--once).*")
"""Commands that do not end by themselves: they are interrupted once they have said what the page shows, or anything."""
ONCE: Final = re.compile(r"kubectl (apply|create|delete|run|label|annotate|patch)\b.*|.*&|export .*|hami (cordon|uncordon|resize)\b.*")
"""What is not tried again until it says what the page shows: it changes something."""
GOOD: Final = frozenset({0, 3})
"""Exit codes of what a page shows: done, or done with bad news."""
REFUSED: Final = re.compile(r"denied|refused|not accepted|[Ee]rror")
"""What a page shows of a command that does not succeed, and is not meant to."""
TRIES: Final = 60
PAUSE_SECONDS: Final = 0.25
BIN: Final = Path(sys.executable).parent


def reason_not_to_run(text: str) -> str:
    """Why a command is not typed into the rig; empty where it is."""
    return next((reason for pattern, reason in NOT_RUN if re.fullmatch(pattern, text, re.DOTALL)), "")


def of_page(path: Path) -> list[Command]:
    return commands(str(path.relative_to(ROOT)), path.read_text())


PAGES: Final = [path for path in paths() if any(not reason_not_to_run(each.text) for each in of_page(path))]


class Terminal:
    """A shell in a folder that looks like the repository, whose variables stay from one command to the next."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._groups: list[int] = []

    async def type(self, command: Command) -> tuple[int, str]:
        """The exit code of a command and what it printed, standard error too."""
        plain = shlex.split(command.text, comments=True) if command.text.startswith("hami ") else []
        if plain and not set(command.text) & set("|<>&$`") and not GOES_ON.fullmatch(command.text):
            return await self._hami(plain[1:])
        return await self._bash(command)

    async def _hami(self, arguments: list[str]) -> tuple[int, str]:
        """In this process: a new interpreter takes longer than the command."""
        with capture_logs():
            result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=self._environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    async def _bash(self, command: Command) -> tuple[int, str]:
        """In a shell of its own, whose variables are kept; output goes to a file, which a job in the background may keep open."""
        output, variables = self._folder / ".output", self._folder / ".variables"
        script = f"{command.text}\nstatus=$?\nenv -0 > {shlex.quote(str(variables))}\nexit $status"
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", script),
                stdout=file,
                stderr=file,
                env=self._environ,
                cwd=self._folder,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        if GOES_ON.fullmatch(command.text):
            return await self._interrupted(process, output, command)
        code = await process.wait()
        if command.text.endswith("&"):
            await _printed(output, command)
        for each in variables.read_bytes().split(b"\0"):
            name, _, value = each.decode().partition("=")
            if name:
                self._environ[name] = value
        return code, output.read_text()

    async def _interrupted(self, process: asyncio.subprocess.Process, output: Path, command: Command) -> tuple[int, str]:
        await _printed(output, command)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        await process.wait()
        printed = await asyncio.to_thread(output.read_text)
        return 0 if printed else 1, printed

    def close(self) -> None:
        """End what goes on in the background."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


async def _printed(output: Path, command: Command) -> None:
    """Return once a command that goes on has printed what its page shows, or anything, or has had its time for it."""
    for _ in range(TRIES * 4):
        printed = await asyncio.to_thread(output.read_text)
        if (printed and not command.shown) or (command.shown and matches(command.shown, printed)):
            return
        await asyncio.sleep(PAUSE_SECONDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig() -> AsyncIterator[Rig]:
    """The rig of ``hami rig up``: three nodes of two cards."""
    async with Rig(profile.read()) as running:
        (running.folder / FILE_NAME).write_text(
            f'{{"nats_url": "{running.nats_url}", "scheduler_url": "{running.scheduler_url}", "folder": "{running.folder}"}}'
        )
        yield running


@pytest.fixture
def terminal(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal in a folder with everything that the repository has, but for what is written there."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("HAMI_", "NATS_"))}
    environ |= {"KUBECONFIG": str(rig.kubeconfig), "NATS_URL": rig.nats_url, "PATH": f"{BIN}:{environ['PATH']}", "COLUMNS": "200"}
    opened = Terminal(tmp_path, environ)
    yield opened
    opened.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
async def test_what_a_page_shows_is_what_comes(page: Path, rig: Rig, terminal: Terminal) -> None:
    await kubectl(rig.kubeconfig, "delete", "pods", "--all", "--grace-period=1", "--timeout=60s")
    for command in of_page(page):
        if reason_not_to_run(command.text):
            continue
        code, printed = await said(terminal, command)
        assert not command.shown or matches(command.shown, printed), f"{command}\n{printed}"
        assert code in GOOD or REFUSED.search(" ".join(command.shown)), f"{command}: exit code {code}\n{printed}"


async def said(terminal: Terminal, command: Command) -> tuple[int, str]:
    """What a command says; one that only looks is typed again until it says what the page shows, as a user does who waits."""
    code, printed = await terminal.type(command)
    for _ in range(TRIES):
        if not command.shown or matches(command.shown, printed) or ONCE.fullmatch(command.text) or GOES_ON.fullmatch(command.text):
            break
        await asyncio.sleep(PAUSE_SECONDS)
        code, printed = await terminal.type(command)
    return code, printed


async def test_every_reason_not_to_run_a_command_is_still_needed() -> None:
    texts = [command.text for path in paths() for command in of_page(path)]
    assert [pattern for pattern, _ in NOT_RUN if not any(re.fullmatch(pattern, text, re.DOTALL) for text in texts)] == []

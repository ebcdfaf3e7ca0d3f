"""``hami rig``: a cluster on this machine, whole or one part of it at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from hami_cli.places import FILE_NAME

if TYPE_CHECKING:
    from hami_rig.scenario import Outcome
    from hami_rig.supervisor import Rig

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A cluster on this machine: no Kubernetes, no Docker, no GPU.")
_PART = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_say = Console(stderr=True)


class LogLevel(StrEnum):
    """What the rig's programs log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ProfileOption = Annotated[
    Path | None, typer.Option("--profile", "-p", help="Nodes and their cards, YAML; default: three nodes with two cards.")
]
LogLevelOption = Annotated[LogLevel, typer.Option(help="What the programs log: debug, info, warning or error.")]


@app.command()
def up(
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print where everything is as one line of JSON.")] = False,
    restart: Annotated[bool, typer.Option(help="Start a program again when it dies, after saying so.")] = True,
    folder: Annotated[Path | None, typer.Option(help="Where it keeps everything; must not exist, and is removed at the end.")] = None,
    otlp: Annotated[str, typer.Option(help="Where the services send traces and metrics: OTLP over HTTP, as http://127.0.0.1:4318.")] = "",
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Start a rig, say where it is, and stay until Ctrl-C.

    [bold]Examples[/]

    $ hami rig up

    $ hami rig up --profile rig/hami_rig/profiles/modes.yaml

    $ hami rig up --json > where.json &
    """
    sys.exit(
        asyncio.run(_interruptible(_up(profile, folder, as_json=as_json, restart=restart, otlp=otlp, log_level=log_level.value), status=0))
    )


@app.command()
def run(
    folder: Annotated[
        Path, typer.Argument(help="Folder with manifests and, if it needs one, a profile.yaml.", exists=True, file_okay=False)
    ],
    timeout: Annotated[float, typer.Option(help="How many seconds the pods may take.")] = 60.0,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Start a rig, apply a folder's manifests, and check that each pod gets where its annotation rig.hami.io/expect says.

    Exits with 0 only if all do.

    [bold]Example[/]

    $ hami rig run examples
    """
    sys.exit(asyncio.run(_interruptible(_run(folder, timeout_seconds=timeout, log_level=log_level))))


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where the facts that are shown are written, JSON.")] = Path("build/demo.json"),
    examples: Annotated[Path | None, typer.Option(help="Folder of the examples; default: the project's.")] = None,
) -> None:
    """Show the way of a few pods through the system, step by step, in under a minute.

    [bold]Example[/]

    $ hami rig demo
    """
    from hami_rig import demo as story

    sys.exit(asyncio.run(_interruptible(story.run(output, examples=examples))))


@app.command(name="api-server", context_settings=_PART)
def api_server(context: typer.Context) -> None:
    """Start the embedded API server alone. --help shows its own options."""
    from hami_rig.apiserver.__main__ import main

    main(context.args)


@app.command(name="kube-scheduler", context_settings=_PART)
def kube_scheduler(context: typer.Context) -> None:
    """Start the stand-in for kube-scheduler alone. --help shows its own options."""
    from hami_rig.scheduler.process import main

    main(context.args)


@app.command(context_settings=_PART)
def kubelet(context: typer.Context) -> None:
    """Start kubelets alone, all nodes in one process. --help shows its own options."""
    from hami_rig.kubelet.process import main

    main(context.args)


async def _up(profile: Path | None, folder: Path | None, *, as_json: bool, restart: bool, otlp: str, log_level: str) -> int:
    from hami_rig import project
    from hami_rig.processes import ProcessFailed
    from hami_rig.profile import ProfileError, read
    from hami_rig.supervisor import Rig

    unheld = await project.build_shim()
    try:
        async with Rig(read(profile), folder=folder, log_level=log_level, otlp_endpoint=otlp, say=_progress) as rig:
            places = _places(rig)
            (rig.folder / FILE_NAME).write_text(json.dumps(places))
            print(json.dumps(places | {"shim_missing": unheld}) if as_json else _exports(rig, unheld), flush=True)
            while True:
                failed = await rig.first_failure()
                _say.print(f"[bold red]{escape(failed.obituary())}[/]", highlight=False)
                if not restart:
                    return 1
                await rig.restart(failed.name)
                _say.print(f"{failed.name} was started again")
    except (ProcessFailed, ProfileError) as exc:
        _say.print(f"[bold red]hami rig up:[/] {escape(str(exc))}", highlight=False)
        return 1


async def _run(folder: Path, *, timeout_seconds: float, log_level: str) -> int:
    from hami_rig import project, scenario
    from hami_rig.kubectl import KubectlFailed
    from hami_rig.processes import ProcessFailed
    from hami_rig.profile import ProfileError, read
    from hami_rig.supervisor import Rig
    from hami_runtime.kube import http
    from hami_runtime.kube.cluster import ClusterError

    await project.build_shim()  # the rig tells of it where it is still missing
    own_profile = folder / scenario.PROFILE_FILE
    try:
        files = scenario.manifests(folder)
        profile = read(own_profile if own_profile.exists() else None)
        async with Rig(profile, log_level=log_level, say=_progress) as rig, http.connect(str(rig.kubeconfig)) as cluster:
            outcomes = await scenario.run(rig.kubeconfig, cluster, files, timeout_seconds=timeout_seconds)
    except (scenario.ScenarioError, ProfileError, ProcessFailed, KubectlFailed, ClusterError) as exc:
        _say.print(f"[bold red]hami rig run:[/] {escape(str(exc))}", highlight=False)
        return 1
    Console().print(_outcome_table(outcomes))
    return 0 if outcomes and all(each.reached for each in outcomes) else 1


async def _interruptible(work: Coroutine[Any, Any, int], *, status: int = 130) -> int:
    """Run ``work``, and end it in order when the user has had enough: its context managers close what they opened."""
    task = asyncio.ensure_future(work)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        _say.print("stopped")
        return status


def _progress(text: str) -> None:
    _say.print(f"[dim]{text}[/]", highlight=False)


def _places(rig: Rig) -> dict[str, str | int]:
    device_config = rig.folder / "device-config.yaml"
    return {
        **({"device_config": str(device_config)} if device_config.exists() else {}),
        "kubeconfig": str(rig.kubeconfig),
        "nats_url": rig.nats_url,
        "scheduler_url": rig.scheduler_url,
        "registry_url": rig.registry_url,
        "folder": str(rig.folder),
        "pid": os.getpid(),
    }


def _exports(rig: Rig, unheld: str = "") -> str:
    """What a shell is to evaluate; ``unheld`` is why no program is held to its share."""
    warning = f"\n# No program is held to its share here: {unheld}" if unheld else ""
    exports = f"export KUBECONFIG={rig.kubeconfig}\nexport NATS_URL={rig.nats_url}"
    return f"{exports}\n# page: {rig.registry_url}/    logs: {rig.folder}/logs    stop: Ctrl-C{warning}"


def _outcome_table(outcomes: list[Outcome]) -> Table:
    table = Table(Column("pod", no_wrap=True), "expected", "", "node", Column("detail", overflow="fold"))
    for each in outcomes:
        table.add_row(each.pod, each.expected, "[green]yes[/]" if each.reached else "[red]no[/]", each.node or "-", escape(each.detail))
    return table

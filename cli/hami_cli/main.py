"""``hami``: the commands. Decides nothing."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from hami_cli import bill, cordon, diagnose, doctor, events, explain, install, report, resize, rig, simulate, summary, top, trace, uninstall
from hami_runtime import logs

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Share accelerators between Kubernetes pods: try it, watch it, ask it why.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done and something was found wrong, 130 interrupted.",
)
app.command(name="top")(top.top)
app.command(name="explain")(explain.explain)
app.command(name="diagnose")(diagnose.diagnose)
app.command(name="trace")(trace.trace)
app.command(name="events")(events.events)
app.command(name="simulate")(simulate.simulate)
app.command(name="resize")(resize.resize)
app.command(name="summary")(summary.summary)
app.command(name="report")(report.report)
app.command(name="bill")(bill.bill)
app.command(name="cordon")(cordon.cordon)
app.command(name="uncordon")(cordon.uncordon)
app.command(name="install")(install.install)
app.command(name="uninstall")(uninstall.uninstall)
app.command(name="doctor")(doctor.doctor)
app.add_typer(rig.app, name="rig")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hami {metadata.version('hami')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Options beside every command."""


def main() -> None:
    """Run the command line. What the libraries below have to say is shown only when something is wrong."""
    logs.configure("error", "hami")
    app()


if __name__ == "__main__":
    main()

"""``hami``: the commands. Decides nothing."""

from __future__ import annotations

import typer

from hami_cli import events, explain, rig
from hami_runtime import logs

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Share accelerators between Kubernetes pods: try it, watch it, ask it why.",
)
app.add_typer(rig.app, name="rig")
app.command(name="events")(events.events)
app.command(name="explain")(explain.explain)


def main() -> None:
    """Run the command line. What the libraries below have to say is shown only when something is wrong."""
    logs.configure("warning", "hami")
    app()


if __name__ == "__main__":
    main()

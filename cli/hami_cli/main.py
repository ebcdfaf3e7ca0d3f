"""``hami``: the command line. A command's module is imported when the command runs. Decides nothing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from hami_cli.commands import COMMANDS
from hami_cli.pipes import closed_pipe_is_silent

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """The commands of ``COMMANDS``. Help and completion need their names and their help lines alone."""

    _listing = False

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        names = {name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel) for name, entry in COMMANDS.items()}
        self.commands.update(names)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands' names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with its module imported; None where there is none."""
        if self._listing or (entry := COMMANDS.get(cmd_name)) is None:
            return self.commands.get(cmd_name)
        found = getattr(importlib.import_module(f"hami_cli.{entry.module}"), entry.function)
        if isinstance(found, typer.Typer):
            group = typer.main.get_command(found)
            group.name = cmd_name
            return _prepared(group)
        info = CommandInfo(name=cmd_name, callback=found)
        return _prepared(get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode="rich"))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a refused value is shown without the prefix of the library that refused it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing a command."""
        with self._names_alone():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name without importing a command."""
        with self._names_alone():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _names_alone(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def _prepared(command: Any) -> Any:
    """``command``, which calls what ``main`` has handed over before it runs, and not for its help."""
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        if ctx.obj is not None:
            ctx.obj()
        return run(ctx)

    command.invoke = invoke
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Share accelerators between Kubernetes pods: try it, watch it, ask it why.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done and something was found wrong, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"hami {metadata.version('hami')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Options beside every command."""


def _log_errors_alone() -> None:
    """What libraries log is shown only when something is wrong. A program alone does that: it is about the whole process."""
    from hami_runtime import logs

    logs.configure("error", "hami")


def main() -> None:
    """Run the command line."""
    with closed_pipe_is_silent():
        app(obj=_log_errors_alone)


if __name__ == "__main__":
    main()

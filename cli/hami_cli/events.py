"""``hami events``: the log of allocations, from its beginning, as it goes on, or both."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from hami_cli import live
from hami_cli.exits import run
from hami_cli.output import Format, OutputOption, plain
from hami_cli.places import ContextOption, KubeconfigOption, NatsOption, RegistryOption, TokenOption
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError
from hami_protocol.event_line import event_line

_DURATION = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Only what is not older than this, as 30s, 10m, 2h or 1d.", show_default=False)] = "",
    output: OutputOption = Format.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as it is on the bus; the same as -o json.")] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of pods of this namespace alone; default: all.", show_default=False)
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    nats: NatsOption = "",
    registry: RegistryOption = "",
    token: TokenOption = "",
) -> None:
    """Show what was granted to which pod, and how it went.

    [bold]Examples[/]

    $ hami events

    $ hami events --follow --since 10m

    $ hami events -n research

    $ hami events -o json | jq -r 'select(.type == "pod_allocating") | .pod.name'
    """
    form = Format.JSON if as_json else output
    where = live.Where(kubeconfig=kubeconfig, context=context, nats=nats, registry=registry, token=token)
    run("events", _show(where, namespace, follow=follow, since=_oldest(since), form=form))


async def _show(where: live.Where, namespace: str, *, follow: bool, since: datetime | None, form: Format) -> None:
    async with where.source() as source, aclosing(source.log(namespace, since=since, follow=follow)) as logged:
        async for each in logged:
            print(line(each.message, each.sequence, form), flush=True)


def line(message: Message, sequence: int, form: Format) -> str:
    """One message: a line for people, the body as it is on the bus, or a YAML document."""
    if form is Format.JSON:
        return message.data.decode(errors="replace")
    if form is Format.YAML:
        return "---\n" + msgspec.yaml.encode(_body(message.data)).decode().rstrip("\n")
    time = message.headers.get("ce-time", "")[:19] + "Z"
    try:
        return f"{sequence:>5}  {time}  {plain(event_line(open_message(message)))}"
    except EventError as exc:
        return f"{sequence:>5}  {time}  unreadable: {plain(str(exc))}"


def _body(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"unreadable": data.decode(errors="replace")}


def _oldest(since: str) -> datetime | None:
    """The earliest time that is shown; None for all."""
    if not since:
        return None
    match = _DURATION.fullmatch(since)
    if match is None:
        raise typer.BadParameter(f"{since!r} is not accepted; accepted: as 30s, 10m, 2h or 1d", param_hint="--since")
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        return None

"""``hami events``: the log of allocations, from its beginning, as it goes on, or both."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from hami_cli.event_line import event_line
from hami_cli.places import place
from hami_protocol import subjects
from hami_protocol.envelope import Message, open_message
from hami_protocol.errors import EventError
from hami_runtime.bus import jetstream
from hami_runtime.bus.port import BusError

QUIET_SECONDS = 1.5
CONNECT_SECONDS = 5.0
_DURATION = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Only what is not older than this, as 30s, 10m, 2h or 1d.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as it is on the bus.")] = False,
    nats: Annotated[str, typer.Option(envvar=["NATS_URL", "HAMI_NATS_URL"], help="Where the bus is; default: that of the rig.")] = "",
) -> None:
    """Show what was granted to which pod, and how it went.

    [bold]Examples[/]

    $ hami events

    $ hami events --follow --since 10m
    """
    nats_url = place("nats_url", nats, "nats://127.0.0.1:4222")
    try:
        asyncio.run(_show(nats_url, follow=follow, oldest=_oldest(since), as_json=as_json))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (BusError, TimeoutError) as exc:
        print(f"hami events: {nats_url}: {str(exc) or 'no connection'}", file=sys.stderr)
        raise SystemExit(1) from exc


async def _show(nats_url: str, *, follow: bool, oldest: str, as_json: bool) -> None:
    async with jetstream.connect(nats_url, name="hami-events") as bus:
        async with asyncio.timeout(CONNECT_SECONDS):
            await bus.wait_connected()
        async with bus.consume(subjects.ALLOCATIONS, subjects=[subjects.ALL_ALLOCATIONS]) as deliveries:
            while True:
                try:
                    async with asyncio.timeout(None if follow else QUIET_SECONDS):
                        delivery = await anext(deliveries)
                except TimeoutError:
                    return
                if delivery.message.headers.get("ce-time", "") >= oldest:
                    print(_line(delivery.message, delivery.sequence, as_json=as_json), flush=True)
                if not follow and delivery.pending == 0:
                    return


def _line(message: Message, sequence: int, *, as_json: bool) -> str:
    if as_json:
        return message.data.decode(errors="replace")
    time = message.headers.get("ce-time", "")[:19].replace("T", " ")
    try:
        return f"{sequence:>5}  {time}  {event_line(open_message(message))}"
    except EventError as exc:
        return f"{sequence:>5}  {time}  unreadable: {exc}"


def _oldest(since: str) -> str:
    """The earliest time, in RFC 3339, that is shown; empty for all."""
    if not since:
        return ""
    match = _DURATION.fullmatch(since)
    if match is None:
        raise typer.BadParameter(f"{since!r} is not accepted; accepted: as 30s, 10m, 2h or 1d", param_hint="--since")
    age = timedelta(**{_UNITS[match[2]]: int(match[1])})
    return (datetime.now(UTC) - age).isoformat()

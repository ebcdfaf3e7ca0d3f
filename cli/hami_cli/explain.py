"""``hami explain``: why a pod is where it is, or is nowhere."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import aiohttp
import msgspec
import typer
from rich.console import Console
from rich.table import Table

from hami_cli.places import place


def explain(
    pod: Annotated[str, typer.Argument(help="Name of the pod.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="The scheduler's whole answer.")] = False,
    url: Annotated[str, typer.Option(envvar="HAMI_SCHEDULER_URL", help="Where the scheduler answers /v1; default: that of the rig.")] = "",
    token: Annotated[str, typer.Option(envvar="HAMI_TOKEN", help="Bearer token, where one is asked for.", show_default=False)] = "",
) -> None:
    """Ask the scheduler why a pod is where it is, or what keeps it from being placed.

    [bold]Example[/]

    $ hami explain too-big
    """
    url = place("scheduler_url", url, "http://127.0.0.1:8080")
    try:
        content = asyncio.run(_ask(f"{url.rstrip('/')}/v1/explain/{namespace}/{pod}", token))
    except (aiohttp.ClientError, TimeoutError, _Refused) as exc:
        print(f"hami explain: {url}: {str(exc) or type(exc).__name__}", file=sys.stderr)
        raise SystemExit(1) from exc
    if as_json:
        print(content.decode())
        return
    _print(msgspec.json.decode(content))


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """The scheduler answered with an error."""


async def _ask(url: str, token: str) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session, session.get(url, headers=headers) as answer:
        content = await answer.read()
        if answer.status != 200:
            raise _Refused(f"{answer.status}: {_reason(content)}")
        return content


def _reason(content: bytes) -> str:
    try:
        return str(msgspec.json.decode(content, type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError):
        return content.decode(errors="replace")[:500]


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    ref = answer["pod"]
    console.print(f"[bold]{ref['namespace']}/{ref['name']}[/]  {answer.get('phase') or 'not seen yet'}  {answer.get('node', '')}")
    console.print(answer["summary"], highlight=False)
    for reason, count in (answer.get("reasons") or {}).items():
        console.print(f"  {count} nodes: {reason}", highlight=False)
    if answer.get("nodes"):
        table = Table("node", "reason", "detail", box=None)
        for node in answer["nodes"]:
            table.add_row(str(node.get("node", "")), str(node.get("reason", "") or "fits"), str(node.get("detail", "")))
        console.print(table)

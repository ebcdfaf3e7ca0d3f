"""``hami bill``: who used the time of the cards, from the billing service."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlencode

import msgspec
import typer

from hami_cli import ask
from hami_cli.exits import run
from hami_cli.output import Format as Encoding
from hami_cli.output import columns, encoded
from hami_cli.places import ContextOption, KubeconfigOption, TokenOption, place
from hami_protocol.bill import Bill
from hami_runtime.kube.accounts import SYSTEM_NAMESPACE

BILLING_URL = f"service://{SYSTEM_NAMESPACE}/hami-billing:api"
HOUR = 3_600_000_000
_MIB_PER_GIB = 1024
_STEP = Decimal("0.0001")


class Format(StrEnum):
    """How a bill is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


def bill(
    begin: Annotated[str, typer.Option("--from", help="From when, as 2026-01-01T00:00:00Z; default: a day before --to.")] = "",
    end: Annotated[str, typer.Option("--to", help="Until when; default: now.")] = "",
    by: Annotated[str, typer.Option("--by", help="Group by these: namespace, pod, model, node, card, day, hour.")] = "namespace,model",
    rule: Annotated[str, typer.Option("--rule", help="What counts of a share: max (of memory and cores), memory, or cores.")] = "max",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="The pods of this namespace alone.")] = "",
    output: Annotated[Format, typer.Option("--output", "-o", help="For people (table) or for programs.")] = Format.TABLE,
    billing: Annotated[
        str,
        typer.Option(
            "--billing",
            envvar="HAMI_BILLING_URL",
            help="The billing service: a URL, or service://NAMESPACE/NAME:PORT through the API server; default: the latter.",
            show_default=False,
        ),
    ] = "",
    kubeconfig: KubeconfigOption = "",
    context: ContextOption = "",
    token: TokenOption = "",
) -> None:
    """Show who used the time for which the cards existed; the rows sum to that time.

    [bold]Examples[/]

    $ hami bill

    $ hami bill --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z --by namespace,model -o csv
    """
    query = {"from": begin, "to": end, "by": by, "rule": rule, "namespace": namespace}
    path = f"/v1/bill?{urlencode({key: value for key, value in query.items() if value})}"
    where = ask.Service(place("billing_url", billing, BILLING_URL, kubeconfig=kubeconfig), token, kubeconfig, context)
    found = msgspec.json.decode(run("bill", ask.get(where, path)), type=Bill)
    print(written(found, output))


def written(found: Bill, form: Format) -> str:
    """The bill in the form that was asked for."""
    match form:
        case Format.TABLE:
            return text(found)
        case Format.CSV:
            return _csv(found)
        case _:
            return encoded(found, Encoding(form))


def text(found: Bill) -> str:
    """The bill for people."""
    headers, rows = table(found)
    total = rounded([Decimal(sum(row.card_microseconds for row in found.rows)) / HOUR])[0]
    parts = [
        columns([name.upper() for name in headers], rows) if rows else "No cards were registered in that time.",
        f"{total} card hours from {found.begin} to {found.end}; a share counts by {found.rule}.",
        *(
            f"{card}: held for {rounded([Decimal(time) / HOUR])[0]} hours in which it was not registered; these are on no row"
            for card, time in found.uncounted_microseconds.items()
        ),
    ]
    return "\n\n".join(parts)


def table(found: Bill) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row of texts for each row. Rounded figures sum to the rounded total."""
    hours = rounded([Decimal(row.card_microseconds) / HOUR for row in found.rows])
    memory = rounded([Decimal(row.memory_mib_microseconds) / HOUR / _MIB_PER_GIB for row in found.rows])
    headers = [*found.by, "kind", "card hours", "GiB hours"]
    rows = [
        [*row.group.values(), row.kind, str(of_cards), str(of_memory)]
        for row, of_cards, of_memory in zip(found.rows, hours, memory, strict=True)
    ]
    if any(row.cost is not None for row in found.rows):
        headers.append(found.currency)
        costs = iter(rounded([row.cost for row in found.rows if row.cost is not None]))
        for row, line in zip(found.rows, rows, strict=True):
            line.append("" if row.cost is None else str(next(costs)))
    return headers, rows


def rounded(exact: Sequence[Decimal]) -> list[Decimal]:
    """Round to four digits so that the sum is the rounded sum: what is missing goes to the largest remainders."""
    down = [value.quantize(_STEP, ROUND_FLOOR) for value in exact]
    missing = int((sum(exact, Decimal()).quantize(_STEP, ROUND_HALF_EVEN) - sum(down, Decimal())) / _STEP)
    for number in sorted(range(len(exact)), key=lambda number: down[number] - exact[number])[:missing]:
        down[number] += _STEP
    return down


def _csv(found: Bill) -> str:
    headers, rows = table(found)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["from", "to", *(name.replace(" ", "_").lower() for name in headers)])
    writer.writerows([found.begin, found.end, *map(_no_formula, row)] for row in rows)
    return written.getvalue().rstrip("\n")


def _no_formula(cell: str) -> str:
    """A spreadsheet takes a text that begins so for a formula; names of Kubernetes objects do not, models of cards may."""
    return f"'{cell}" if cell[:1] in {"=", "+", "-", "@"} else cell

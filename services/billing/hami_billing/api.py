"""``GET /v1/bill``: bills over HTTP, for users who may list nodes; of one namespace, for users who may list its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from hami_billing.core import prices, rows
from hami_billing.core.bill import Rule, Window, divide
from hami_billing.follower import MICROSECONDS, microseconds
from hami_billing.store import Store
from hami_protocol.bill import Bill, BillRow
from hami_runtime.clock import Clock
from hami_runtime.http import error_response
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Authorize

LONGEST: Final = timedelta(days=400)
MOST_NAME: Final = 63
LIST_NODES: Final = ResourceAccess(verb="list", resource="nodes")
_PARAMETERS: Final = ("from", "to", "by", "rule", "namespace")


class Question(Struct, frozen=True, kw_only=True):
    """What a request asks."""

    window: Window
    by: tuple[str, ...]
    rule: Rule
    namespace: str


def question(query: Mapping[str, str], now: datetime) -> Question:
    """Read a request's parameters. Without ``to`` the bill ends now, without ``from`` it begins a day before its end.

    Raises:
        ValueError: one is not accepted; the text names it, what was given and what is accepted.
    """
    if unknown := sorted(set(query) - set(_PARAMETERS)):
        raise ValueError(f"{unknown[0][:40]!r}: no parameter; accepted: {', '.join(_PARAMETERS)}")
    try:
        end = _time("to", query.get("to", ""), now)
        begin = _time("from", query.get("from", ""), end - timedelta(days=1))
    except OverflowError:
        raise ValueError("from, to: outside of the years 1 to 9999; accepted: times that the ledger can have") from None
    if not timedelta(0) < end - begin <= LONGEST:
        raise ValueError(f"from: {begin.isoformat()}, to: {end.isoformat()}; accepted: from before to, at most {LONGEST.days} days")
    by = tuple(name for name in query.get("by", "namespace").split(",") if name)
    if (wrong := next((name for name in by if name not in rows.GROUPS), None)) is not None or len(set(by)) < len(by):
        raise ValueError(f"by: {(wrong or ','.join(by))[:80]!r}; accepted: each at most once of {', '.join(rows.GROUPS)}")
    rule = query.get("rule", Rule.MAX)
    if rule not in {str(each) for each in Rule}:
        raise ValueError(f"rule: {rule[:40]!r}; accepted: {', '.join(Rule)}")
    namespace = query.get("namespace", "")
    if len(namespace) > MOST_NAME:
        raise ValueError(f"namespace: {len(namespace)} characters; accepted: at most {MOST_NAME}")
    window = Window(microseconds(begin.isoformat()), microseconds(end.isoformat()))
    return Question(window=window, by=by, rule=Rule(rule), namespace=namespace)


def _time(name: str, text: str, default: datetime) -> datetime:
    if not text:
        return default
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{name}: {text[:40]!r}; accepted: a time with its zone, as 2026-01-31T00:00:00Z")
    return time.astimezone(UTC)


def answer(store: Store, asked: Question, price_list: prices.Prices) -> Bill:
    """Make the bill. One of a namespace has that namespace's rows alone, and says nothing of what others hold."""
    cards, holds = store.read(asked.window)
    division = divide(cards, holds, asked.window, rule=asked.rule)
    pieces = division.pieces
    uncounted = division.uncounted
    if asked.namespace:
        pieces = [piece for piece in pieces if piece.hold is not None and piece.hold.namespace == asked.namespace]
        uncounted = {}
    found = rows.grouped(pieces, asked.by, price_list)
    return Bill(
        begin=_text(asked.window.begin),
        end=_text(asked.window.end),
        by=asked.by,
        rule=asked.rule,
        currency=price_list.currency,
        rows=tuple(
            BillRow(group=row.group, kind=row.kind, card_microseconds=row.card_us, memory_mib_microseconds=row.memory_mib_us, cost=row.cost)
            for row in found
        ),
        uncounted_microseconds=uncounted,
    )


def _text(time: int) -> str:
    return datetime.fromtimestamp(time / MICROSECONDS, UTC).isoformat().replace("+00:00", "Z")


def application(store: Store, clock: Clock, authorize: Authorize, prices_file: str) -> web.Application:
    """The application. One bill is made at a time: it is the processor's work."""
    one = asyncio.Lock()

    async def bill(request: web.Request) -> web.Response:
        try:
            asked = question(request.query, clock.utc())
        except ValueError as exc:
            return error_response(HTTPStatus.BAD_REQUEST, str(exc))
        right = ResourceAccess(verb="list", resource="pods", namespace=asked.namespace) if asked.namespace else LIST_NODES
        if (refusal := await authorize(request, right)) is not None:
            return error_response(*refusal)
        try:
            async with one:
                made = await asyncio.to_thread(lambda: answer(store, asked, _prices(prices_file)))
        except (prices.PricesError, OSError) as exc:
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(exc))
        return web.Response(body=msgspec.json.encode(made), content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/v1/bill", bill)])
    return app


def _prices(path: str) -> prices.Prices:
    return prices.read(Path(path).read_bytes()) if path else prices.Prices()

"""Bills over HTTP: what may be asked, by whom, and what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from hami_billing.api import application, question
from hami_billing.core.prices import PricesError, read
from hami_billing.follower import MICROSECONDS
from hami_billing.store import Store
from hami_cli.bill import Format, written
from hami_protocol.bill import Bill
from hami_protocol.events import PodReleased
from hami_runtime.clock import SystemClock
from hami_runtime.kube.access import ResourceAccess
from hami_runtime.kube.readers import Refusal
from tests.contract.billing.conftest import START, a_pod, at, granted, reported, shares

NOW = datetime(2026, 1, 31, tzinfo=UTC)
MAY_LIST_PODS_OF = "team"


async def authorize(_: web.Request, access: ResourceAccess | None) -> Refusal | None:
    """A user who may list nodes, and pods of one namespace."""
    assert access is not None
    if access.resource == "pods" and access.namespace != MAY_LIST_PODS_OF:
        return HTTPStatus.FORBIDDEN, "pods may not be listed there"
    return None


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\ncards: {'NVIDIA A100*': 2.5}\n")
    with Store(f"sqlite:///{tmp_path / 'billing.db'}") as store:
        micro = START * MICROSECONDS
        store.take("HAMI_DEVICES", [(1, reported("GPU-0", "GPU-1"), micro)])
        store.take(
            "HAMI_ALLOCATIONS",
            [
                (1, granted(a_pod("a")), micro),
                (2, granted(a_pod("b", "other"), shares("GPU-1", 1, 100)), micro + 1800 * MICROSECONDS),
                (3, PodReleased(pod=a_pod("a"), node="n1"), micro + 3600 * MICROSECONDS),
            ],
        )
        async with TestClient(TestServer(application(store, SystemClock(), authorize, str(prices)))) as made:
            yield made


async def test_the_rows_sum_to_the_time_for_which_the_cards_existed(client: TestClient[web.Request, web.Application]) -> None:
    answer = await client.get("/v1/bill", params={"from": at(0), "to": at(7200), "by": "namespace,model"})
    bill = msgspec.json.decode(await answer.read(), type=Bill)
    assert answer.status == HTTPStatus.OK
    assert sum(row.card_microseconds for row in bill.rows) == 2 * 7200 * MICROSECONDS
    assert written(bill, Format.CSV).splitlines() == [
        "from,to,namespace,model,kind,card_hours,gib_hours,eur",
        f"{at(0)},{at(7200)},other,NVIDIA A100,used,1.5000,0.0015,3.7500",
        f"{at(0)},{at(7200)},team,NVIDIA A100,used,0.2500,4.0000,0.6250",
        f"{at(0)},{at(7200)},,NVIDIA A100,idle,2.2500,0.0000,5.6250",
    ]
    assert "4.0000 card hours" in written(bill, Format.TABLE)


async def test_a_bill_by_the_hour_is_cut_at_hours(client: TestClient[web.Request, web.Application]) -> None:
    answer = await client.get("/v1/bill", params={"from": at(1800), "to": at(5400), "by": "hour,pod", "namespace": "team"})
    bill = msgspec.json.decode(await answer.read(), type=Bill)
    assert [row.group["pod"] for row in bill.rows] == ["a"]
    assert sum(row.card_microseconds for row in bill.rows) == 450 * MICROSECONDS


async def test_a_namespaces_bill_takes_the_right_to_list_its_pods(client: TestClient[web.Request, web.Application]) -> None:
    answer = await client.get("/v1/bill", params={"namespace": "other"})
    assert answer.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"form": "x"}, "'form': no parameter; accepted: from, to, by, rule, namespace"),
        ({"from": "yesterday"}, "from: 'yesterday'; accepted: a time with its zone"),
        ({"from": "2026-01-01T00:00:00"}, "from: '2026-01-01T00:00:00'; accepted: a time with its zone"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "accepted: from before to"),
        ({"from": "2020-01-02T00:00:00Z"}, "at most 400 days"),
        ({"by": "namespace,colour"}, "by: 'colour'; accepted: each at most once of namespace, pod"),
        ({"by": "pod,pod"}, "by: 'pod,pod'; accepted: each at most once"),
        ({"rule": "fair"}, "rule: 'fair'; accepted: max, memory, cores"),
        ({"namespace": "x" * 64}, "namespace: 64 characters; accepted: at most 63"),
    ],
)
def test_a_wrong_parameter_is_named(query: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match="accepted") as refused:
        question(query, NOW)
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["cards: 3", "currency: euro", "cards: {x: -1}", "cards: {x: .nan}", "price: 1", "[", "cards: {x: free}"])
def test_a_wrong_price_list_is_refused(text: str) -> None:
    with pytest.raises(PricesError, match="accepted"):
        read(text)

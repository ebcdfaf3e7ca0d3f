"""The usage report: eight sections in every form, figures that add up, and nothing of a tenant's that becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest

from hami_cli import report_forms
from hami_cli.report import Form, written
from hami_cli.report_document import document
from hami_cli.report_facts import Report, report
from hami_cli.snapshot import Heard
from hami_protocol import keys
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage
from hami_protocol.pods import pod_ref
from tests.builders import a_pod
from tests.unit.command_line.clusters import CARD_MIB, a_gpu_node, a_held, a_holder, a_large_cluster, seen

SECTIONS = [
    "1. Executive summary",
    "2. Cluster and nodes",
    "3. Cards",
    "4. Namespaces",
    "5. Workloads",
    "6. Real against booked",
    "7. Capacity and scheduling",
    "8. Key findings and caveats",
]
VOID = {"meta", "rect"}


class Page(HTMLParser):
    """Which elements a page has, whether they are closed, and what it fetches."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def measured(pod_mib: int, used_mib: int, sm_percent: int) -> Report:
    pod = a_holder("p", "n1", a_held("GPU-a", pod_mib, 30))
    used = DeviceUsage(uuid="GPU-a", memory_used_mib=used_mib, memory_limit_mib=pod_mib, sm_percent=sm_percent)
    usage = NodeUsage(node="n1", containers=(ContainerUsage(pod=pod_ref(pod), container="main", devices=(used,)),))
    return report(seen([a_gpu_node("n1", "GPU-a")], [pod], Heard(usage=(usage,))))


@pytest.mark.parametrize("form", [Form.TEXT, Form.MARKDOWN, Form.HTML])
def test_every_form_has_the_eight_sections_in_order(form: Form) -> None:
    content = written(report(a_large_cluster(2, 5)), form)
    places = [content.index(title) for title in SECTIONS]
    assert places == sorted(places)


def test_programs_get_the_facts() -> None:
    found = report(a_large_cluster(2, 5))
    for decode, form in ((msgspec.json.decode, Form.JSON), (msgspec.yaml.decode, Form.YAML)):
        assert decode(written(found, form), type=Report) == found


def test_the_page_is_complete_and_asks_nobody_for_anything() -> None:
    page = Page(written(report(a_large_cluster(3, 20)), Form.HTML))
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.seen
    assert page.seen.count("svg") == 3


def test_nothing_that_a_tenant_writes_becomes_markup_or_steers_a_terminal() -> None:
    pod = a_holder("p", "n1", a_held("GPU-a", 1000), namespace="a|<script>alert(1)</script>\x1b[2J")
    found = report(seen([a_gpu_node("n1", "GPU-a")], [pod]))
    assert "<script" not in written(found, Form.HTML)
    for form in (Form.TEXT, Form.MARKDOWN, Form.HTML):
        assert "\x1b" not in written(found, form)
    row = next(line for line in written(found, Form.MARKDOWN).splitlines() if "alert" in line)
    assert "a\\|\\<script\\>" in row


def test_figures_add_up() -> None:
    found = report(a_large_cluster(4, 50))
    booked = sum(card.allocated_memory_mib for card in found.cards)
    assert found.totals.allocated_memory_mib == booked == sum(each.memory_mib for each in found.namespaces)
    assert booked == sum(node.allocated_memory_mib for node in found.nodes)
    assert sum(each.memory_percent for each in found.namespaces) == pytest.approx(100)
    assert found.fit.idle_cards + found.fit.full_cards + found.fit.fragmented_cards == found.totals.cards_usable


@pytest.mark.parametrize(
    ("booked", "idle", "full", "fragmented", "quarters"),
    [
        ([], 1, 0, 0, 4),
        ([a_held("GPU-a", CARD_MIB // 2, 10)], 0, 0, 1, 2),
        ([a_held("GPU-a", 100, 100)], 0, 1, 0, 0),
        ([a_held("GPU-a", CARD_MIB, 10)], 0, 1, 0, 0),
        ([a_held("GPU-a", 100, 80)], 0, 0, 1, 0),
    ],
)
def test_what_a_new_job_would_find(booked: list[object], idle: int, full: int, fragmented: int, quarters: int) -> None:
    pods = [a_holder(f"p{place}", "n1", share) for place, share in enumerate(booked)]  # type: ignore[arg-type]
    fit = report(seen([a_gpu_node("n1", "GPU-a")], pods)).fit
    assert (fit.idle_cards, fit.full_cards, fit.fragmented_cards, fit.quarter_shares) == (idle, full, fragmented, quarters)


def test_cards_that_take_no_new_pods_are_no_room() -> None:
    found = report(seen([a_gpu_node("n1", "GPU-a", annotations={keys.DEVICE_CORDON: "GPU-a"})], []))
    assert (found.fit.idle_cards, found.fit.largest_free_mib) == (0, 0)
    assert any("Cordoned: 1 card: GPU-a" in finding for finding in found.findings)


def test_who_holds_much_and_uses_little_and_who_uses_more_than_booked() -> None:
    assert [each.pod for each in measured(CARD_MIB, 100, 1).idle_holders] == ["p"]
    assert measured(CARD_MIB, CARD_MIB, 90).idle_holders == ()
    assert measured(1000, 10, 1).idle_holders == ()
    assert [each.pod for each in measured(1000, 1500, 50).over_users] == ["p"]


def test_what_nobody_measured_is_said_and_not_shown_as_zero() -> None:
    found = report(a_large_cluster(1, 2))
    assert found.card_use == ()
    assert "Nobody has measured" in report_forms.text(document(found))


def test_a_cluster_without_cards_has_a_report_too() -> None:
    found = report(seen([], [a_pod("waits", gpu=1)]))
    assert found.summary == "No node has registered a card."
    assert "default/waits" in written(found, Form.TEXT)
    Page(written(found, Form.HTML))

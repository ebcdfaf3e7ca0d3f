"""The summary of bookings: the same from a live cluster as from the metrics of its scheduler, under both of their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_cli.summary import text
from hami_cli.summary_facts import CardSum, Pattern, SummaryError, of_metrics, of_snapshot, pattern
from hami_scheduler import series
from hami_scheduler.inventory import Inventory
from hami_scheduler.placement import ClusterState
from hami_scheduler.pods import PodLedger
from tests.unit.command_line.clusters import CATALOG, a_gpu_node, a_held, a_holder, seen

NODES = [a_gpu_node("n1", "GPU-a", "GPU-b"), a_gpu_node("n2", "GPU-c")]
PODS = [
    a_holder("p1", "n1", a_held("GPU-a", 12000, 30), namespace="one"),
    a_holder("p2", "n1", a_held("GPU-a", 6000, 20), namespace="one"),
    a_holder("p3", "n2", a_held("GPU-c", 6000), namespace="two"),
]


def state() -> ClusterState:
    """What the scheduler's metrics are read from."""
    made = ClusterState(CATALOG)
    inventory, ledger = Inventory(made, CATALOG), PodLedger(made, CATALOG)
    for node in NODES:
        inventory.node_changed(node.metadata.name, node)
    for pod in PODS:
        ledger.changed(None, pod)
    return made


def page(*, old_names: bool) -> str:
    lines = "".join(series.pieces(state())).splitlines()
    return (
        "\n".join(line for line in lines if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("hami_") is not old_names)
        + "\n"
    )


@pytest.mark.parametrize("old_names", [False, True], ids=["our names", "earlier names"])
def test_a_metrics_page_says_the_same_as_the_live_cluster(old_names: bool) -> None:
    live, pasted = of_snapshot(seen(NODES, PODS)), of_metrics(page(old_names=old_names), source="page")
    for field in (
        "node_count",
        "card_count",
        "memory_mib",
        "allocated_memory_mib",
        "cores",
        "allocated_cores",
        "pattern",
        "namespaces",
        "pods",
    ):
        assert getattr(pasted, field) == getattr(live, field), field
    assert [(card.uuid, card.allocated_memory_mib, card.shares) for card in pasted.cards] == [
        (card.uuid, card.allocated_memory_mib, card.shares) for card in live.cards
    ]


def test_namespaces_and_pods_have_their_part_of_what_is_booked() -> None:
    found = of_snapshot(seen(NODES, PODS))
    assert [(each.namespace, each.memory_percent, each.cores_percent) for each in found.namespaces] == [("one", 75, 100), ("two", 25, 0)]
    assert "24000 of 73728 MiB booked (33 %)" in text(found)
    assert "nobody has measured" in text(found)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0, 0], Pattern.IDLE),
        ([0.9, 0.95, 0, 0], Pattern.CONCENTRATED),
        ([0.5, 0.55, 0.45], Pattern.EVEN),
        ([0.3, 0.05, 0.7, 0], Pattern.FRAGMENTED),
        ([], Pattern.IDLE),
    ],
)
def test_how_it_is_spread(ratios: list[float], expected: Pattern) -> None:
    cards = [
        CardSum(
            node="n", uuid=str(place), model="", memory_mib=100, allocated_memory_mib=100 * ratio, cores=100, allocated_cores=0, shares=1
        )
        for place, ratio in enumerate(ratios)
    ]
    assert pattern(cards) is expected


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>404</html>",
        "up 1\n",
        'hami_gpu_memory_limit_bytes{node="n",device_uuid="u"} NaN\n',
        'hami_gpu_memory_limit_bytes{node="n",device_uuid="u"} -5\n',
    ],
)
def test_what_says_nothing_of_cards_is_refused_and_not_summed_to_zero(page: str) -> None:
    with pytest.raises(SummaryError, match=r"accepted|no metrics page"):
        of_metrics(page, source="page")


def test_measured_use_on_the_page_is_noticed() -> None:
    content = page(old_names=False) + 'HostGPUMemoryUsage{nodeid="n1",deviceuuid="GPU-a"} 5\n'
    assert of_metrics(content, source="page").measured


@given(st.text(max_size=300))
def test_any_text_is_a_summary_or_the_one_error(content: str) -> None:
    with pytest.raises(SummaryError):
        of_metrics(content, source="page")

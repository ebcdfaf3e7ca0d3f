"""What is booked, as the command line counts it: as the scheduler does, from the same annotations."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_cli import checks
from hami_cli.report_facts import report
from hami_cli.snapshot import Heard
from hami_cli.summary_facts import of_snapshot
from hami_cli.top_rows import What, as_table, listing
from hami_protocol import keys
from hami_protocol.cordon import cordoned
from hami_protocol.events import ContainerUsage, DeviceUsage, NodeUsage, PodRefused
from hami_protocol.inventory import DeviceGroup, Inventory, InventoryNode
from hami_protocol.kubernetes import ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus
from hami_protocol.pods import pod_ref
from hami_scheduler.inventory import Inventory as SchedulerInventory
from hami_scheduler.placement import ClusterState
from hami_scheduler.pods import PodLedger
from tests.builders import a_container, a_pod
from tests.unit.command_line.clusters import CARD_MIB, CATALOG, TIME, a_gpu_node, a_held, a_holder, seen

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
shares = st.one_of(st.none(), st.builds(a_held, st.sampled_from(UUIDS), st.integers(1, 2000), st.integers(0, 10)))
ENDED = ContainerState(terminated=ContainerStateTerminated(exit_code=0))


@given(st.lists(st.tuples(shares, shares, st.booleans()), max_size=6))
def test_what_is_booked_is_what_the_scheduler_charges(holdings: list[tuple[object, object, bool]]) -> None:
    node = a_gpu_node("n1", *UUIDS)
    pods = []
    for number, (init, app, over) in enumerate(holdings):
        pod = a_pod(f"p{number}", a_container(), inits=[a_container("first")], node_name="n1")
        pod = a_holder(f"p{number}", "n1", init, app, pod=pod)  # type: ignore[arg-type]
        status = PodStatus(phase="Running", init_container_statuses=(ContainerStatus(name="first", state=ENDED if over else None),))
        pods.append(msgspec.structs.replace(pod, status=status))
    state = ClusterState(CATALOG)
    SchedulerInventory(state, CATALOG).node_changed("n1", node)
    ledger = PodLedger(state, CATALOG)
    for pod in pods:
        ledger.changed(None, pod)

    snapshot = seen([node], pods)
    charged = {held.device.uuid: (held.used_memory_mib, held.used_cores, held.used_shares) for held in state.devices("n1")}
    assert {card.uuid: (card.allocated_memory_mib, card.allocated_cores, card.allocated_shares) for card in snapshot.cards} == charged
    assert sum(charge.memory_mib for charge in snapshot.charges) == sum(memory for memory, _, _ in charged.values())


def test_an_init_container_that_is_over_holds_nothing_any_more() -> None:
    pod = a_pod("p", a_container(), inits=[a_container("first")], node_name="n1")
    pod = a_holder("p", "n1", a_held("GPU-a", 9000), a_held("GPU-a", 4000), pod=pod)
    before = seen([a_gpu_node("n1", "GPU-a")], [pod])
    over = PodStatus(phase="Running", init_container_statuses=(ContainerStatus(name="first", state=ENDED),))
    after = seen([a_gpu_node("n1", "GPU-a")], [msgspec.structs.replace(pod, status=over)])
    assert (before.cards[0].allocated_memory_mib, after.cards[0].allocated_memory_mib) == (9000, 4000)
    assert ([held.container for held in before.held], [held.memory_mib for held in after.held]) == (["first", "main"], [4000])
    assert (before.cards[0].containers, after.cards[0].containers) == (2, 1)


def test_pods_that_have_ended_hold_nothing() -> None:
    pod = msgspec.structs.replace(a_holder("p", "n1", a_held("GPU-a", 4000)), status=PodStatus(phase="Succeeded"))
    assert seen([a_gpu_node("n1", "GPU-a")], [pod]).cards[0].allocated_memory_mib == 0


def test_a_record_that_cannot_be_read_is_named_and_never_counts_as_zero_in_silence() -> None:
    torn = a_pod("torn", node_name="n1", annotations={"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,lots,0:;"})
    broken = a_gpu_node("n2", "GPU-b", annotations={keys.register("nvidia"): "GPU-b,10"})
    snapshot = seen([a_gpu_node("n1", "GPU-a"), broken], [torn])
    assert any("pod default/torn" in caveat for caveat in snapshot.caveats)
    assert any("node n2" in caveat for caveat in snapshot.caveats)


@pytest.mark.parametrize(
    ("share", "device", "kind"),
    [
        (a_held("GPU-a", 1000, 10), {}, "share"),
        (a_held("GPU-a", CARD_MIB, 100), {}, "whole card"),
        (a_held("GPU-a", CARD_MIB, 50), {}, "share"),
        (a_held("GPU-a", 1000, 10), {"mode": "mig"}, "mig"),
    ],
)
def test_each_holding_says_what_kind_it_is(share: object, device: dict[str, str], kind: str) -> None:
    assert seen([a_gpu_node("n1", "GPU-a", **device)], [a_holder("p", "n1", share)]).held[0].kind == kind  # type: ignore[arg-type]


def test_what_was_measured_stands_beside_what_is_booked_and_nothing_stands_where_nobody_measured() -> None:
    pod = a_holder("p", "n1", a_held("GPU-a", 4000, 30))
    used = DeviceUsage(uuid="GPU-a", memory_used_mib=1500, memory_limit_mib=4000, sm_percent=12)
    usage = NodeUsage(node="n1", containers=(ContainerUsage(pod=pod_ref(pod), container="main", devices=(used,), enforced=False),))
    snapshot = seen([a_gpu_node("n1", "GPU-a", "GPU-b")], [pod], Heard(usage=(usage,)))
    assert snapshot.measured
    assert [(card.used_memory_mib, card.used_sm_percent) for card in snapshot.cards] == [(1500, 12), (None, None)]
    assert (snapshot.held[0].used_memory_mib, snapshot.held[0].enforced) == (1500, False)
    assert not seen([a_gpu_node("n1", "GPU-a")], [pod]).measured


def test_a_container_whose_grant_cannot_be_read_is_unenforced_in_every_form() -> None:
    """The agent publishes it without devices: it does not know which the grant names."""
    pod = a_holder("p", "n1", a_held("GPU-a", 4000, 30))
    usage = NodeUsage(node="n1", containers=(ContainerUsage(pod=pod_ref(pod), container="main", devices=(), enforced=False),))
    snapshot = seen([a_gpu_node("n1", "GPU-a")], [pod], Heard(usage=(usage,)))
    assert "unenforced" in as_table(listing(snapshot, What.PODS))
    assert any("without being held to a limit: 1 container: default/p" in found for found in report(snapshot).findings)
    (check,) = checks.unenforced(snapshot)
    assert (check.outcome, "default/p (container main)" in check.detail) == (checks.Outcome.FAILED, True)


def test_the_doctor_does_not_vouch_for_limits_that_no_agent_has_looked_at() -> None:
    pod = a_holder("p", "n1", a_held("GPU-a", 4000, 30))
    (check,) = checks.unenforced(seen([a_gpu_node("n1", "GPU-a")], [pod]))
    assert check.outcome is checks.Outcome.UNKNOWN
    usage = NodeUsage(node="n1", containers=(ContainerUsage(pod=pod_ref(pod), container="main", devices=(), enforced=True),))
    (check,) = checks.unenforced(seen([a_gpu_node("n1", "GPU-a")], [pod], Heard(usage=(usage,))))
    assert check.outcome is checks.Outcome.OK


def test_a_card_says_what_keeps_new_pods_away() -> None:
    nodes = [
        a_gpu_node("n1", "GPU-a", "GPU-b", annotations={keys.DEVICE_CORDON: "GPU-b, "}),
        a_gpu_node("n2", "GPU-c", healthy=False),
        a_gpu_node("n3", "GPU-d"),
    ]
    group = DeviceGroup(device_type="nvidia", alive=False, since=TIME, devices=())
    away = Inventory(time=TIME, nodes=(InventoryNode(name="n3", device_groups=(group,)),))
    assert [card.status for card in seen(nodes, [], Heard(inventory=away)).cards] == ["ok", "cordoned", "unhealthy", "away"]


def test_a_pod_that_waits_has_the_schedulers_reason_and_one_that_asks_for_nothing_is_not_listed() -> None:
    waits, plain = a_pod("waits", gpu=1, mem=99999), a_pod("plain")
    refused = PodRefused(pod=pod_ref(waits), summary="0/1 nodes fit", node_count=1, reasons={})
    snapshot = seen([a_gpu_node("n1", "GPU-a")], [waits, plain], Heard(refusals={waits.metadata.uid: refused}))
    assert [(each.pod, each.reason) for each in snapshot.waiting] == [("waits", "0/1 nodes fit")]
    unreadable = seen([], [a_pod("bad", gpu=-1)]).waiting[0].reason
    assert "nvidia.com/gpu" in unreadable


def test_top_shows_nodes_cards_and_pods() -> None:
    snapshot = seen([a_gpu_node("n1", "GPU-a", "GPU-b")], [a_holder("p", "n1", a_held("GPU-a", 12288, 25)), a_pod("waits", gpu=1)])
    assert as_table(listing(snapshot, What.NODES)).splitlines()[1].split() == [
        "n1",
        "unknown",
        "2",
        "12288",
        "49152",
        "25",
        "%",
        "13",
        "%",
        "1",
    ]
    assert as_table(listing(snapshot, What.CARDS)).splitlines()[1].split()[-6:] == ["12288", "24576", "25/100", "1/10", "-", "-"]
    pods = as_table(listing(snapshot, What.PODS))
    assert pods.splitlines()[1].split() == ["default", "p", "main", "n1", "GPU-a", "share", "12288", "25", "-", "-", "success"]
    assert "not tried yet" in pods
    assert listing(snapshot, What.PODS, namespace="other").facts == ()


def test_a_cordon_annotation_is_read_as_the_scheduler_reads_it() -> None:
    assert cordoned(" GPU-a,,GPU-b,GPU-a ") == ("GPU-a", "GPU-b")


def test_a_card_that_its_node_no_longer_registers_is_shown_as_gone_and_all_totals_agree() -> None:
    node = a_gpu_node("n1", "GPU-new")
    snapshot = seen([node], [a_holder("p1", "n1", a_held("GPU-old", 4000, 30), namespace="one")])
    gone = next(card for card in snapshot.cards if card.uuid == "GPU-old")
    assert (gone.status, gone.memory_mib, gone.allocated_memory_mib) == ("gone", 0, 4000)
    assert "pod one/p1 holds card GPU-old, which node n1 no longer registers" in snapshot.caveats
    summary = of_snapshot(snapshot)
    assert summary.card_count == 1
    assert summary.allocated_memory_mib == sum(each.memory_mib for each in summary.namespaces) == 4000
    told = report(snapshot)
    assert (told.totals.cards, told.totals.allocated_memory_mib) == (1, 4000)
    (check,) = checks.orphans(snapshot)
    assert (check.outcome, "one/p1" in check.detail, "GPU-old of n1" in check.detail) == (checks.Outcome.FAILED, True, True)


def test_where_every_card_is_registered_the_check_is_well() -> None:
    (check,) = checks.orphans(seen([a_gpu_node("n1", "GPU-a")], [a_holder("p1", "n1", a_held("GPU-a", 4000))]))
    assert check.outcome is checks.Outcome.OK

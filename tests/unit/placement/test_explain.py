"""Why a pod would be where it would be: the same verdicts as filter's, with figures, node by node and card by card."""

from __future__ import annotations

from hypothesis import given

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest, Selectors
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_scheduler.placement import ClusterState, Placement
from tests.builders import a_device, a_ref, a_request
from tests.unit.placement.clusters import NODES, clusters, requests


def a_cluster() -> ClusterState:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_device("A"),)})
    state.upsert_node("n2", {"NVIDIA": (a_device("B"), a_device("C", index=1))})
    held = ContainerShares(container="c", kind=ContainerKind.APP, shares=(DeviceShare(uuid="A", type="NVIDIA", memory_mib=2000, cores=10),))
    state.charge(a_ref(), "n1", (VendorAssignment(vendor="NVIDIA", containers=(held,)),), shrunk=False)
    return state


def test_a_placed_pod_is_told_why_this_node() -> None:
    told = a_cluster().explain(a_request(memory_mib=1000))
    assert (told.node, told.summary) == ("n1", "2/2 nodes fit; n1 is the best under binpack")
    assert [(node.node, node.fits) for node in told.nodes] == [("n1", True), ("n2", True)]


def test_a_refused_pod_is_told_what_each_node_and_card_lacks() -> None:
    told = a_cluster().explain(a_request(count=2, cores=100), ["n1", "n2", "n9"])
    assert told.node == "n2"
    one, two, nine = told.nodes
    assert (one.reason, one.detail) == ("NodeInsufficientDevice", "container c0: asks 2 distinct cards, node has 1; would fit: 1 or fewer")
    assert one.unresolvable
    assert [(card.uuid, card.reason, card.free_memory_mib, card.free_cores, card.free_shares) for card in one.devices] == [
        ("A", "CardInsufficientMemory", 22576, 90, 9)
    ]
    assert two.fits
    assert [card.reason for card in two.devices] == ["", ""]
    assert nine.reason == "node unregistered"


def test_what_a_pod_holds_itself_counts_as_free() -> None:
    state = a_cluster()
    assert not state.explain(a_request(cores=100), ["n1"]).nodes[0].fits
    assert state.explain(a_request(cores=100), ["n1"], uid="uid-p1").nodes[0].fits


@given(clusters(pods=2), requests())
def test_an_explanation_says_what_filter_says(state: ClusterState, request: PodRequest) -> None:
    answer = state.judge(request, NODES, uid="u")
    told = state.explain(request, NODES)
    assert told.node == (answer.node if isinstance(answer, Placement) else "")
    said = {**answer.failed, **answer.unresolvable}
    for node in told.nodes:
        assert node.reason == said.get(node.node, "")
        assert node.fits == (node.node not in said)
        assert node.unresolvable == (node.node in answer.unresolvable)
        assert node.fits or node.detail


def test_a_refusal_in_a_fragmented_cluster_tells_how_much_is_free_in_all_on_cards_that_the_pod_accepts() -> None:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_device("A", memory_mib=10000), a_device("B", index=1, memory_mib=9000))})
    state.upsert_node("n2", {"NVIDIA": (a_device("C", memory_mib=8000), a_device("D", index=1, memory_mib=99000, healthy=False))})
    selectors = {"NVIDIA": Selectors(avoid_uuids=("A",))}
    told = state.explain(a_request(memory_mib=20000, selectors=selectors))
    assert told.summary.endswith("Free in all on cards that the pod accepts: 17000 MiB on 2 cards")


def test_the_most_free_cores_are_those_of_a_card_that_the_pod_accepts() -> None:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_device("A"), a_device("B", index=1))})
    held = ContainerShares(container="c", kind=ContainerKind.APP, shares=(DeviceShare(uuid="A", type="NVIDIA", memory_mib=1, cores=70),))
    state.charge(a_ref(), "n1", (VendorAssignment(vendor="NVIDIA", containers=(held,)),), shrunk=False)
    told = state.explain(a_request(memory_mib=1, cores=50, selectors={"NVIDIA": Selectors(use_uuids=("A",))}), ["n1"])
    assert "most free 30" in told.nodes[0].detail

"""Which node and which cards a pod gets, through the cluster state."""

from __future__ import annotations

import random

import pytest

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest, Selectors
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_scheduler.placement import ClusterState, Placement, Refusal
from hami_scheduler.placement.filter import priorities
from tests.builders import a_device, a_ref, a_request, a_share, example

INIT, APP = ContainerKind.INIT, ContainerKind.APP


def a_cluster(**nodes: int) -> ClusterState:
    """Nodes with so many cards of 24576 MiB."""
    state = ClusterState(Catalog())
    for name, cards in nodes.items():
        state.upsert_node(name, {"NVIDIA": tuple(a_device(f"{name}-{place}", index=place) for place in range(cards))})
    return state


def charge(state: ClusterState, node: str, uuid: str, memory_mib: int, cores: int) -> None:
    held = ContainerShares(container="c", kind=APP, shares=(DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=memory_mib, cores=cores),))
    state.charge(a_ref(f"on-{uuid}"), node, (VendorAssignment(vendor="NVIDIA", containers=(held,)),), shrunk=False)


def where(answer: Placement | Refusal) -> tuple[str, list[str]]:
    assert isinstance(answer, Placement)
    return answer.node, [share.uuid for container in answer.assignments[0].containers for share in container.shares]


def two_nodes() -> ClusterState:
    """The example's devices: d1 and d4 in use, a quarter and three quarters."""
    state = ClusterState(Catalog())
    for node, cards in {"node1": ("d1", "d2"), "node2": ("d3", "d4")}.items():
        state.upsert_node(node, {"NVIDIA": tuple(a_device(uuid, index=place, memory_mib=8000) for place, uuid in enumerate(cards))})
    charge(state, "node1", "d1", 2000, 25)
    charge(state, "node2", "d4", 6000, 75)
    return state


SMALL = a_share(1, memory_mib=1000, cores=20)


@pytest.mark.parametrize(
    ("node_policy", "device_policy", "containers", "result"),
    [
        example("filter 33", "binpack", "binpack", [SMALL], ("node2", ["d4"])),
        example("filter 34", "binpack", "spread", [SMALL], ("node2", ["d3"])),
        example("filter 35", "spread", "binpack", [SMALL], ("node1", ["d1"])),
        example("filter 36", "spread", "spread", [SMALL], ("node1", ["d2"])),
        example(
            "filter 37",
            "binpack",
            "binpack",
            [(INIT, a_share(1, memory_mib=5000)), (APP, a_share(1, memory_mib=4000))],
            ("node2", ["d3", "d3"]),
        ),
    ],
)
def test_policies_choose_node_and_card(node_policy: str, device_policy: str, containers: list, result: tuple[str, list[str]]) -> None:  # type: ignore[type-arg]
    request = a_request(*containers, node_policy=node_policy, device_policy=device_policy)
    assert where(two_nodes().judge(request, ["node1", "node2"], uid="u")) == result


@pytest.mark.example("filter")
def test_the_scores_of_the_two_nodes() -> None:
    answer = two_nodes().judge(a_request(SMALL), ["node2", "node1"], uid="u", ranked=True)
    assert isinstance(answer, Placement)
    assert answer.fitting == (("node2", 8.0), ("node1", 3.0))


def test_equal_nodes_part_by_name() -> None:
    state = a_cluster(nb=1, na=1, nc=1)
    assert where(state.judge(a_request(), ["nc", "nb", "na"], uid="u"))[0] == "na"


@pytest.mark.parametrize(("policy", "result"), [("binpack", {"a": 10, "b": 5, "c": 0}), ("spread", {"a": 0, "b": 5, "c": 10})])
def test_priorities_are_ten_for_the_best_and_none_for_the_worst(policy: str, result: dict[str, int]) -> None:
    assert priorities([("a", 20.0), ("b", 10.0), ("c", 0.0)], policy) == result
    assert priorities([("a", 3.0), ("b", 3.0)], policy) == {"a": 10, "b": 10}
    assert priorities([], policy) == {}


ROUNDS = 500
"""Of one test: 10,000 in all for each size of node, in pieces, so that a busy machine makes it slower and nothing else."""


@pytest.mark.parametrize(
    ("cards", "pods", "seed"),
    [
        *((1, 3, seed) for seed in range(20)),
        (8, 32, 0),
        *(pytest.param(8, 32, seed, marks=pytest.mark.simulation) for seed in range(1, 20)),
    ],
)
def test_b4_pods_that_come_at_the_same_moment_never_get_the_same_room(cards: int, pods: int, seed: int) -> None:
    state = a_cluster(n1=cards)
    request = a_request(memory_mib=12288)
    refs = [a_ref(f"p{number}") for number in range(pods)]
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        rng.shuffle(refs)
        placed = 0
        for pod in refs:
            answer = state.judge(request, ["n1"], uid=pod.uid)
            if isinstance(answer, Placement):
                state.reserve(pod, answer, now=0.0)
                placed += 1
        assert placed == 2 * cards
        assert all(device.used_memory_mib == device.device.memory_mib for device in state.devices("n1"))
        for pod in refs:
            state.release(pod.uid)
    assert all(device.used_memory_mib == 0 for device in state.devices("n1"))
    state.validate()


def test_reserving_and_releasing_restores_everything() -> None:
    state = two_nodes()
    before = {name: state.devices(name) for name in state.nodes()}
    answer = state.judge(a_request(SMALL), state.nodes(), uid="u")
    assert isinstance(answer, Placement)
    state.reserve(a_ref(), answer, now=0.0)
    assert {name: state.devices(name) for name in state.nodes()} != before
    state.release("uid-p1")
    assert {name: state.devices(name) for name in state.nodes()} == before


def test_a_fenced_node_takes_no_new_pods_until_its_record_is_repaired() -> None:
    state = a_cluster(n1=1, n2=1)
    state.fence("n1", "register", "device registration, at character 3: broken")
    answer = state.judge(a_request(), ["n1", "n2"], uid="u")
    assert where(answer)[0] == "n2"
    assert answer.failed == {"n1": "node has an unreadable record"}
    refused = state.judge(a_request(), ["n1"], uid="u")
    assert isinstance(refused, Refusal)
    assert "device registration, at character 3: broken" in refused.summary
    state.fence("n1", "pod", "another")
    state.unfence("n1", "register")
    assert isinstance(state.judge(a_request(), ["n1"], uid="u"), Refusal)
    state.unfence("n1", "pod")
    assert where(state.judge(a_request(), ["n1"], uid="u"))[0] == "n1"


def test_a_fence_stands_before_and_after_its_node() -> None:
    state = ClusterState(Catalog())
    state.fence("n1", "pod", "broken")
    state.upsert_node("n1", {"NVIDIA": (a_device(),)})
    assert isinstance(state.judge(a_request(), ["n1"], uid="u"), Refusal)
    state.remove_node("n1")
    state.upsert_node("n1", {"NVIDIA": (a_device(),)})
    assert state.judge(a_request(), ["n1"], uid="u").failed == {"n1": "node has an unreadable record"}


def test_a_node_that_registers_too_many_devices_is_fenced_until_it_does_not() -> None:
    state = a_cluster(n1=1)
    state.upsert_node("n1", {"NVIDIA": tuple(a_device(f"u{number}") for number in range(65))})
    refused = state.judge(a_request(), ["n1"], uid="u")
    assert isinstance(refused, Refusal)
    assert "registers 65 NVIDIA devices; accepted: at most 64" in refused.summary
    state.upsert_node("n1", {"NVIDIA": tuple(a_device(f"u{number}") for number in range(64))})
    assert isinstance(state.judge(a_request(count=64), ["n1"], uid="u"), Placement)


def test_c7_a_silent_node_takes_no_new_pods_and_keeps_its_charges() -> None:
    state = a_cluster(n1=1)
    charge(state, "n1", "n1-0", 8000, 0)
    state.set_available("n1", "NVIDIA", False)
    assert state.judge(a_request(memory_mib=1), ["n1"], uid="u").failed == {"n1": "node not reporting"}
    assert state.devices("n1")[0].used_memory_mib == 8000
    state.set_available("n1", "NVIDIA", True)
    assert where(state.judge(a_request(memory_mib=1), ["n1"], uid="u"))[0] == "n1"


def test_a_node_whose_agent_does_not_serve_takes_no_new_pods_and_says_why() -> None:
    state = ClusterState(Catalog())
    state.hold("n1", "NVIDIA", "its agent is about to stop")
    state.upsert_node("n1", {"NVIDIA": (a_device(),)})
    refused = state.judge(a_request(memory_mib=1), ["n1"], uid="u")
    assert isinstance(refused, Refusal)
    assert refused.failed == {"n1": "node agent not serving"}
    assert refused.summary.endswith("the node's NVIDIA agent does not serve pods now: its agent is about to stop")
    assert state.explain(a_request(memory_mib=1)).nodes[0].detail.endswith("its agent is about to stop")
    state.hold("n1", "NVIDIA", "")
    assert where(state.judge(a_request(memory_mib=1), ["n1"], uid="u"))[0] == "n1"


@pytest.mark.parametrize(("allocatable", "placed"), [(0, 0), (1, 1), (3, 3), (20, 20), (None, 20)])
def test_pods_hold_no_more_devices_than_kubelet_has_allocatable(allocatable: int | None, placed: int) -> None:
    state = a_cluster(n1=2)  # of 10 shares each
    state.set_allocatable("n1", "NVIDIA", allocatable)
    found = 0
    while isinstance(placement := state.judge(a_request(memory_mib=1, cores=0), ["n1"], uid=f"u{found}"), Placement):
        state.reserve(a_ref(f"p{found}", uid=f"u{found}"), placement, now=0.0)
        found += 1
    assert found == placed
    if allocatable is not None and allocatable < 20:
        assert placement.failed == {"n1": "NodeInsufficientAllocatable"}
        assert f"too few NVIDIA devices allocatable: {allocatable}, of which {placed} are taken" in placement.summary


def test_a_pod_that_asks_for_more_devices_than_are_left_waits_and_shares_on_sick_cards_are_not_counted() -> None:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_device("sick", healthy=False), a_device("well"))})
    charge(state, "n1", "sick", 100, 0)
    state.set_allocatable("n1", "NVIDIA", 1)
    assert isinstance(state.judge(a_request(memory_mib=1), ["n1"], uid="u"), Placement)
    state = a_cluster(n1=2)
    state.set_allocatable("n1", "NVIDIA", 1)
    assert state.judge(a_request(count=2, memory_mib=1), ["n1"], uid="u").failed == {"n1": "NodeInsufficientAllocatable"}


def test_where_no_release_helps_is_said_apart() -> None:
    state = a_cluster(few=1, full=2)
    state.upsert_node("typed", {"NVIDIA": (a_device("t0", type="NVIDIA A100"), a_device("t1", type="NVIDIA A100"))})
    state.upsert_node("bare", {})
    charge(state, "full", "full-0", 24576, 100)
    request = a_request(count=2, memory_mib=1, selectors={"NVIDIA": Selectors(use_types=("A10",))})
    answer = state.judge(request, ["few", "full", "typed", "bare", "nowhere"], uid="u")
    assert isinstance(answer, Refusal)
    assert answer.failed == {"full": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardComputeUnitsExhausted"} or answer.failed == {
        "full": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    }
    assert answer.unresolvable == {
        "few": "NodeInsufficientDevice",
        "typed": "2/2 CardTypeMismatch",
        "bare": "node unregistered",
        "nowhere": "node unregistered",
    }
    assert answer.reasons["node unregistered"] == 2


def test_a_refusal_says_what_comes_nearest() -> None:
    state = a_cluster(n1=1, n2=1, n3=1, n4=1)
    for node, memory in {"n1": 20000, "n2": 2000, "n3": 9000, "n4": 24576}.items():
        charge(state, node, f"{node}-0", memory, 0)
    answer = state.judge(a_request(cores=100), ["n1", "n2", "n3", "n4"], uid="u")
    assert isinstance(answer, Refusal)
    assert [shortfall.node for shortfall in answer.nearest] == ["n2", "n3", "n1"]
    assert answer.nearest[0].reason == "1/1 CardInsufficientMemory"
    assert answer.summary == (
        "0/4 nodes fit: 4 1/1 CardInsufficientMemory. Nearest is n2: "
        "container c0: needs 24576 MiB on one card, largest free 22576; would fit: 22576 MiB or less"
    )


def test_reasons_do_not_change_while_figures_do() -> None:
    state = a_cluster(n1=1)
    charge(state, "n1", "n1-0", 10000, 0)
    first = state.judge(a_request(), ["n1"], uid="u")
    charge(state, "n1", "n1-0", 10001, 0)
    assert state.judge(a_request(), ["n1"], uid="u").failed == first.failed


def test_b2_a_thousand_unsatisfiable_pods_between_others_keep_nobody_waiting() -> None:
    state = a_cluster(n1=2, n2=2)
    hopeless = [a_request(count=4), a_request(memory_mib=245760)]
    for number in range(1000):
        assert isinstance(state.judge(hopeless[number % 2], ["n1", "n2"], uid=f"h{number}"), Refusal)
        assert isinstance(state.judge(a_request(memory_mib=1), ["n1", "n2"], uid=f"s{number}"), Placement)


def test_no_candidates_and_no_request() -> None:
    state = a_cluster(n1=1)
    refused = state.judge(a_request(), [], uid="u")
    assert isinstance(refused, Refusal)
    assert (refused.failed, refused.unresolvable, refused.nearest) == ({}, {}, ())
    with pytest.raises(ValueError, match="asks for no device"):
        state.judge(PodRequest(containers=()), ["n1"], uid="u")
    assert isinstance(ClusterState(Catalog()).judge(a_request(), ["n1"], uid="u"), Refusal)


def test_a_candidate_list_is_known_again_in_another_order_and_forgotten_when_nodes_change() -> None:
    state = a_cluster(n1=1, n2=1)
    assert where(state.judge(a_request(), ["n1", "n2"], uid="u"))[0] == "n1"
    assert where(state.judge(a_request(), ["n2", "n1"], uid="u"))[0] == "n1"
    state.remove_node("n1")
    assert where(state.judge(a_request(), ["n2", "n1"], uid="u"))[0] == "n2"
    state.upsert_node("n0", {"NVIDIA": (a_device("n0-0"),)})
    assert where(state.judge(a_request(), ["n2", "n0"], uid="u"))[0] == "n0"


def test_b23_links_choose_the_cards_of_a_pod_with_several_containers_too() -> None:
    state = ClusterState(Catalog())
    cards = (a_device("a", index=0, memory_mib=20), a_device("b", index=1, memory_mib=10), a_device("c", index=2, memory_mib=10))
    request = a_request(a_share(2, memory_mib=5), a_share(1, memory_mib=16), device_policy="topology-aware")
    state.upsert_node("n1", {"NVIDIA": cards})
    assert isinstance(state.judge(request, ["n1"], uid="u"), Refusal)
    state.upsert_node("n1", {"NVIDIA": cards}, pair_scores={"b": {"c": 100}, "c": {"b": 100}})
    answer = state.judge(request, ["n1"], uid="u")
    assert sorted(where(answer)[1]) == ["a", "b", "c"]


def test_a_vendor_that_the_catalog_does_not_have_is_an_error_of_the_caller() -> None:
    with pytest.raises(KeyError):
        ClusterState(Catalog()).upsert_node("n1", {"NOBODY": (a_device(),)})


@pytest.mark.parametrize("node_policy", ["binpack", "spread"])
@pytest.mark.parametrize("better", ["n1", "n2"])
def test_of_two_equal_nodes_the_one_with_the_better_links_takes_a_pod_that_asks_for_linked_cards(node_policy: str, better: str) -> None:
    state = ClusterState(Catalog())
    for node in ("n1", "n2"):
        score = 100 if node == better else 10
        one, other = f"GPU-{node}-a", f"GPU-{node}-b"
        links = {one: {other: score}, other: {one: score}}
        state.upsert_node(node, {"NVIDIA": (a_device(one), a_device(other, index=1))}, pair_scores=links)
    for request in (
        a_request(count=2, memory_mib=1000, device_policy="topology-aware", node_policy=node_policy),
        a_request(a_share(memory_mib=1), a_share(2, memory_mib=1000), device_policy="topology-aware", node_policy=node_policy),
    ):
        found = state.judge(request, ["n1", "n2"], uid="u", ranked=True)
        assert isinstance(found, Placement)
        assert (found.node, found.fitting[0][0]) == (better, better)


@pytest.mark.departs("topology-aware with numa-bind and no scores takes the first NUMA node in the order of trying, the reference the last")
def test_without_scores_linked_cards_of_one_numa_node_are_those_that_are_tried_first() -> None:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": tuple(a_device(f"GPU-{place}", index=place, numa=place // 2) for place in range(4))})
    selectors = {"NVIDIA": Selectors(numa_bind=True)}
    found = state.judge(a_request(count=2, memory_mib=1, device_policy="topology-aware", selectors=selectors), ["n1"], uid="u")
    assert isinstance(found, Placement)
    assert sorted(share.uuid for share in found.assignments[0].containers[0].shares) == ["GPU-2", "GPU-3"]

"""Where pods would go, on a copy of the state."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.quota import QuotaLimits
from hami_protocol import keys, registration
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_protocol.simulation import NodeProfile, ProfileDevice, Simulation, SimulationQuestion
from hami_scheduler.placement import ClusterState, Placement
from hami_scheduler.simulating import Simulating, SimulationError
from tests.builders import a_container, a_device, a_node, a_pod, a_ref, a_request
from tests.unit.placement.clusters import NODES, clusters, requests

V100 = NodeProfile(name="v100", device=ProfileDevice(memory_mib=32768, model="Tesla V100"), count=2)


def a_state() -> ClusterState:
    state = ClusterState(Catalog())
    state.upsert_node("n1", {"NVIDIA": (a_device("GPU-A", memory_mib=1000),)})
    return state


def simulated(state: ClusterState, *pods: Any, quotas: QuotaLimits | None = None, **question: Any) -> Simulation:
    catalog = Catalog()
    course = Simulating(SimulationQuestion(pods=pods, **question), state.copy(), catalog, quotas or QuotaLimits(catalog.vendors))
    while not course.over:
        course.step()
    return course.result()


def test_pods_come_one_after_the_other_and_the_state_is_as_before() -> None:
    state = a_state()
    found = simulated(state, a_pod("p", a_container(gpu=1, mem=600)), copies=2)
    assert [pod.node for pod in found.pods] == ["n1", ""]
    assert found.placed_count == 1
    assert found.pods[1].reasons == {"1/1 CardInsufficientMemory": 1}
    assert "largest free 400" in found.pods[1].summary
    state.validate()
    assert isinstance(state.judge(a_request(memory_mib=1000), ["n1"], uid="u"), Placement)


def test_nodes_are_added_from_profiles_and_as_objects() -> None:
    big = a_pod("big", a_container(gpu=2, mem=30000))
    found = simulated(a_state(), big, copies=3, profiles=(V100,), nodes=(with_cards("n9", 40000, 40000),))
    assert sorted(pod.node for pod in found.pods) == ["", "n9", "v100-0"]
    assert found.node_count == 3
    assert len(found.pods[0].assignments[0].containers[0].shares) == 2


def test_the_clusters_own_nodes_can_be_left_out_or_replaced() -> None:
    small = a_pod("small", a_container(gpu=1, mem=600))
    assert simulated(a_state(), small, only_added=True, profiles=(V100,)).pods[0].node == "v100-0"
    assert simulated(a_state(), small, only_added=True).pods[0].node == ""
    assert simulated(a_state(), a_pod("big", a_container(gpu=1, mem=9000)), nodes=(with_cards("n1", 9000),)).pods[0].node == "n1"


def with_cards(name: str, *sizes_mib: int) -> Any:
    cards = [a_device(f"{name}-{place}", memory_mib=size, index=place) for place, size in enumerate(sizes_mib)]
    return a_node(name, annotations={keys.register("nvidia"): registration.encode_text(cards)})


def test_quotas_count_the_pods_before() -> None:
    quotas = QuotaLimits(Catalog().vendors)
    hard: dict[str, Any] = {"limits.nvidia.com/gpumem": "700"}
    quotas.changed(None, ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard)))
    found = simulated(a_state(), a_pod("p", a_container(gpu=1, mem=400)), copies=2, quotas=quotas)
    assert [pod.node for pod in found.pods] == ["n1", ""]
    assert "asks 400 MiB, 400 MiB of 700 MiB are used" in found.pods[1].summary


def test_what_cannot_be_read_is_said_of_that_pod_alone() -> None:
    pods = (a_pod("bad", a_container(gpu=1, mem="-1")), a_pod("none"), a_pod("good", a_container(gpu=1, mem=1)))
    found = simulated(a_state(), *pods)
    assert [pod.node for pod in found.pods] == ["", "", "n1"]
    assert "spec.containers[0].resources.limits[nvidia.com/gpumem]" in found.pods[0].summary
    assert found.pods[1].summary == "it asks for no device"


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (
            {"profiles": (NodeProfile(name="x", vendor="abacus", device=V100.device),)},
            r"profiles\[0\].vendor: 'abacus'; accepted: .*nvidia",
        ),
        ({"nodes": (a_node(""),)}, r"nodes\[0\].metadata.name: missing"),
        (
            {"nodes": (a_node("n2", annotations={"hami.io/node-nvidia-register": "x"}),)},
            r"nodes\[0\]: nvidia registration: device registration",
        ),
        ({"copies": 501}, "pods: 1002 with their copies; accepted: at most 1000"),
        ({"profiles": (NodeProfile(name="x", nodes=600, device=V100.device),) * 2}, "1200 nodes; accepted: at most 1000"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_its_field(question: dict[str, Any], error: str) -> None:
    with pytest.raises(SimulationError, match=error):
        simulated(a_state(), a_pod("a"), a_pod("b"), **question)


@settings(max_examples=30)
@given(clusters(), requests(), st.sampled_from(NODES))
def test_what_happens_on_a_copy_is_not_seen_on_the_original(state: ClusterState, request: Any, node: str) -> None:
    before = {name: state.devices(name) for name in state.nodes()}
    copy = state.copy()
    copy.validate()
    found = copy.judge(request, NODES, uid="uid-new")
    assert found == state.judge(request, NODES, uid="uid-new")
    if isinstance(found, Placement):
        copy.reserve(a_ref("new"), found, now=0.0)
    for entry in list(copy.entries())[:1]:
        copy.release(entry.pod.uid)
    copy.remove_node(node)
    copy.upsert_node("another", {"NVIDIA": (a_device("GPU-new"),)})
    copy.fence("another", "annotation", "cannot be read")
    copy.set_available("another", "NVIDIA", False)
    copy.validate()
    state.validate()
    assert {name: state.devices(name) for name in state.nodes()} == before
    assert state.fences("another") == {}

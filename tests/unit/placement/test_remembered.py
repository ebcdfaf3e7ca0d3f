"""What is remembered of a request says the same as judging everything anew, whatever has changed since, and is never somebody else's."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.model import ContainerRequest, DeviceRequest, PodRequest
from hami_protocol.devices import ContainerKind, RegisteredDevice
from hami_scheduler.placement import ClusterState, Placement
from hami_scheduler.placement.remembered import MOST_REQUESTS
from tests.builders import a_ref
from tests.unit.placement.clusters import OTHER, devices, pair_scores, requests

MANY = tuple(f"n{number}" for number in range(1, 9))


def answer(state: ClusterState, request: PodRequest, candidates: tuple[str, ...]) -> object:
    """All that a caller is told."""
    found = state.judge(request, candidates, uid="asking", ranked=True)
    return found if isinstance(found, Placement) else (found, found.figures)


@st.composite
def changes(draw: st.DrawFn, state: ClusterState) -> None:
    """One thing that happens to some node."""
    node = draw(st.sampled_from((*MANY, "later-1", "later-2")))
    match draw(st.sampled_from(["register", "remove", "place", "release", "fence", "unfence", "hold", "count", "silent", "back"])):
        case "register":
            has = {vendor: draw(devices(node, vendor)) for vendor in draw(st.sampled_from([("NVIDIA",), ("OTHER",), ("NVIDIA", "OTHER")]))}
            state.upsert_node(node, has, pair_scores=draw(pair_scores([each.uuid for listed in has.values() for each in listed])))
        case "remove":
            state.remove_node(node)
        case "place":
            uid = f"uid-{draw(st.integers(0, 5))}"
            if isinstance(found := state.judge(draw(requests()), (node,), uid=uid), Placement):
                state.reserve(a_ref(uid, uid=uid), found, now=0.0)
        case "release":
            state.release(f"uid-{draw(st.integers(0, 5))}")
        case "fence":
            vendor = draw(st.sampled_from(["", "NVIDIA", "OTHER"]))
            state.fence(node, f"annotation {vendor}", "cannot be read", vendor=vendor)
        case "unfence":
            state.unfence(node, f"annotation {draw(st.sampled_from(['', 'NVIDIA', 'OTHER']))}")
        case "hold":
            state.hold(node, draw(st.sampled_from(["NVIDIA", "OTHER"])), draw(st.sampled_from(["", "its agent is about to stop"])))
        case "count":
            state.set_allocatable(node, draw(st.sampled_from(["NVIDIA", "OTHER"])), draw(st.sampled_from([None, 0, 1, 2, 3, 20])))
        case said:
            state.set_available(node, draw(st.sampled_from(["NVIDIA", "OTHER"])), said == "back")


@given(st.data(), requests(), requests())
def test_whatever_changes_the_answer_is_that_of_a_state_that_remembers_nothing(
    data: st.DataObject, one: PodRequest, other: PodRequest
) -> None:
    state = ClusterState(Catalog(more=(OTHER,)))
    for node in MANY:
        state.upsert_node(node, {"NVIDIA": data.draw(devices(node, "NVIDIA"))})
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, 6))):
            data.draw(changes(state))
        asked = data.draw(st.sampled_from([MANY, MANY[:5], MANY[:2], (*MANY, "later-1", "never-seen")]))
        for request in (one, other):
            assert answer(state, request, asked) == answer(state.copy(), request, asked)
        state.validate()


def a_share(container: str) -> PodRequest:
    """A pod whose only container, of that name, asks for one share."""
    asked = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1000)
    return PodRequest(containers=(ContainerRequest(name=container, kind=ContainerKind.APP, requests=(asked,)),))


def a_state(nodes: int) -> ClusterState:
    """Nodes with one card each."""
    state = ClusterState(Catalog())
    for number in range(nodes):
        card = RegisteredDevice(
            uuid=f"GPU-{number}", index=0, shares=10, memory_mib=4000, cores=100, type="NVIDIA A10", numa=0, healthy=True
        )
        state.upsert_node(f"n{number:02}", {"NVIDIA": (card,)})
    return state


def test_a_pod_of_the_same_request_gets_the_names_of_its_own_containers() -> None:
    state = a_state(9)
    names = state.nodes()
    for container in ("main", "worker", "main"):
        found = state.judge(a_share(container), names, uid=container)
        assert isinstance(found, Placement)
        assert [each.container for each in found.assignments[0].containers] == [container]
        state.reserve(a_ref(container, uid=container), found, now=0.0)


def test_no_more_requests_are_remembered_than_there_is_room_for() -> None:
    state = a_state(3)
    for mib in range(1, 2 * MOST_REQUESTS):
        asked = dataclasses.replace(a_share("main").containers[0].requests[0], memory_mib=mib)
        request = PodRequest(containers=(ContainerRequest(name="main", kind=ContainerKind.APP, requests=(asked,)),))
        assert isinstance(state.judge(request, state.nodes(), uid="asking"), Placement)
    assert state.remembered.count == MOST_REQUESTS

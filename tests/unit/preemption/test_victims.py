"""Whom to evict on one node (HAMi#1494)."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.model import PodRequest
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_scheduler.placement import ClusterState, Phase, Placement
from hami_scheduler.placement.preemption import MOST_SETS, Preemption, Victim, on_node, within
from tests.builders import a_device, a_ref, a_request

WHOLE = a_request(memory_percent=100)


class Node:
    """A node with cards of 1000 MiB, and pods on them."""

    def __init__(self, *cards: str) -> None:
        self.state = ClusterState(Catalog())
        devices = tuple(a_device(card, memory_mib=1000, index=place) for place, card in enumerate(cards))
        self.state.upsert_node("n1", {"NVIDIA": devices})
        self.victims: list[Victim] = []

    def pod(self, name: str, priority: int = 0, *, budgets: tuple[str, ...] = (), **held_mib: int) -> None:
        shares = tuple(DeviceShare(uuid=card, type="NVIDIA", memory_mib=mib, cores=0) for card, mib in held_mib.items())
        held = ContainerShares(container="main", kind=ContainerKind.APP, shares=shares)
        self.state.charge(a_ref(name), "n1", (VendorAssignment(vendor="NVIDIA", containers=(held,)),), shrunk=False)
        self.victims.append(Victim(pod=a_ref(name), priority=priority, budgets=budgets))

    def preemption(self, request: PodRequest = WHOLE, *, leaving: tuple[str, ...] = (), **budgets: int) -> Preemption | None:
        able = [victim for victim in self.victims if victim.pod.name not in leaving]
        found = on_node(self.state, request, "n1", able, uid="uid-new", leaving=[f"uid-{name}" for name in leaving], budgets=budgets)
        self.state.validate()
        return found

    def evicted(self, request: PodRequest = WHOLE, *, leaving: tuple[str, ...] = (), **budgets: int) -> list[str] | None:
        found = self.preemption(request, leaving=leaving, **budgets)
        return None if found is None else sorted(victim.pod.name for victim in found.victims)


def test_the_smallest_set_that_makes_one_card_free_is_on_one_card() -> None:
    node = Node("A", "B")
    node.pod("a1", A=300)
    node.pod("a2", A=300)
    node.pod("a3", A=300)
    node.pod("b1", B=400)
    node.pod("b2", B=400)
    assert node.evicted() == ["b1", "b2"]


def test_one_who_holds_both_cards_frees_both() -> None:
    node = Node("A", "B")
    node.pod("both", A=300, B=300)
    node.pod("a", A=300)
    node.pod("b", B=300)
    assert node.evicted(a_request(count=2, memory_mib=500)) == ["both"]


def test_nobody_of_a_higher_priority_goes_where_lower_ones_will_do() -> None:
    node = Node("A", "B")
    node.pod("important", 500, A=1000)
    node.pod("b1", 1, B=500)
    node.pod("b2", 1, B=500)
    assert node.evicted() == ["b1", "b2"]


def test_of_equal_sets_the_one_of_lower_priorities_goes() -> None:
    node = Node("A")
    node.pod("p5", 5, A=500)
    node.pod("p3", 3, A=250)
    node.pod("p4", 4, A=250)
    node.pod("p1", 1, A=0)
    assert node.evicted(a_request(memory_mib=250)) == ["p3"]


def test_nobody_goes_where_it_fits_without_or_when_those_who_leave_anyway_have_left() -> None:
    node = Node("A")
    node.pod("p1", A=600)
    assert node.evicted(a_request(memory_mib=400)) == []
    assert node.evicted(leaving=("p1",)) == []


def test_no_eviction_helps_where_the_card_is_too_small_or_others_hold_it() -> None:
    node = Node("A")
    node.pod("p1", A=600)
    assert node.evicted(a_request(memory_mib=2000)) is None
    held = node.victims.pop()
    assert held.pod.name == "p1"
    assert node.evicted() is None


def test_budgets_are_not_overdrawn() -> None:
    node = Node("A", "B")
    node.pod("a1", A=500, budgets=("web",))
    node.pod("a2", A=500, budgets=("web",))
    node.pod("b1", B=400)
    node.pod("b2", B=300)
    node.pod("b3", B=300)
    assert node.evicted(web=2) == ["a1", "a2"]
    assert node.evicted(web=1) == ["b1", "b2", "b3"]
    assert node.evicted() == ["b1", "b2", "b3"]


def test_what_the_pod_would_get_is_what_the_victims_leave() -> None:
    node = Node("A", "B")
    node.pod("a", 9, A=1000)
    node.pod("b", 1, B=1000)
    found = node.preemption()
    assert found is not None
    assert [charge.uuid for charge in found.placement.charges] == ["B"]


@pytest.mark.parametrize("cards", [4])
def test_where_sets_are_too_many_to_try_everybody_goes_but_those_who_need_not(cards: int) -> None:
    node = Node(*(f"GPU{place}" for place in range(cards)))
    for place, share in itertools.product(range(cards), range(8)):
        node.pod(f"p{place}-{share}", share, **{f"GPU{place}": 120})
    found = node.preemption()
    assert found is not None
    assert len(list(itertools.combinations(node.victims, 2))) > MOST_SETS
    assert len(found.victims) == 8
    assert len({victim.pod.name[:2] for victim in found.victims}) == 1


AMOUNTS = st.dictionaries(st.sampled_from(["A", "B", "C"]), st.sampled_from([100, 300, 500, 1000]), min_size=1, max_size=2)
PODS = st.lists(st.tuples(st.integers(0, 2), AMOUNTS, st.sampled_from([(), (), ("web",), ("db",)])), max_size=6)


@settings(max_examples=60)
@given(PODS, st.sampled_from([500, 1000]), st.integers(1, 2), st.integers(0, 2))
def test_no_smaller_set_of_no_higher_priority_would_do(
    pods: list[tuple[int, dict[str, int], tuple[str, ...]]], memory_mib: int, count: int, web: int
) -> None:
    node = Node("A", "B", "C")
    for place, (priority, held, budgets) in enumerate(pods):
        node.pod(f"p{place}", priority, budgets=budgets, **held)
    request = a_request(count=count, memory_mib=memory_mib)
    found = node.preemption(request, web=web, db=1)
    allowed = {"web": web, "db": 1}

    def fits(chosen: tuple[Victim, ...]) -> bool:
        with node.state.without(*(victim.pod.uid for victim in chosen)):
            return isinstance(node.state.judge(request, ["n1"], uid="uid-new"), Placement)

    able = [
        (max((victim.priority for victim in chosen), default=0), size, sum(victim.priority for victim in chosen))
        for size in range(len(node.victims) + 1)
        for chosen in itertools.combinations(node.victims, size)
        if within(chosen, allowed) and fits(chosen)
    ]
    if found is None:
        assert not able
    else:
        assert within(found.victims, allowed)
        assert fits(found.victims)
        assert found.harm[:3] == min(able)


def test_a_nomination_keeps_what_becomes_free_for_its_pod_alone() -> None:
    node = Node("A")
    node.pod("p1", A=1000)
    found = node.preemption()
    assert found is not None
    node.state.nominate(a_ref("new"), found.placement, lapses_at=90.0)
    node.state.release("uid-p1")
    node.state.validate()
    assert not isinstance(node.state.judge(a_request(memory_mib=1), ["n1"], uid="uid-other"), Placement)
    mine = node.state.judge(WHOLE, ["n1"], uid="uid-new")
    assert isinstance(mine, Placement)
    assert node.state.expired(89.0) == []
    assert node.state.expired(90.0) == ["uid-new"]
    entry = node.state.reserve(a_ref("new"), mine, now=0.0)
    assert entry.phase is Phase.RESERVED
    node.state.validate()

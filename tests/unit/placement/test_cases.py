"""Cases that went wrong elsewhere, on the whole verdict: NUMA beside load (B16), capacity that shrinks below what is held (D4)."""

from __future__ import annotations

import pytest

from hami_devices.catalog import Catalog
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_scheduler.placement import ClusterState, Placement, Refusal
from tests.builders import a_device, a_ref, a_request, a_share

MEMORY_MIB = 10_000


def holding(*shares: tuple[str, int]) -> tuple[VendorAssignment, ...]:
    """What a pod with one container holds: card and MiB of each share."""
    held = tuple(DeviceShare(uuid=uuid, type="NVIDIA", memory_mib=mib, cores=0) for uuid, mib in shares)
    container = ContainerShares(container="main", kind=ContainerKind.APP, shares=held)
    return (VendorAssignment(vendor="NVIDIA", containers=(container,)),)


def cards_of(found: Placement | Refusal) -> list[str]:
    assert isinstance(found, Placement)
    return sorted(share.uuid for share in found.assignments[0].containers[0].shares)


@pytest.mark.parametrize(
    ("policy", "count", "chosen"),
    [
        ("spread", 1, ["n1-1"]),
        ("spread", 2, ["n1-3", "n1-1"]),
        ("binpack", 1, ["n0-9"]),
        ("numa,binpack", 1, ["n1-3"]),
    ],
)
def test_b16_load_decides_and_numa_only_where_it_is_asked_for(policy: str, count: int, chosen: list[str]) -> None:
    """Cards named by their NUMA node and the tenths of them that are taken."""
    state = ClusterState(Catalog())
    used = {"n0-9": 9, "n0-7": 7, "n1-3": 3, "n1-1": 1}
    cards = [a_device(uuid, index=place, memory_mib=MEMORY_MIB, numa=int(uuid[1])) for place, uuid in enumerate(used)]
    state.upsert_node("n1", {"NVIDIA": cards})
    for uuid, tenths in used.items():
        state.charge(a_ref(uuid), "n1", holding((uuid, tenths * MEMORY_MIB // 10)), shrunk=False)
    request = a_request(a_share(count, memory_mib=500), device_policy=policy)
    assert cards_of(state.judge(request, ["n1"], uid="u")) == sorted(chosen)


def test_d4_capacity_that_shrinks_below_what_is_held_is_never_negative_and_given_to_nobody() -> None:
    state = ClusterState(Catalog())
    eight = [a_device(f"GPU-{place}", index=place, memory_mib=MEMORY_MIB) for place in range(8)]
    state.upsert_node("n1", {"NVIDIA": eight})
    state.charge(a_ref("holder"), "n1", holding(*((card.uuid, MEMORY_MIB) for card in eight)), shrunk=False)
    state.upsert_node("n1", {"NVIDIA": eight[:6]})
    assert [card.device.memory_mib - card.used_memory_mib for card in state.devices("n1")] == [0] * 6
    assert isinstance(state.judge(a_request(a_share(6, memory_percent=100)), ["n1"], uid="u"), Refusal)
    state.validate()
    state.release("uid-holder")
    refused = state.judge(a_request(a_share(8, memory_percent=100)), ["n1"], uid="u")
    assert isinstance(refused, Refusal)
    assert "8" in refused.summary
    assert len(cards_of(state.judge(a_request(a_share(6, memory_percent=100)), ["n1"], uid="u"))) == 6
    state.validate()


def test_d4_a_card_that_is_back_has_what_was_held_on_it() -> None:
    state = ClusterState(Catalog())
    two = [a_device(f"GPU-{place}", index=place, memory_mib=MEMORY_MIB) for place in range(2)]
    state.upsert_node("n1", {"NVIDIA": two})
    state.charge(a_ref("holder"), "n1", holding((two[1].uuid, 6000)), shrunk=False)
    state.upsert_node("n1", {"NVIDIA": two[:1]})
    state.upsert_node("n1", {"NVIDIA": two})
    assert [card.used_memory_mib for card in state.devices("n1")] == [0, 6000]
    state.validate()

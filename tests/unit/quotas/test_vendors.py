"""Quotas of every vendor, by its own resource names and in its own units."""

from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig
from hami_devices.model import PodRequest
from hami_devices.quota import QuotaLimits
from hami_devices.vendor import Vendor
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_scheduler.placement import ClusterState, Placement
from tests.builders import a_device, a_ref, a_request

VENDORS = Catalog().vendors


def a_quota(**hard: Any) -> ResourceQuota:
    return ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard))


def limits(**hard: Any) -> QuotaLimits:
    found = QuotaLimits(VENDORS)
    found.changed(None, a_quota(**hard))
    return found


def exceeded(book: QuotaLimits, vendor: str, *, shares: int = 1, memory_mib: int = 0, cores: int = 0) -> bool:
    allowance = book.allowance("default", {})
    return allowance is not None and allowance.exceeded({vendor: (shares, memory_mib, cores)}) is not None


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_the_number_of_devices_is_limited(vendor: Vendor) -> None:
    for prefix in ("limits.", "requests."):
        book = limits(**{f"{prefix}{vendor.count_resource}": "2"})
        assert not exceeded(book, vendor.name, shares=2)
        assert exceeded(book, vendor.name, shares=3)
    assert exceeded(limits(**{f"limits.{vendor.count_resource}": "0"}), vendor.name)


@pytest.mark.parametrize("vendor", [vendor for vendor in VENDORS if vendor.memory_resource], ids=lambda vendor: vendor.name)
def test_memory_is_limited_in_the_vendors_own_unit(vendor: Vendor) -> None:
    book = limits(**{f"limits.{vendor.memory_resource}": "100"})
    assert not exceeded(book, vendor.name, memory_mib=100 * vendor.memory_unit_mib)
    assert exceeded(book, vendor.name, memory_mib=100 * vendor.memory_unit_mib + 1)
    assert exceeded(limits(**{f"limits.{vendor.memory_resource}": "1Gi"}), vendor.name, memory_mib=1025)


@pytest.mark.parametrize("vendor", [vendor for vendor in VENDORS if vendor.cores_resource], ids=lambda vendor: vendor.name)
def test_cores_are_limited(vendor: Vendor) -> None:
    book = limits(**{f"limits.{vendor.cores_resource}": "50"})
    assert not exceeded(book, vendor.name, cores=50)
    assert exceeded(book, vendor.name, cores=51)


@pytest.mark.example("quota 70")
@pytest.mark.parametrize(("limit", "asked", "fits"), [("100", [50], True), ("100", [200], False), ("60", [40, 40], False)])
def test_cambricon(limit: str, asked: list[int], fits: bool) -> None:
    book = limits(**{"limits.cambricon.com/mlu.smlu.vmemory": limit})
    assert exceeded(book, "MLU", shares=len(asked), memory_mib=256 * sum(asked)) is not fits


@pytest.mark.example("quota 71")
@pytest.mark.parametrize(("asked", "fits"), [(800, True), (1200, False)])
def test_hygon(asked: int, fits: bool) -> None:
    config = DeviceConfig(hygon=DeviceConfig().hygon.__class__(memory_factor=2))
    book = QuotaLimits(Catalog(config).vendors)
    book.changed(None, a_quota(**{"limits.hygon.com/dcumem": "1000"}))
    assert exceeded(book, "DCU", memory_mib=2 * asked) is not fits


def test_cores_that_are_bits_count_one_by_one() -> None:
    state = ClusterState(Catalog())
    card = a_device("neuron-0", shares=4, memory_mib=0, cores=0b1111)
    state.upsert_node("n1", {"AWSNeuron": (card,)})
    rules = Catalog().vendor("AWSNeuron").rules
    two = a_request(vendor="AWSNeuron")
    asked = two.containers[0].requests[0].__class__(vendor="AWSNeuron", count=1, parts=2, rules=rules)
    request = PodRequest(containers=(two.containers[0].__class__(name="c0", kind=two.containers[0].kind, requests=(asked,)),))
    for number in range(2):
        placed = state.judge(request, ["n1"], uid=f"uid-p{number}")
        assert isinstance(placed, Placement)
        state.reserve(a_ref(f"p{number}"), placed, now=0.0)
    assert state.used_in("default")["AWSNeuron"][2] == 4
    state.validate()


def judged(limit: str, *sizes_mib: int, **asks: int) -> Any:
    state = ClusterState(Catalog())
    state.upsert_node(
        "n1", {"NVIDIA": tuple(a_device(f"GPU-{place}", memory_mib=size, index=place) for place, size in enumerate(sizes_mib))}
    )
    allowance = limits(**{"limits.nvidia.com/gpumem": limit}).allowance("default", {})
    return state.judge(a_request(**asks), ["n1"], uid="u", allowance=allowance)


@pytest.mark.example("quota 73")
@pytest.mark.departs("a quota is a reason against the pod on this node, not against some of its cards")
def test_a_pod_over_its_quota_is_refused_on_every_node_with_one_reason() -> None:
    refused = judged("4000", 8000, 8000, 8000, 8000, count=2, memory_mib=3000)
    assert refused.failed == {"n1": "ResourceQuotaNotFit"}
    assert "asks 6000 MiB, 0 MiB of 4000 MiB are used" in refused.summary


@pytest.mark.example("quota 74")
def test_the_card_that_the_quota_allows_is_found_among_larger_ones() -> None:
    placed = judged("2000", 9000, 2000, 9000, 9000, memory_percent=100)
    assert isinstance(placed, Placement)
    assert [charge.uuid for charge in placed.charges] == ["GPU-1"]
    assert judged("1500", 9000, 2000, 9000, 9000, memory_percent=100).failed == {"n1": "ResourceQuotaNotFit"}

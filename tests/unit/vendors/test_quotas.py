"""Quotas count every vendor's resources in the vendor's own unit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hami_devices.accounting import charges_of
from hami_devices.catalog import Catalog
from hami_devices.model import Reason
from hami_devices.quota import QuotaLimits, totals_of
from hami_devices.records import read_assignment
from hami_protocol.devices import PodRef, VendorAssignment
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_scheduler.placement import ClusterState, Placement, Refusal
from tests.builders import a_device, example
from tests.unit.vendors.vendor_world import CATALOG, a_pod_asking, configured

MLU, MLU_MEMORY = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory"
DCU, DCU_MEMORY, DCU_CORES = "hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"
NPU = "huawei.com/Ascend910A"
SOFT = {"huawei.com/vnpu-mode": "hami-core"}
SCALED_NPU = (
    f"vnpus: [{{commonWord: A, resourceName: {NPU}, resourceMemoryName: {NPU}-memory, memoryAllocatable: 65536, "
    "memoryCapacity: 65536, memoryFactor: 4}]"
)


def limits_of(catalog: Catalog, **hard: str) -> QuotaLimits:
    book = QuotaLimits(catalog.vendors)
    book.changed(None, ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=hard)))
    return book


def refusal(
    config: str, hard: dict[str, str], limits: dict[str, Any], *, used: dict[str, Any], annotations: dict[str, str] | None = None
) -> bool:
    """Whether a pod with these limits exceeds a quota of which so much is used."""
    catalog = configured(config)
    book = limits_of(catalog, **{f"limits.{resource}": amount for resource, amount in hard.items()})
    asked = book.asked(catalog.read_pod(a_pod_asking(limits, annotations=annotations)))[0]
    before = book.asked(catalog.read_pod(a_pod_asking(used, annotations=annotations)))[0] if used else {}
    return any(limit.exceeded(asked.get(limit.resource, 0), before.get(limit.resource, 0)) for limit in book.of("default"))


USED = {DCU: 1, DCU_MEMORY: 1000, DCU_CORES: 20}


@pytest.mark.parametrize(
    ("config", "hard", "limits", "used", "refused"),
    [
        example("vendor quota 317 fits", "", {DCU_MEMORY: "2000", DCU_CORES: "40"}, {DCU: 1, DCU_MEMORY: 500, DCU_CORES: 10}, USED, False),
        example("vendor quota 317 memory", "", {DCU_MEMORY: "2000"}, {DCU: 1, DCU_MEMORY: 1500, DCU_CORES: 10}, USED, True),
        example("vendor quota 317 cores", "", {DCU_CORES: "40"}, {DCU: 1, DCU_MEMORY: 1, DCU_CORES: 30}, USED, True),
        example(
            "vendor quota 318 fits",
            "hygon: {memoryFactor: 2}",
            {DCU_MEMORY: "2000"},
            {DCU: 1, DCU_MEMORY: 500},
            {DCU: 1, DCU_MEMORY: 500},
            False,
        ),
        example(
            "vendor quota 318 too much",
            "hygon: {memoryFactor: 2}",
            {DCU_MEMORY: "2000"},
            {DCU: 1, DCU_MEMORY: 2500},
            {DCU: 1, DCU_MEMORY: 500},
            True,
        ),
        example("vendor quota 319", "", {DCU_MEMORY: "0"}, {DCU: 1, DCU_MEMORY: 500}, {}, True),
        example("vendor quota 320", "", {"example.com/unknown": "0"}, {DCU: 1, DCU_MEMORY: 500}, {}, False),
        example("quota 70 fits", "", {MLU_MEMORY: "100"}, {MLU: 1, MLU_MEMORY: 50}, {}, False),
        example("quota 70 too much", "", {MLU_MEMORY: "100"}, {MLU: 1, MLU_MEMORY: 200}, {}, True),
        example("quota 70 two devices", "", {MLU_MEMORY: "60"}, {MLU: 2, MLU_MEMORY: 40}, {}, True),
        example("quota 71 fits", "hygon: {memoryFactor: 2}", {DCU_MEMORY: "1000"}, {DCU: 1, DCU_MEMORY: 800}, {}, False),
        example("quota 71 too much", "hygon: {memoryFactor: 2}", {DCU_MEMORY: "1000"}, {DCU: 1, DCU_MEMORY: 1200}, {}, True),
    ],
)
def test_quotas_are_in_the_vendor_s_units(
    config: str, hard: dict[str, str], limits: dict[str, Any], used: dict[str, Any], refused: bool
) -> None:
    assert refusal(config, hard, limits, used=used) == refused


@pytest.mark.parametrize(("memory", "refused"), [example("quota 72 fits", 4096, False), example("quota 72 too much", 8193, True)])
def test_a_factor_scales_an_ascend_quota_too(memory: int, refused: bool) -> None:
    asks = {NPU: 1, f"{NPU}-memory": memory}
    assert refusal(SCALED_NPU, {f"{NPU}-memory": "8192"}, asks, used={}, annotations=SOFT) == refused


@pytest.mark.example("Cambricon 483")
def test_a_whole_card_counts_with_its_memory_where_room_is_reserved() -> None:
    state = ClusterState(CATALOG)
    state.upsert_node("n1", {"MLU": (a_device("mlu", memory_mib=40960, type="MLU"),)})
    book = limits_of(CATALOG, **{f"limits.{MLU_MEMORY}": "50"})
    request = CATALOG.read_pod(a_pod_asking({MLU: 1}))
    judged = state.judge(request, ["n1"], uid="u", allowance=book.allowance("default", {}))
    assert isinstance(judged, Refusal)
    assert set(judged.reasons) == {str(Reason.QUOTA)}


AMD, AMD_MEMORY, AMD_CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"


@pytest.mark.departs(
    "cores of AMD count in percent, as they are asked, at admission and in the ledger; the reference's ledger counts compute units"
)
@pytest.mark.parametrize("units", [50, 304])
def test_what_amds_pods_hold_counts_in_the_percent_that_they_asked(units: int) -> None:
    book = limits_of(CATALOG, **{f"limits.{AMD_CORES}": "100"})

    def judged(uid: str, percent: int, state: ClusterState) -> object:
        request = CATALOG.read_pod(a_pod_asking({AMD: 1, AMD_MEMORY: 100, AMD_CORES: percent}))
        allowance = book.allowance("default", state.usage("default"))
        found = state.judge(request, ["n1"], uid=uid, allowance=allowance)
        if isinstance(found, Placement):
            state.reserve(PodRef(namespace="default", name=uid, uid=uid), found, now=0.0)
        return found

    state = ClusterState(CATALOG)
    cards = tuple(a_device(f"amd-{number}", memory_mib=40960, cores=units, type="AMD_MI300X") for number in range(2))
    state.upsert_node("n1", {"AMD": cards})
    assert isinstance(judged("one", 33, state), Placement)
    assert isinstance(judged("two", 67, state), Placement)
    assert book.amounts(state.used_in("default"))[AMD_CORES] == 100
    refused = judged("three", 1, state)
    assert isinstance(refused, Refusal)
    assert set(refused.reasons) == {str(Reason.QUOTA)}
    assert "limits.amd.com/gpucores: asks 1, 100 of 100 are used" in refused.summary
    state.validate()


@pytest.mark.parametrize(("limit", "percent"), [("33", 33), (None, 100), ("rubbish", 100), ("400", 100), ("0", 100)])
def test_what_an_amd_pod_asked_is_known_again_from_the_pod_itself(limit: str | None, percent: int) -> None:
    pod = a_pod_asking({AMD: 1, AMD_MEMORY: 100} | ({} if limit is None else {AMD_CORES: limit}))
    pod = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations={"hami.io/amd-devices-allocated": "amd-0,AMD_MI300X,100,100:;"}),
    )
    held = read_assignment(pod, CATALOG.vendor("AMD"))
    assert held is not None
    ((share,),) = [each.shares for each in held.containers]
    assert (share.cores, share.cores_percent) == (100, percent)
    assert book_of(held) == percent


def book_of(held: VendorAssignment) -> int:
    book = limits_of(CATALOG)
    totals = totals_of((held,), *charges_of((held,)), units=book.core_units)
    return book.amounts(totals[0])[AMD_CORES]

"""Quotas count every vendor's resources in the vendor's own unit."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.catalog import Catalog
from hami_devices.model import Reason
from hami_devices.quota import QuotaLimits
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_scheduler.placement import ClusterState, Refusal
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
        example("vendors 1.15 L317 fits", "", {DCU_MEMORY: "2000", DCU_CORES: "40"}, {DCU: 1, DCU_MEMORY: 500, DCU_CORES: 10}, USED, False),
        example("vendors 1.15 L317 memory", "", {DCU_MEMORY: "2000"}, {DCU: 1, DCU_MEMORY: 1500, DCU_CORES: 10}, USED, True),
        example("vendors 1.15 L317 cores", "", {DCU_CORES: "40"}, {DCU: 1, DCU_MEMORY: 1, DCU_CORES: 30}, USED, True),
        example(
            "vendors 1.15 L318 fits",
            "hygon: {memoryFactor: 2}",
            {DCU_MEMORY: "2000"},
            {DCU: 1, DCU_MEMORY: 500},
            {DCU: 1, DCU_MEMORY: 500},
            False,
        ),
        example(
            "vendors 1.15 L318 too much",
            "hygon: {memoryFactor: 2}",
            {DCU_MEMORY: "2000"},
            {DCU: 1, DCU_MEMORY: 2500},
            {DCU: 1, DCU_MEMORY: 500},
            True,
        ),
        example("vendors 1.15 L319", "", {DCU_MEMORY: "0"}, {DCU: 1, DCU_MEMORY: 500}, {}, True),
        example("vendors 1.15 L320", "", {"example.com/unknown": "0"}, {DCU: 1, DCU_MEMORY: 500}, {}, False),
        example("scheduler 24.8 #70 fits", "", {MLU_MEMORY: "100"}, {MLU: 1, MLU_MEMORY: 50}, {}, False),
        example("scheduler 24.8 #70 too much", "", {MLU_MEMORY: "100"}, {MLU: 1, MLU_MEMORY: 200}, {}, True),
        example("scheduler 24.8 #70 two devices", "", {MLU_MEMORY: "60"}, {MLU: 2, MLU_MEMORY: 40}, {}, True),
        example("scheduler 24.8 #71 fits", "hygon: {memoryFactor: 2}", {DCU_MEMORY: "1000"}, {DCU: 1, DCU_MEMORY: 800}, {}, False),
        example("scheduler 24.8 #71 too much", "hygon: {memoryFactor: 2}", {DCU_MEMORY: "1000"}, {DCU: 1, DCU_MEMORY: 1200}, {}, True),
    ],
)
def test_quotas_are_in_the_vendor_s_units(
    config: str, hard: dict[str, str], limits: dict[str, Any], used: dict[str, Any], refused: bool
) -> None:
    assert refusal(config, hard, limits, used=used) == refused


@pytest.mark.parametrize(
    ("memory", "refused"), [example("scheduler 24.8 #72 fits", 4096, False), example("scheduler 24.8 #72 too much", 8193, True)]
)
def test_a_factor_scales_an_ascend_quota_too(memory: int, refused: bool) -> None:
    asks = {NPU: 1, f"{NPU}-memory": memory}
    assert refusal(SCALED_NPU, {f"{NPU}-memory": "8192"}, asks, used={}, annotations=SOFT) == refused


@pytest.mark.example("vendors 3 L483")
def test_a_whole_card_counts_with_its_memory_where_room_is_reserved() -> None:
    state = ClusterState(CATALOG)
    state.upsert_node("n1", {"MLU": (a_device("mlu", memory_mib=40960, type="MLU"),)})
    book = limits_of(CATALOG, **{f"limits.{MLU_MEMORY}": "50"})
    request = CATALOG.read_pod(a_pod_asking({MLU: 1}))
    judged = state.judge(request, ["n1"], uid="u", allowance=book.allowance("default", {}))
    assert isinstance(judged, Refusal)
    assert set(judged.reasons) == {str(Reason.QUOTA)}

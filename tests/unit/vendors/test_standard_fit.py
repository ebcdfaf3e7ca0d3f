"""The standard examples of fit, for every vendor whose devices are fitted by memory and cores."""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.model import DeviceRequest, DeviceState, Selectors
from tests.builders import a_state, example
from tests.unit.vendors.vendor_world import CATALOG, FREE, fit

CHIPS = tuple(vendor.name for vendor in CATALOG.vendors if vendor.name.startswith(("Ascend", "MR-", "BI-")))
STANDARD = ("NVIDIA", "MLU", "DCU", "Mthreads", "Metax-GPU", *CHIPS)
CLAMPED = "more than all cores is refused where the pod is read; fit clamps nothing"


def dev(number: int = 0, **fields: Any) -> dict[str, Any]:
    """The sheet's device: 100 shares, 1280 MiB, 100 cores, unused."""
    return {"uuid": f"dev-{number}", "index": number, "shares": 100, "memory_mib": 1280, **fields}


def ask(count: int = 1, memory_mib: int = 0, percent: int = 0, cores: int = 0) -> dict[str, int]:
    return {"count": count, "memory_mib": memory_mib, "memory_percent": percent or (0 if memory_mib else 100), "cores": cores}


ROWS = [
    ("1", [dev(0, memory_mib=128), dev(1, memory_mib=128)], ask(1, 64, 0, 50), ["dev-1"], {}),
    ("2", [dev(memory_mib=128)], ask(1, 512, 0, 50), "1/1 CardInsufficientMemory", {}),
    ("3", [dev(memory_mib=1024, used_cores=100)], ask(1, 512, 0, 50), "1/1 CardInsufficientCore", {}),
    ("5", [dev(1)], ask(2, 1), "1/1 CardUuidMismatch", {"selectors": Selectors(use_uuids=("dev-0",))}),
    ("6", [dev()], ask(2, 1), "1/1 CardUuidMismatch", {"selectors": Selectors(avoid_uuids=("dev-0",))}),
    ("7", [dev(used_shares=100)], ask(1, 512, 0, 50), "1/1 CardTimeSlicingExhausted", {}),
    ("8", [dev()], ask(1, 1, 0, 120), "1/1 CardInsufficientCore", {"departs": CLAMPED}),
    ("9", [dev(used_shares=20)], ask(1, 1, 0, 100), "1/1 ExclusiveDeviceAllocateConflict", {}),
    ("10", [dev(used_shares=20, used_cores=100)], ask(1, 1), "1/1 CardComputeUnitsExhausted", {}),
    ("11", [dev(used_shares=20, used_cores=10)], ask(2, 512, 0, 20), "1/1 AllocatedCardsInsufficientRequest", {}),
    ("12", [dev(0), dev(1)], ask(3, 512, 0, 20), "2/2 AllocatedCardsInsufficientRequest", {}),
    ("13", [dev(used_shares=20, used_cores=10)], ask(1, 0, 10, 20), ["dev-0"], {}),
    ("14", [dev(healthy=False)], ask(1, 1), "1/1 CardNotHealth", {}),
    ("15", [dev(used_shares=1)], ask(1, 64, 0, 50), "1/1 ExclusiveDeviceAllocateConflict", {"policy": "mutex"}),
    ("16", [dev(memory_mib=128, used_cores=100)], ask(1, 512, 0, 50), "1/1 CardInsufficientMemory", {}),
]


def examples() -> list[Any]:
    """Every row for every vendor; its id begins with that of the row."""
    return [
        example(f"standard fit {row} {vendor}", vendor, devices, asks, result, more, departs=more.get("departs", ""))
        for vendor in STANDARD
        for row, devices, asks, result, more in ROWS
    ]


@pytest.mark.parametrize(("vendor", "devices", "asks", "result", "more"), examples())
def test_devices_are_fitted(
    vendor: str, devices: list[dict[str, Any]], asks: dict[str, int], result: list[str] | str, more: dict[str, Any]
) -> None:
    states: list[DeviceState] = [a_state(vendor=vendor, **device) for device in devices]
    request = DeviceRequest(vendor=vendor, rules=CATALOG.vendor(vendor).rules, **asks)
    assert fit(states, request, policy=more.get("policy", "spread"), selectors=more.get("selectors", FREE)) == result


@pytest.mark.parametrize("vendor", CATALOG.vendors, ids=lambda vendor: vendor.name)
@pytest.mark.example("standard fit 4 every vendor")
def test_a_device_of_another_vendor_is_none_of_this_one_s(vendor: Any) -> None:
    request = DeviceRequest(vendor=vendor.name, count=1, memory_mib=1, rules=vendor.rules)
    assert fit([a_state(vendor="OtherType", **dev())], request) == "1/1 CardTypeMismatch"


@pytest.mark.departs("a vendor is matched exactly: Ascend910B4-1 is not Ascend910B4")
@pytest.mark.example("edge 3")
def test_a_chip_is_no_part_of_another_s_name() -> None:
    request = DeviceRequest(vendor="Ascend910B4", count=1, memory_mib=1, rules=CATALOG.vendor("Ascend910B4").rules)
    assert fit([a_state(vendor="Ascend910B4-1", **dev())], request) == "1/1 CardTypeMismatch"

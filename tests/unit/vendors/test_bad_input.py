"""Bad quantities, for every vendor (HAMi#2336, HAMi#2156, HAMi#2788): a quantity is read, or refused with its field.

It is never zero, and nothing is cut to fit.
"""

from __future__ import annotations

from typing import Any

import pytest

from hami_devices.requests import RequestError
from hami_devices.vendor import Vendor
from tests.unit.vendors.vendor_world import CATALOG, asked, changes

WITH_MEMORY = [vendor for vendor in CATALOG.vendors if vendor.memory_resource]
WITH_CORES = [vendor for vendor in CATALOG.vendors if vendor.cores_resource]
GARBAGE = ("NaN", "Inf", "1e400", "0x1", "", " 0.5", "-0.5", "0.5.1", "-1", "1.5", "500m", "\uff12", True, None, [1])
OVER = (2147483648, 4398046511104, "9Ei")


def by_name(vendor: Vendor) -> str:
    return vendor.name


def alone(vendor: Vendor, resource: str, amount: Any) -> dict[str, Any]:
    """Limits that ask ``amount`` of one resource, with a device where one is needed."""
    counted = resource == vendor.count_resource or vendor.name == "Enflame"
    return {resource: amount} if counted else {vendor.count_resource: 1, resource: amount}


@pytest.mark.parametrize("vendor", WITH_MEMORY, ids=by_name)
@pytest.mark.parametrize(("written", "mib"), [("16Gi", 16384), ("16.0Gi", 16384), ("8Gi", 8192), ("16384Mi", 16384)])
def test_a1_a_binary_suffix_is_understood_by_every_vendor(vendor: Vendor, written: str, mib: int) -> None:
    annotations = {"huawei.com/vnpu-mode": "hami-core"}
    request = asked(alone(vendor, vendor.memory_resource, written), annotations=annotations)
    assert request is not None
    rounded_up = vendor.name == "XPU"
    assert request.memory_mib == (24576 if rounded_up else mib)


@pytest.mark.parametrize("vendor", CATALOG.vendors, ids=by_name)
@pytest.mark.parametrize("amount", [*GARBAGE, *OVER], ids=repr)
def test_a16_garbage_is_refused_on_every_resource_of_every_vendor(vendor: Vendor, amount: Any) -> None:
    for resource in vendor.resources:
        whole = resource == vendor.cores_resource and vendor.name == "AWSNeuron"
        limits = {resource: amount} if whole else alone(vendor, resource, amount)
        for call in (changes,) if resource == vendor.priority_resource else (asked, changes):  # a priority books nothing
            with pytest.raises(RequestError) as refused:
                call(limits)
            assert refused.value.field == f"spec.containers[0].resources.limits[{resource}]"
            assert "accepted" in refused.value.reason


@pytest.mark.parametrize("vendor", [each for each in WITH_CORES if each.name not in {"AWSNeuron", "Mthreads"}], ids=by_name)
@pytest.mark.parametrize("amount", ["99.1", "50m", "-1", "101"])
def test_a3_a_percentage_out_of_range_is_refused_by_every_vendor(vendor: Vendor, amount: str) -> None:
    with pytest.raises(RequestError, match="accepted"):
        asked(alone(vendor, vendor.cores_resource, amount), annotations={"huawei.com/vnpu-mode": "hami-core"})


@pytest.mark.parametrize("vendor", WITH_MEMORY, ids=by_name)
def test_a2_nothing_that_is_asked_books_nothing_and_gives_everything(vendor: Vendor) -> None:
    """0 is unset or refused: never a share of no memory beside others."""
    try:
        request = asked(alone(vendor, vendor.memory_resource, 0))
    except RequestError:
        return
    assert request is None or request.whole or request.memory_mib > 0

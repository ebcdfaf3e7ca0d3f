"""What namespaces may have (HAMi#1579, HAMi#3052)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_devices.catalog import Catalog
from hami_devices.config import DeviceConfig, NvidiaConfig
from hami_devices.quota import QuotaLimits, Totals
from hami_devices.quota_scopes import PodTraits
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec


def a_quota(name: str = "q", **hard: str) -> ResourceQuota:
    limits = {key.replace("__", ".nvidia.com/"): value for key, value in hard.items()}
    return ResourceQuota(metadata=ObjectMeta(name=name, namespace="default"), spec=ResourceQuotaSpec(hard=dict(limits)))


def held(memory_mib: int = 0, *, shares: int = 1, cores: int = 0) -> Totals:
    return {"NVIDIA": (shares, memory_mib, cores)}


def exceeded(limits: QuotaLimits, asked: Totals, used: Totals | None = None, *, namespace: str = "default") -> str:
    allowance = limits.allowance(namespace, {PodTraits(): used or {}})
    return "" if allowance is None else allowance.exceeded(asked) or ""


@pytest.fixture
def limits() -> QuotaLimits:
    return QuotaLimits(Catalog().vendors)


@pytest.mark.parametrize("key", ["limits__gpumem", "requests__gpumem"])
def test_both_kinds_of_keys_limit_and_the_limit_itself_fits(limits: QuotaLimits, key: str) -> None:
    assert limits.changed(None, a_quota(**{key: "3000"})) == "default"
    assert exceeded(limits, held(2000), held(1000)) == ""
    assert "asks 2001 MiB, 1000 MiB of 3000 MiB are used" in exceeded(limits, held(2001), held(1000))
    assert exceeded(limits, held(9000), namespace="elsewhere") == ""


@pytest.mark.example("quota 63")
def test_what_is_used_and_what_is_asked_are_added_up(limits: QuotaLimits) -> None:
    limits.changed(None, a_quota(limits__gpumem="2000"))
    assert exceeded(limits, held(500), held(1000)) == ""
    assert exceeded(limits, held(1500), held(1000)) != ""


@pytest.mark.example("quota 64")
def test_a_limit_counts_in_the_vendors_own_unit() -> None:
    limits = QuotaLimits(Catalog(DeviceConfig(nvidia=NvidiaConfig(memory_factor=2))).vendors)
    limits.changed(None, a_quota(limits__gpumem="2000"))
    assert exceeded(limits, held(1000), held(1000)) == ""
    assert exceeded(limits, held(5000), held(1000)) != ""


@pytest.mark.example("quota 65")
def test_zero_is_none_and_absent_is_unlimited(limits: QuotaLimits) -> None:
    limits.changed(None, a_quota(limits__gpumem="0"))
    assert exceeded(limits, held(500)) != ""
    assert exceeded(limits, held(0)) == ""
    limits.changed(None, a_quota(limits__gpucores="10"))
    assert exceeded(limits, held(99_000)) == ""


def test_cards_cores_and_memory_are_limited_each_by_itself(limits: QuotaLimits) -> None:
    limits.changed(None, a_quota(limits__gpu="3", limits__gpucores="50", limits__gpumem="4097"))
    two = held(4096, shares=2, cores=40)
    assert exceeded(limits, two) == ""
    assert exceeded(limits, held(1, cores=10), two) == ""
    assert "gpucores: asks 11, 40 of 50 are used" in exceeded(limits, held(1, cores=11), two)
    assert "gpumem: asks 2 MiB, 4096 MiB of 4097 MiB are used" in exceeded(limits, held(2), two)
    assert "gpu: asks 2, 2 of 3 are used" in exceeded(limits, held(shares=2), two)


def test_the_strictest_of_several_decides_and_each_ends_with_its_own_deletion(limits: QuotaLimits) -> None:
    loose, strict = a_quota("loose", limits__gpumem="9000"), a_quota("strict", limits__gpumem="1000")
    limits.changed(None, loose)
    limits.changed(None, strict)
    assert "strict" in exceeded(limits, held(2000))
    assert limits.changed(strict, None) == "default"
    assert exceeded(limits, held(2000)) == ""
    limits.changed(loose, a_quota("loose"))
    assert exceeded(limits, held(90_000)) == ""
    assert not limits


def test_a_change_that_is_not_about_devices_is_none(limits: QuotaLimits) -> None:
    limits.changed(None, a_quota(limits__gpumem="9000"))
    assert limits.changed(a_quota(limits__gpumem="9000"), a_quota(limits__gpumem="9k", pods="3")) is None
    assert limits.changed(None, a_quota("other", pods="3")) is None


@pytest.mark.parametrize("value", ["1.5", "-1", "much", "NaN", ""])
def test_a_limit_that_cannot_be_read_allows_nothing(limits: QuotaLimits, value: str) -> None:
    limits.changed(None, a_quota(limits__gpumem=value))
    assert "allows nothing" in exceeded(limits, held(1))


@pytest.mark.parametrize(("value", "mib"), [("2Gi", 2048), ("2k", 2000), ("2000", 2000)])
def test_memory_is_understood_as_in_a_pods_request(limits: QuotaLimits, value: str, mib: int) -> None:
    limits.changed(None, a_quota(limits__gpumem=value))
    assert exceeded(limits, held(mib)) == ""
    assert exceeded(limits, held(mib + 1)) != ""


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 40), st.integers(0, 40))
def test_of_many_quotas_the_least_is_what_counts(amounts: list[int], used: int, asked: int) -> None:
    limits = QuotaLimits(Catalog().vendors)
    for place, amount in enumerate(amounts):
        limits.changed(None, a_quota(f"q{place}", limits__gpumem=str(amount)))
    assert (exceeded(limits, held(asked), held(used)) == "") == (not asked or used + asked <= min(amounts))

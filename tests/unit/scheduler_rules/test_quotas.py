"""What namespaces may have (cases A11, A12)."""

import pytest

from hami_devices.catalog import Catalog
from hami_devices.model import Charge
from hami_protocol.kubernetes import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami_scheduler.placement import Entry, Phase
from hami_scheduler.quotas import Quotas
from tests.builders import a_ref


def a_quota(name: str = "q", **hard: str) -> ResourceQuota:
    limits = {key.replace("__", ".nvidia.com/"): value for key, value in hard.items()}
    return ResourceQuota(metadata=ObjectMeta(name=name, namespace="default"), spec=ResourceQuotaSpec(hard=dict(limits)))


def charge(memory_mib: int, *, shares: int = 1, cores: int = 0, uuid: str = "GPU-A") -> Charge:
    return Charge(uuid=uuid, vendor="NVIDIA", shares=shares, memory_mib=memory_mib, cores=cores)


def an_entry(*charges: Charge, phase: Phase = Phase.BOUND, running: tuple[Charge, ...] = ()) -> Entry:
    return Entry(pod=a_ref("other"), node="n1", phase=phase, assignments=(), charges=charges, running_charges=running)


@pytest.fixture
def quotas() -> Quotas:
    return Quotas(Catalog())


@pytest.mark.parametrize("key", ["limits__gpumem", "requests__gpumem"])
def test_both_kinds_of_keys_limit_and_the_limit_itself_fits(quotas: Quotas, key: str) -> None:
    quotas.changed(None, a_quota(**{key: "3000"}))
    held = [an_entry(charge(1000))]
    assert quotas.exceeded("default", [charge(2000)], held) is None
    exceeded = quotas.exceeded("default", [charge(2001)], held)
    assert exceeded is not None
    assert "asks 2001 MiB, 1000 MiB of 3000 MiB are used" in exceeded
    assert quotas.exceeded("elsewhere", [charge(9000)], []) is None


def test_every_card_of_a_pod_counts(quotas: Quotas) -> None:
    quotas.changed(None, a_quota(limits__gpu="3", limits__gpucores="50", limits__gpumem="4097"))
    two = [charge(2048, cores=20), charge(2048, cores=20, uuid="GPU-B")]
    assert quotas.exceeded("default", two, []) is None
    beside = [an_entry(*two)]
    assert quotas.exceeded("default", [charge(1, cores=10)], beside) is None
    assert "gpucores: asks 11, 40 of 50 are used" in (quotas.exceeded("default", [charge(1, cores=11)], beside) or "")
    assert "gpumem: asks 2 MiB, 4096 MiB of 4097 MiB are used" in (quotas.exceeded("default", [charge(2)], beside) or "")
    assert "gpu: asks 2, 2 of 3 are used" in (quotas.exceeded("default", [charge(0), charge(0, uuid="GPU-B")], beside) or "")


def test_a_shrunk_pod_counts_what_still_runs(quotas: Quotas) -> None:
    quotas.changed(None, a_quota(limits__gpumem="3000"))
    shrunk = an_entry(charge(3000), phase=Phase.SHRUNK, running=(charge(1000),))
    assert quotas.exceeded("default", [charge(2000)], [shrunk]) is None
    assert quotas.exceeded("default", [charge(2000)], [an_entry(charge(3000), running=(charge(1000),))]) is not None


def test_the_strictest_of_several_decides_and_each_ends_with_its_own_deletion(quotas: Quotas) -> None:
    loose, strict = a_quota("loose", limits__gpumem="9000"), a_quota("strict", limits__gpumem="1000")
    quotas.changed(None, loose)
    quotas.changed(None, strict)
    assert "strict" in (quotas.exceeded("default", [charge(2000)], []) or "")
    quotas.changed(strict, None)
    assert quotas.exceeded("default", [charge(2000)], []) is None
    quotas.changed(loose, a_quota("loose"))
    assert quotas.exceeded("default", [charge(90_000)], []) is None


def test_zero_is_none_and_absent_is_unlimited(quotas: Quotas) -> None:
    quotas.changed(None, a_quota(limits__gpumem="0"))
    assert quotas.exceeded("default", [charge(1)], []) is not None
    assert quotas.exceeded("default", [charge(0)], []) is None
    quotas.changed(None, a_quota(limits__gpucores="10"))
    assert quotas.exceeded("default", [charge(99_000)], []) is None


@pytest.mark.parametrize("value", ["1.5", "-1", "much", "NaN", ""])
def test_a_limit_that_cannot_be_read_allows_nothing(quotas: Quotas, value: str) -> None:
    quotas.changed(None, a_quota(limits__gpumem=value))
    assert "allows nothing" in (quotas.exceeded("default", [charge(1)], []) or "")


@pytest.mark.parametrize(("value", "mib"), [("2Gi", 2048), ("2k", 2000), ("2000", 2000)])
def test_memory_is_understood_as_in_a_pods_request(quotas: Quotas, value: str, mib: int) -> None:
    quotas.changed(None, a_quota(limits__gpumem=value))
    assert quotas.exceeded("default", [charge(mib)], []) is None
    assert quotas.exceeded("default", [charge(mib + 1)], []) is not None

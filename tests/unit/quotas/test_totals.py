"""What counts against a quota: the peak of the sums, as admission counts it (HAMi#2558, HAMi#3052)."""

import pytest
from hypothesis import given

from hami_devices.catalog import Catalog
from hami_devices.fit import fit_node
from hami_devices.model import PodRequest
from hami_devices.quota import QuotaLimits, totals_of
from hami_devices.reasons import Misfit
from hami_protocol.devices import ContainerKind
from tests.builders import a_request, a_share, a_state
from tests.unit.placement.clusters import requests

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def peak_mib(request: PodRequest, *sizes_mib: int) -> int:
    fit = fit_node([a_state(uuid=f"GPU-{place}", memory_mib=size) for place, size in enumerate(sizes_mib)], request)
    assert not isinstance(fit, Misfit)
    return totals_of(fit.assignments, fit.charges, fit.running_charges)[0]["NVIDIA"][1]


def test_an_init_container_and_an_application_on_two_cards_are_never_there_at_once() -> None:
    request = a_request((INIT, a_share(memory_mib=2000)), (APP, a_share(memory_mib=1500)), device_policy="mutex")
    assert peak_mib(request, 2000, 1500) == 2000


@pytest.mark.example("quota 75")
def test_two_init_containers_count_as_the_larger() -> None:
    request = a_request((INIT, a_share(memory_mib=1500)), (INIT, a_share(memory_mib=1500)), (APP, a_share(memory_mib=100)))
    assert peak_mib(request, 4000) == 1500


def test_a_sidecar_counts_beside_the_init_containers_after_it() -> None:
    request = a_request((SIDECAR, a_share(memory_mib=600)), (INIT, a_share(memory_mib=500)), (APP, a_share(memory_mib=100)))
    assert peak_mib(request, 4000) == 1100


@given(requests(vendors=("NVIDIA",)))
def test_the_ledger_counts_what_admission_counts(request: PodRequest) -> None:
    """As far as admission can tell: a percentage is an amount only on a card."""
    fit = fit_node([a_state(uuid=f"GPU-{place}", memory_mib=100_000, cores=1000, shares=100) for place in range(3)], request)
    if isinstance(fit, Misfit):
        return
    limits = QuotaLimits(Catalog().vendors)
    asked = limits.asked(request)
    held = totals_of(fit.assignments, fit.charges, fit.running_charges)
    in_percent = any(share.memory_percent for container in request.containers for share in container.requests)
    for mine, theirs in zip(held, asked, strict=True):
        amounts = limits.amounts(mine)
        assert amounts["nvidia.com/gpu"] == theirs["nvidia.com/gpu"]
        assert amounts["nvidia.com/gpucores"] == theirs["nvidia.com/gpucores"]
        if not in_percent:
            assert amounts["nvidia.com/gpumem"] == theirs["nvidia.com/gpumem"]

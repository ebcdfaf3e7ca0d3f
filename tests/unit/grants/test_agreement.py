"""Annotation, grant event and kubelet must say the same; what a tenant wrote is no grant."""

from __future__ import annotations

from hami_node_agent import grants
from hami_node_agent.refusals import Refusal, RefusalKind
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from tests.builders import a_ref

POD = a_ref()


def assigned(**mib: int) -> VendorAssignment:
    return VendorAssignment(
        vendor="NVIDIA",
        containers=tuple(
            ContainerShares(
                container=name,
                kind=ContainerKind.APP,
                shares=(DeviceShare(uuid="GPU-a", type="NVIDIA", memory_mib=size, cores=0),) if size else (),
            )
            for name, size in mib.items()
        ),
    )


def test_equal_records_agree_whatever_containers_without_devices_they_name() -> None:
    assert grants.agreed(POD, assigned(c0=500, c1=0), assigned(c0=500), event_required=True) == assigned(c0=500, c1=0)


def test_a_changed_annotation_is_refused_for_good_with_both_figures() -> None:
    refusal = grants.agreed(POD, assigned(c0=24000), assigned(c0=500), event_required=True)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.GRANT_DIFFERS
    assert refusal.final
    assert "24000" in refusal.reason
    assert "500" in refusal.reason


def test_a_container_that_only_the_annotation_has_is_refused() -> None:
    refusal = grants.agreed(POD, assigned(c0=500, c1=500), assigned(c0=500), event_required=False)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.GRANT_DIFFERS


def test_an_annotation_that_no_event_backs_is_refused_while_the_bus_is_up_and_may_come_right() -> None:
    refusal = grants.agreed(POD, assigned(c0=500), None, event_required=True)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.NO_GRANT
    assert not refusal.final


def test_with_the_bus_down_the_annotation_decides() -> None:
    assert grants.agreed(POD, assigned(c0=500), None, event_required=False) == assigned(c0=500)


def test_a_pod_without_an_annotation_is_never_served() -> None:
    for granted in (None, assigned(c0=500)):
        refusal = grants.agreed(POD, None, granted, event_required=False)
        assert isinstance(refusal, Refusal)
        assert refusal.kind is RefusalKind.NO_GRANT


def test_kubelet_must_have_given_every_container_as_many_devices_as_it_was_granted() -> None:
    assert grants.counted(POD, assigned(c0=500, c1=0), {"c0": 1}) is None
    for given in ({}, {"c0": 2}, {"c0": 1, "c1": 1}, {"c0": 1, "other": 1}):
        refusal = grants.counted(POD, assigned(c0=500, c1=0), given)
        assert refusal is not None
        assert refusal.kind is RefusalKind.COUNT_DIFFERS

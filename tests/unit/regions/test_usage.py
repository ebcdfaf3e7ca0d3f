"""A container that uses a card without the shim is found out, and what no function reports is charged, but never by mistake."""

from __future__ import annotations

from dataclasses import replace

from hami_node_agent import usage
from hami_node_agent.grant_file import Grant, GrantedDevice
from hami_node_agent.region import DeviceUse, Region
from hami_node_agent.usage import Counted, Measured

MIB = 2**20


def measured(*, region_mib: int | None, counted_mib: int, processes: int = 1, attached: int = 1, whole: bool = False) -> Measured:
    device = GrantedDevice(uuid="GPU-a", memory_limit_mib=0 if whole else 1000, sm_percent=0, whole=whole)
    use = None if region_mib is None else Region(devices=(DeviceUse(uuid="GPU-a", used_bytes=region_mib * MIB, processes=attached),))
    return Measured(
        grant=Grant(pod_uid="u", container="main", devices=(device,)),
        region=use,
        counted={"GPU-a": Counted(used_bytes=counted_mib * MIB, processes=processes)},
    )


def test_a_container_whose_processes_are_all_in_the_region_is_held() -> None:
    assert usage.unenforced(measured(region_mib=100, counted_mib=300)) == ""


def test_a_container_without_a_region_or_with_one_process_too_many_is_not() -> None:
    assert "the shim has not seen one" in usage.unenforced(measured(region_mib=None, counted_mib=300))
    assert "2 processes use GPU-a, 1 of them" in usage.unenforced(measured(region_mib=100, counted_mib=300, processes=2))


def test_who_has_the_whole_card_needs_no_shim() -> None:
    assert usage.unenforced(measured(region_mib=None, counted_mib=300, whole=True)) == ""


def test_overhead_is_what_lasts_over_several_looks() -> None:
    moving = [measured(region_mib=100, counted_mib=mib) for mib in (150, 900, 170)]
    assert usage.overhead_bytes(moving) == (50 * MIB,)
    assert usage.overhead_bytes(moving[:2]) == (0,)


def test_overhead_is_never_negative_and_never_more_than_the_share() -> None:
    assert usage.overhead_bytes([measured(region_mib=200, counted_mib=100)] * 3) == (0,)
    assert usage.overhead_bytes([measured(region_mib=0, counted_mib=5000)] * 3) == (1000 * MIB,)


def test_the_larger_figure_is_what_is_in_use() -> None:
    one = measured(region_mib=200, counted_mib=100)
    assert one.used_mib(one.grant.devices[0]) == 200
    other = measured(region_mib=100, counted_mib=300)
    assert other.used_mib(other.grant.devices[0]) == 300


def test_a_share_is_exceeded_where_the_driver_counts_more_than_granted_at_several_looks() -> None:
    more = [measured(region_mib=100, counted_mib=mib) for mib in (1200, 1100, 1300)]
    assert usage.exceeded(more) == "1100 MiB of GPU-a are in use, 1000 MiB granted, 100 MiB charged"
    assert usage.exceeded(more[:2]) == ""
    assert usage.exceeded([*more[:2], measured(region_mib=100, counted_mib=1000)]) == ""
    assert usage.exceeded([measured(region_mib=None, counted_mib=5000, whole=True)] * 3) == ""


def test_functions_in_a_form_that_the_shim_does_not_know_are_not_held() -> None:
    held = measured(region_mib=100, counted_mib=100)
    assert held.region is not None
    found = replace(held, region=replace(held.region, unknown_forms=2))
    assert "2 look-ups of driver functions" in usage.unenforced(found)

"""What a region says is counted exactly; what a tenant wrote into it can raise the one error and nothing else."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import region
from hami_node_agent import shim_layout as layout
from hami_node_agent.region import Owner, RegionError

GPU = "GPU-0a0b0c0d-0000-4000-8000-0000000000ff"
MIB = 2**20


def a_region(*processes: tuple[int, int, int], high_water: int | None = None) -> bytes:
    """A region of one device; of each process its pid, its MiB in use and its launches."""
    data = bytearray(layout.REGION.size)
    head = {"identity": layout.REGION_MAGIC, "version": layout.REGION_VERSION, "size": layout.REGION.size, "device_count": 1}
    for name, value in head.items():
        layout.write_uint(data, layout.REGION, name, value)
    layout.write_uint(data, layout.REGION, "slot_high_water", len(processes) if high_water is None else high_water)
    layout.write_text(data, layout.REGION_DEVICE, "uuid", GPU, base=layout.REGION.offset("devices"))
    for place, (pid, mib, launches) in enumerate(processes):
        slot = layout.REGION.offset("slots", place)
        layout.write_uint(data, layout.REGION_SLOT, "owner", pid | 99 << layout.REGION_PID_BITS, base=slot)
        layout.write_uint(data, layout.REGION_SLOT, "namespace", 7, base=slot)
        use = slot + layout.REGION_SLOT.offset("use")
        layout.write_uint(data, layout.REGION_USE, "used", 5 << 44 | mib * MIB, base=use)
        layout.write_uint(data, layout.REGION_USE, "context_bytes", 10 * MIB, base=use)
        layout.write_uint(data, layout.REGION_USE, "launches", launches, base=use)
    return bytes(data)


def test_the_sum_over_all_processes_is_in_use() -> None:
    found = region.decode(a_region((10, 300, 4), (11, 200, 5)))
    use = found.device(GPU)
    assert (use.used_bytes, use.context_bytes, use.buffer_bytes, use.processes) == (500 * MIB, 20 * MIB, 480 * MIB, 2)
    assert {owner.pid: count for owner, count in found.launches.items()} == {10: 4, 11: 5}


def test_a_process_that_is_gone_counts_no_more() -> None:
    found = region.decode(a_region((10, 300, 4), (11, 200, 5)), gone={Owner(pid=10, started_ticks=99, namespace=7)})
    assert found.device(GPU).used_bytes == 200 * MIB


def test_a_file_of_zeros_is_a_region_with_nothing_in_it() -> None:
    assert region.decode(bytes(layout.REGION.size)).devices == ()


def test_slots_above_the_high_water_mark_are_not_looked_at_and_a_forged_mark_reads_no_further_than_the_slots() -> None:
    assert region.decode(a_region((10, 300, 4), high_water=0)).device(GPU).used_bytes == 0
    assert region.decode(a_region((10, 300, 4), high_water=2**32 - 1)).device(GPU).used_bytes == 300 * MIB


def test_what_a_process_keeps_for_its_next_allocations_is_not_in_use_and_goes_with_the_word_that_it_belongs_to() -> None:
    data = bytearray(a_region((10, 300, 4)))
    use = layout.REGION.offset("slots") + layout.REGION_SLOT.offset("use")
    tag = layout.read_uint(data, layout.REGION_USE, "used", base=use) >> layout.REGION_BYTES_BITS
    layout.write_uint(data, layout.REGION_USE, "spare", tag << layout.REGION_BYTES_BITS | 8 * MIB, base=use)
    assert region.decode(bytes(data)).device(GPU).used_bytes == 292 * MIB
    layout.write_uint(data, layout.REGION_USE, "spare", (tag - 1) << layout.REGION_BYTES_BITS | 8 * MIB, base=use)
    assert region.decode(bytes(data)).device(GPU).used_bytes == 300 * MIB
    layout.write_uint(data, layout.REGION_USE, "spare", tag << layout.REGION_BYTES_BITS | 500 * MIB, base=use)
    assert region.decode(bytes(data)).device(GPU).used_bytes == 0  # a tenant's nonsense stays within bounds


def test_a_process_with_a_context_and_no_memory_counts() -> None:
    data = bytearray(a_region((10, 0, 0)))
    assert region.decode(bytes(data)).device(GPU).processes == 0
    layout.write_uint(data, layout.REGION_SLOT, "contexts", 1, base=layout.REGION.offset("slots"))
    assert region.decode(bytes(data)).device(GPU).processes == 1


@pytest.mark.parametrize("field", ["version", "size"])
def test_another_version_is_refused_not_guessed(field: str) -> None:
    data = bytearray(a_region())
    layout.write_uint(data, layout.REGION, field, layout.REGION_VERSION + 1)
    with pytest.raises(RegionError, match="version"):
        region.decode(bytes(data))


@given(st.binary(max_size=4000), st.sampled_from([0, 1197897, 2008953, 2008985, layout.REGION.size]), st.booleans())
def test_any_bytes_are_a_bounded_region_or_raise_the_one_error(start: bytes, size: int, ours: bool) -> None:
    magic = (
        struct.pack("<Q", layout.REGION_MAGIC) + struct.pack("<II", 1, layout.REGION.size) if ours else struct.pack("<iii", 19920718, 1, 1)
    )
    data = (magic + start).ljust(size, b"\xff")[: size or None]
    try:
        found = region.decode(data)
    except RegionError:
        return
    assert len(found.devices) <= 16
    assert all(0 <= device.used_bytes < 2**44 and device.processes <= 1024 for device in found.devices)


@pytest.mark.parametrize(
    ("size", "version", "count", "uuids", "slots", "slot_size", "used", "status", "processes"),
    [
        (1197897, None, 48, 56, 1848, 1168, 8, 1160, 1197880),
        (2008953, (1, 2), 56, 64, 1856, 1960, 8, 1928, 2008896),
        (2008985, (1, 1), 88, 96, 1888, 1960, 16, 1936, 2008928),
    ],
    ids=["0", "1.2", "1.1 with a sequence lock"],
)
def test_each_layout_of_the_reference_is_read_by_its_size(
    size: int,
    version: tuple[int, int] | None,
    count: int,
    uuids: int,
    slots: int,
    slot_size: int,
    used: int,
    status: int,
    processes: int,
) -> None:
    data = bytearray(size)
    struct.pack_into("<i", data, 0, 19920718)
    if version:
        struct.pack_into("<ii", data, 4, *version)
    struct.pack_into("<Q", data, count, 1)
    data[uuids : uuids + len(GPU)] = GPU.encode()
    struct.pack_into("<i", data, processes, 2)
    for place, state in enumerate((1, 0)):  # the second has ended: its figures stay behind
        struct.pack_into("<5Q", data, slots + place * slot_size + used, 1 * MIB, 2 * MIB, 3 * MIB, 0, 6 * MIB)
        struct.pack_into("<i", data, slots + place * slot_size + status, state)
    use = region.decode(bytes(data)).device(GPU)
    assert (use.context_bytes, use.module_bytes, use.buffer_bytes, use.used_bytes) == (1 * MIB, 2 * MIB, 3 * MIB, 6 * MIB)


def test_a_size_that_no_layout_has_is_refused() -> None:
    with pytest.raises(RegionError, match="size"):
        region.decode(struct.pack("<iii", 19920718, 1, 1).ljust(2000000, b"\0"))

"""The grant file: what the shim maps. Its layout is the C header's; here its content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import grant_file, shim_layout
from hami_node_agent.grant_file import Grant, GrantedDevice, GrantError

uuids = st.from_regex(r"GPU-[0-9a-f-]{1,40}", fullmatch=True)
devices = st.builds(
    lambda uuid, mib, sm, whole: GrantedDevice(uuid=uuid, memory_limit_mib=0 if whole else mib, sm_percent=sm, whole=whole),
    uuids,
    st.integers(1, shim_layout.GRANT_MEMORY_CEILING >> 20),
    st.integers(0, 100),
    st.booleans(),
)
grants = st.builds(
    Grant,
    pod_uid=st.just("0b8f2a0e-6a0b-4c43-9a5d-0e1f7b7a4c11"),
    container=st.from_regex(r"[a-z][a-z0-9-]{0,62}", fullmatch=True),
    devices=st.lists(devices, min_size=1, max_size=shim_layout.GRANT_DEVICES).map(tuple),
    region_path=st.just("/usr/local/vgpu/x.cache"),
    core_policy=st.sampled_from(["default", "force", "disable"]),
    priority=st.integers(0, 2**32 - 1),
    oversubscribe=st.booleans(),
)


def a_grant(**device: int | bool) -> Grant:
    fields = {"memory_limit_mib": 1000, "sm_percent": 30, **device}
    return Grant(pod_uid="u", container="main", devices=(GrantedDevice(uuid="GPU-a", **fields),))  # type: ignore[arg-type]


@given(grants)
def test_decoding_gives_back_what_was_encoded(grant: Grant) -> None:
    content = grant_file.encode(grant)
    assert len(content) == shim_layout.GRANT.size
    assert grant_file.decode(content) == grant


@given(grants, st.integers(min_value=0, max_value=shim_layout.GRANT_LIVE_OFFSET - 1), st.integers(1, 255))
def test_one_changed_byte_of_what_was_granted_is_found(grant: Grant, place: int, change: int) -> None:
    content = bytearray(grant_file.encode(grant))
    content[place] ^= change
    with pytest.raises(GrantError):
        grant_file.decode(bytes(content))


@pytest.mark.parametrize(
    "grant",
    [
        a_grant(memory_limit_mib=0),
        a_grant(memory_limit_mib=-1),
        a_grant(memory_limit_mib=2**31),
        a_grant(sm_percent=101),
        Grant(pod_uid="u", container="main", devices=()),
        Grant(pod_uid="u", container="main", devices=(GrantedDevice(uuid="GPU-a", memory_limit_mib=1, sm_percent=0),) * 17),
        Grant(pod_uid="u" * 60, container="main", devices=(GrantedDevice(uuid="GPU-a", memory_limit_mib=1, sm_percent=0),)),
        Grant(pod_uid="u", container="main", devices=(GrantedDevice(uuid="GPU-\u00e4", memory_limit_mib=1, sm_percent=0),)),
    ],
    ids=["no memory", "negative memory", "over the ceiling", "over 100 %", "no device", "17 devices", "long uid", "not ASCII"],
)
def test_what_the_shim_would_not_hold_to_is_refused(grant: Grant) -> None:
    with pytest.raises(GrantError):
        grant_file.encode(grant)


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_grant_or_raise_the_one_error(content: bytes) -> None:
    with pytest.raises(GrantError):
        grant_file.decode(content)

"""A grant file that processes have mapped is changed so that each of them sees the old limit or the new one, and nothing in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node_agent import grant_file, shim_layout
from hami_node_agent.grant_file import Grant, GrantedDevice, GrantError, Live

sizes = st.lists(st.tuples(st.integers(1, 2**20), st.integers(0, 99)), min_size=2, max_size=2)


def a_grant(found: list[tuple[int, int]], started: Grant | None = None) -> Grant:
    return Grant(
        pod_uid="u",
        container="main",
        devices=tuple(
            GrantedDevice(
                uuid=f"GPU-{place}",
                memory_limit_mib=mib,
                sm_percent=percent,
                started_memory_mib=started.devices[place].memory_limit_mib if started else None,
                started_percent=started.devices[place].sm_percent if started else None,
            )
            for place, (mib, percent) in enumerate(found)
        ),
        region_path="/usr/local/vgpu/x.cache",
    )


def apply(content: bytes, words: tuple[tuple[int, bytes], ...]) -> list[bytes]:
    """The file after each word."""
    states = [content]
    for place, word in words:
        assert (place % 8, len(word)) == (0, 8)
        content = content[:place] + word + content[place + 8 :]
        states.append(content)
    return states


@given(sizes, sizes)
def test_the_file_is_never_taken_for_whole_before_it_is(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    old = a_grant(before)
    new = grant_file.encode(a_grant(after, old))
    states = apply(grant_file.encode(old), grant_file.rewrite_words(grant_file.encode(old), new))
    assert grant_file.same_grant(states[-1], new)
    for state in states[1:-1]:
        assert shim_layout.read_uint(state, shim_layout.GRANT, "generation") % 2 == 1
    if len(states) > 1:
        assert grant_file.decode(states[-1]).generation == 2


@given(sizes, sizes, st.data())
def test_a_change_that_was_cut_short_is_finished_by_the_next_one(
    before: list[tuple[int, int]], after: list[tuple[int, int]], data: st.DataObject
) -> None:
    old = a_grant(before)
    new = grant_file.encode(a_grant(after, old))
    states = apply(grant_file.encode(old), grant_file.rewrite_words(grant_file.encode(old), new))
    torn = data.draw(st.sampled_from(states))
    assert {device.started_memory_mib or device.memory_limit_mib for device in grant_file.decode(torn, torn=True).devices} <= {
        mib for mib, _ in [*before, *after]
    }
    assert grant_file.same_grant(apply(torn, grant_file.rewrite_words(torn, new))[-1], new)


def test_a_torn_file_is_refused_unless_asked_for() -> None:
    content = grant_file.encode(a_grant([(1000, 30), (2000, 0)]))
    torn = apply(content, grant_file.rewrite_words(content, grant_file.encode(a_grant([(500, 30), (2000, 0)]))))[2]
    with pytest.raises(GrantError):
        grant_file.decode(torn)


def test_live_words_change_nothing_that_was_granted() -> None:
    grant = a_grant([(1000, 30), (2000, 0)])
    content = grant_file.encode(grant)
    live = Live(blocked_until_ns=77, limited=False, overhead_bytes=(5, 6))
    after = apply(content, grant_file.live_words(content, live))[-1]
    assert grant_file.decode(after) == grant
    assert grant_file.same_grant(after, content)
    assert grant_file.live_words(after, live) == ()
    assert shim_layout.read_uint(after, shim_layout.GRANT, "overhead_bytes", index=1) == 6
    assert shim_layout.read_uint(after, shim_layout.GRANT, "blocked_until_ns") == 77


def test_what_the_container_started_with_survives_a_resize() -> None:
    old = a_grant([(1000, 30), (2000, 0)])
    new = a_grant([(3000, 60), (2000, 0)], old)
    found = grant_file.decode(grant_file.encode(new)).devices
    assert (found[0].started_memory_mib, found[0].started_percent) == (1000, 30)
    assert replace(found[1], started_memory_mib=None, started_percent=None) == found[1]

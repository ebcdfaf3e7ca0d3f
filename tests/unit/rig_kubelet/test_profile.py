"""A rig's profile: what it says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import hami_rig
from hami_node_agent import profile as agent_profile
from hami_rig import profile
from hami_rig.profile import ProfileError

PROFILES = sorted((Path(hami_rig.__file__).parent / "profiles").glob("*.yaml"))


def test_the_default_has_three_nodes_with_cards() -> None:
    nodes = profile.read().expanded()
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert all(node.devices["count"] == 2 for node in nodes)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_shipped_profile_is_one_that_the_agent_reads(path: Path) -> None:
    nodes = profile.read(path).expanded()
    assert nodes
    for node in nodes:
        read = agent_profile.read(msgspec.yaml.encode(node.devices))
        assert read.count or read.devices


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [{count: 2}]", r"nodes\[0\]: accepted: either a name, or a prefix"),
        ("nodes: [{name: a, count: 2}]", r"nodes\[0\].count: 2 is not accepted with a name"),
        ("nodes: [{name: a}, {name: a}]", "'a' is given twice"),
        ("nodes: [{name: A_b}]", "'A_b' is no node name"),
        ("nodes: [{name: a, cards: 3}]", "cards"),
        ("nodes: [{prefix: a, count: 0}]", "count"),
        ("- what", "profile"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        profile.parse(text)


def test_a_vendor_that_is_not_known_is_refused_before_anything_starts() -> None:
    with pytest.raises(ProfileError, match=r"nodes\[0\]\.vendor: 'nvidai' is not accepted; accepted: .*nvidia"):
        profile.parse("nodes: [{name: a, vendor: nvidai}]")

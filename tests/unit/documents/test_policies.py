"""The pictures of the policies show what the code does now, and the page shows every picture."""

from pathlib import Path

import pytest

from hami_devices.requests import NODE_POLICIES
from tools import policy_pictures
from tools.policy_pictures import SCENES, Scene, played

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "policies.md").read_text()


def scene(name: str) -> Scene:
    return next(each for each in SCENES if each.name == name)


def test_the_pictures_are_current() -> None:
    for name, content in policy_pictures.pictures().items():
        assert (policy_pictures.FOLDER / name).read_text() == content, "run `make docs`"


@pytest.mark.parametrize("name", [each.name for each in SCENES])
def test_every_picture_is_on_the_page(name: str) -> None:
    assert f"pictures/policy-{name}.svg" in PAGE


def test_every_policy_has_its_picture() -> None:
    names = {each.name for each in SCENES}
    assert {f"node-{policy}" for policy in NODE_POLICIES} <= names
    assert {f"card-{policy}" for policy in ("binpack", "spread", "topology", "numa", "mutex", "chain", "weights")} <= names


def test_the_pictures_show_what_their_titles_say() -> None:
    def cards(name: str) -> dict[int, list[str]]:
        return {card: [pod.name for pod in pods] for (_, card), pods in played(scene(name)).held.items()}

    assert len(cards("card-binpack")) == 2
    assert len(cards("card-spread")) == 4
    assert [pod.name for pod in played(scene("card-mutex")).refused] == ["p5"]
    assert cards("card-topology") == {3: ["p1"], 1: ["p2"], 2: ["p2"]}
    assert cards("card-weights")[1] == ["large", "p1"]
    assert [pod.name for pod in played(scene("card-numa-bind")).refused] == ["p2"]
    assert {node for node, _ in played(scene("node-binpack")).held} == {"node a"}
    assert {node for node, _ in played(scene("node-spread")).held} == {"node a", "node b"}

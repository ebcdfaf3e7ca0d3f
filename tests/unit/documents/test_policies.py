"""The pictures of the policies show what the code does now, the page shows every picture, and each of its promises names its test."""

import re

import pytest

from hami_devices.requests import NODE_POLICIES
from tests.unit.documents.naming_tests import ROOT, assert_tests_exist, rows
from tools import policy_pictures
from tools.policy_pictures import SCENES, Scene, played

PAGE = (ROOT / "docs" / "policies.md").read_text()
PROMISES = rows(PAGE, "## What holds each promise")


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


@pytest.mark.parametrize(("promise", "named"), PROMISES, ids=[promise[:60] for promise, _ in PROMISES])
def test_a_promise_names_a_test_that_there_is(promise: str, named: str) -> None:
    assert promise
    assert_tests_exist(named)


def test_every_policy_and_rule_of_the_page_is_promised() -> None:
    """A paragraph or an item that begins with a bold word is a rule."""
    promised = " ".join(promise.lower() for promise, _ in PROMISES)
    rules = {found.lower().removesuffix("s") for found in re.findall(r"^(?:- )?\*\*([\w-]+)\.?\*\*", PAGE, flags=re.MULTILINE)}
    assert len(rules) >= 12
    assert {rule for rule in rules if rule not in promised} == set()

"""What ``hami explain`` shows of the scheduler's answer."""

from __future__ import annotations

from typing import Any

import msgspec

from hami_cli.explain import text
from hami_protocol.explanation import Explanation


def an_answer(**fields: Any) -> Explanation:
    """What the scheduler sends, decoded."""
    sent = {"pod": {"namespace": "default", "name": "p1", "uid": "u"}, "phase": "Pending", "node": "", "bindPhase": ""}
    return msgspec.convert({**sent, "summary": "0/30 nodes fit", **fields}, Explanation)


def test_the_causes_in_words_replace_the_short_reasons() -> None:
    shown = text(an_answer(reasons={"2/2 CardInsufficientMemory": 22}, causes=["22 nodes: no card with 90,000 MiB free"]))
    assert "  22 nodes: no card with 90,000 MiB free" in shown.splitlines()
    assert "CardInsufficientMemory" not in shown


def test_an_older_scheduler_has_the_short_reasons_alone() -> None:
    assert "  1 node: node unregistered" in text(an_answer(reasons={"node unregistered": 1})).splitlines()


def test_nodes_that_are_left_out_are_counted() -> None:
    nodes = [{"node": "n1", "fits": True, "score": 0.0}]
    assert text(an_answer(nodes=nodes, nodesLeftOut=1)).splitlines()[-1] == "... and 1 more node"
    assert text(an_answer(nodes=nodes, nodesLeftOut=1980)).splitlines()[-1] == "... and 1,980 more nodes"
    assert "more" not in text(an_answer(nodes=nodes, nodesLeftOut=0))


def test_names_that_no_component_reads_are_warned_of() -> None:
    shown = text(an_answer(warnings=["metadata.annotations[hami.io/node-scheduler-policy]: 'spraed' is not known\x1b[31m"]))
    assert "  warning: metadata.annotations[hami.io/node-scheduler-policy]: 'spraed' is not known" in shown
    assert "\x1b" not in shown

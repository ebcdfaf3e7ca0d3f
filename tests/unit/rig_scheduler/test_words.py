"""The sentence in a refused pod's condition, exactly as kube-scheduler builds it."""

from __future__ import annotations

from hami_rig.scheduler import verdict


def test_equal_reasons_are_counted_and_sorted_as_text() -> None:
    reasons = {"m1": ("not enough GPU memory",), "m2": ("no GPU of type A100",), "m3": ("not enough GPU memory",)}
    preempting = verdict.preemption_sentence(3, dict.fromkeys(reasons, "No preemption victims found for incoming pod"))
    assert verdict.sentence(3, reasons, preempting) == (
        "0/3 nodes are available: 1 no GPU of type A100, 2 not enough GPU memory. "
        "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
    )


def test_a_cluster_without_nodes_has_its_own_sentence() -> None:
    assert verdict.sentence(0, {}) == "no nodes available to schedule pods"


def test_an_events_note_is_cut_and_says_so() -> None:
    assert verdict.note("x" * 1024) == "x" * 1024
    assert len(verdict.note("x" * 2000)) == 1024
    assert verdict.note("x" * 2000).endswith(" ...")

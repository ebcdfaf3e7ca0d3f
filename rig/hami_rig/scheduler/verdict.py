"""What kube-scheduler writes about a pod that it could not place: the condition, and the one sentence in it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
NO_NODES = "no nodes available to schedule pods"
MAX_NOTE_CHARACTERS = 1024
"""An Event's note is cut here; the pod's condition is not."""


def sentence(node_count: int, reasons: Mapping[str, Iterable[str]], preemption: str = "") -> str:
    """``0/3 nodes are available: 1 …, 2 …. preemption: …``; reasons are counted, and sorted as text with their counts."""
    if not node_count:
        return NO_NODES
    text = f"0/{node_count} nodes are available:"
    if counted := count_reasons(reason for found in reasons.values() for reason in found):
        text += f" {counted}."
    return f"{text} preemption: {preemption}" if preemption else text


def preemption_sentence(node_count: int, reasons: Mapping[str, str]) -> str:
    """The part after ``preemption:`` where no node had victims."""
    return f"0/{node_count} nodes are available: {count_reasons(reasons.values())}."


def count_reasons(reasons: Iterable[str]) -> str:
    """Equal reasons counted: ``1 no GPU of type A100, 2 not enough GPU memory``."""
    return ", ".join(sorted(f"{count} {reason}" for reason, count in Counter(reasons).items()))


def note(text: str) -> str:
    """``text`` as an Event carries it."""
    return text if len(text) <= MAX_NOTE_CHARACTERS else text[: MAX_NOTE_CHARACTERS - 4] + " ..."


def condition(reason: str, message: str) -> dict[str, str]:
    """The condition of a pod that was not placed."""
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}

"""Publishes outcomes again that no pod's record shows: the stream may have lost them, and no agent reads there.

The registry writes an outcome onto its pod within seconds. What is still missing at two looks in succession is published again,
under its first id; whoever has it already changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from hami_node_agent.granting import Granting
from hami_node_agent.journal import Journal, ServedPod
from hami_node_agent.node_pods import NodePods
from hami_node_agent.resize import Resizer
from hami_protocol import keys
from hami_protocol.kubernetes import Pod
from hami_runtime.isolation import Isolation
from hami_runtime.lifecycle import sleep_until

LOOK_SECONDS: Final = 10.0
_DIGITS: Final = 19
_ALLOCATION: Final = 0
"""In place of a resize's generation, which is at least 1."""


class Republishing:
    """The outcomes of one node's pods."""

    def __init__(self, granting: Granting, resizer: Resizer, *, pods: NodePods, journal: Journal, isolation: Isolation) -> None:
        self._granting = granting
        self._resizer = resizer
        self._pods = pods
        self._journal = journal
        self._isolation = isolation

    async def run(self, stop: asyncio.Event) -> None:
        """Look until ``stop``."""
        before: set[tuple[str, int]] = set()
        while not await sleep_until(stop, LOOK_SECONDS):
            missing: set[tuple[str, int]] = set()
            for uid, pod in sorted(self._pods.live.items()):
                with self._isolation.item(f"outcome of pod {uid}"):
                    if (record := self._journal.pods.get(uid)) is not None:
                        missing |= {(uid, what) for what in unrecorded(pod, record)}
                        self._publish(pod, record, {what for of, what in missing & before if of == uid})
            before = missing

    def _publish(self, pod: Pod, record: ServedPod, outcomes: set[int]) -> None:
        if _ALLOCATION in outcomes:
            self._granting.republish(pod, record)
        if outcomes - {_ALLOCATION}:
            self._resizer.republish(record)


def unrecorded(pod: Pod, record: ServedPod) -> set[int]:
    """What the agent did for ``pod`` that its annotations do not show: ``_ALLOCATION``, or the generation of a resize."""
    annotations = pod.metadata.annotations
    found: set[int] = set()
    if (record.succeeded or record.failed) and annotations.get(keys.BIND_PHASE) == "allocating":
        found.add(_ALLOCATION)
    text = annotations.get(keys.RESIZE_GENERATION, "")
    generation = int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else 0
    if not record.resize_refused and generation < record.resize_generation:
        found.add(record.resize_generation)
    return found

"""Which pods hold what, and which wait, for who shows it: the ledger, in pages of whole nodes. Changes nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import msgspec

from hami_protocol.devices import PodRef
from hami_protocol.holdings import MOST_WAITING, PAGE_BYTES, CardCharge, Holdings, HoldingsQuestion, PodHolding, WaitingPod
from hami_protocol.kubernetes import Pod
from hami_protocol.pods import is_terminal
from hami_scheduler.picture import Picture
from hami_scheduler.placement import Phase
from hami_scheduler.placement.ledger import Entry


def holdings(question: HoldingsQuestion, picture: Picture, find_pod: Callable[[PodRef], Pod | None]) -> Holdings:
    """The page that ``question`` asks for.

    Args:
        question: behind which node it begins.
        picture: the state.
        find_pod: the pod as the cluster has it.
    """
    nodes = picture.state.nodes()
    found: list[PodHolding] = []
    size = 0
    for node in nodes[bisect_right(nodes, question.after) :]:
        for entry in picture.state.entries_on(node):
            if entry.phase is not Phase.NOMINATED:  # its room is its victims' until they have left
                found.append(told := _told(entry))
                size += len(msgspec.json.encode(told))
        if size >= PAGE_BYTES and node != nodes[-1]:
            return Holdings(holdings=tuple(found), next=node)
    waiting = _waiting(picture, find_pod)
    return Holdings(holdings=tuple(found), waiting=_bounded(waiting), waiting_count=len(waiting))


def _bounded(waiting: list[WaitingPod]) -> tuple[WaitingPod, ...]:
    """As many as one message has room for."""
    size = 0
    for place, pod in enumerate(waiting[:MOST_WAITING]):
        size += len(msgspec.json.encode(pod))
        if size > PAGE_BYTES:
            return tuple(waiting[:place])
    return tuple(waiting[:MOST_WAITING])


def _told(entry: Entry) -> PodHolding:
    charges = tuple(CardCharge(uuid=each.uuid, memory_mib=each.memory_mib, cores=each.cores, shares=each.shares) for each in entry.held)
    return PodHolding(pod=entry.pod, node=entry.node, phase=entry.phase.value, charges=charges)


def _waiting(picture: Picture, find_pod: Callable[[PodRef], Pod | None]) -> list[WaitingPod]:
    """Refused, and neither placed nor gone since; whose verdict is newest first."""
    found: list[WaitingPod] = []
    for refused in picture.verdicts.refusals():
        pod = find_pod(refused.pod)
        if pod is None or pod.metadata.uid != refused.pod.uid or pod.spec.node_name or is_terminal(pod):
            continue
        since = pod.metadata.creation_timestamp or ""
        found.append(WaitingPod(pod=refused.pod, since=since, summary=refused.summary, reasons=refused.reasons))
    return found

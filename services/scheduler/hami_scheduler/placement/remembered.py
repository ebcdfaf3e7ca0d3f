"""Verdicts on all nodes that outlive their pod: the next one that asks the same finds them, brought up to date where nodes have changed since.

What is said of a node depends on that node and on the request (``columns.likeness``) alone. So of ten thousand nodes only those are judged again
whose devices, charges, fences or availability were touched meanwhile, and equal pods of a Deployment cost the difference. Bounded: the request
that was asked longest ago is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from hami_devices.fit import NodeFit
from hami_devices.model import PodRequest
from hami_devices.reasons import Misfit
from hami_scheduler.placement.columns import Judgement, Scores, Verdicts, judge_all, likeness, node_score, node_scores
from hami_scheduler.placement.ledger import hold
from hami_scheduler.placement.table import Ints

if TYPE_CHECKING:
    from hami_scheduler.placement.state import ClusterState

MOST_REQUESTS: Final = 32
_MOST_TEXTS: Final = 4096
_MOST_LATEST: Final = 64
_FEW: Final = 2
"""So many nodes the specification judges faster than the columns do."""


class Changes:
    """When each node was last touched, counted in changes, not in seconds."""

    def __init__(self, room: int) -> None:
        self.count = 0
        self._last: Ints = np.zeros(room, np.int64)
        self._latest: list[int] = []
        """The nodes of the latest changes, the last one last."""

    def grow(self, room: int) -> None:
        """Make room for ``room`` nodes."""
        self._last = np.pad(self._last, (0, room - self._last.size))

    def touch(self, node: int) -> None:
        """Something about the node is other than before."""
        self.count += 1
        self._last[node] = self.count
        self._latest.append(node)
        if len(self._latest) > _MOST_LATEST:
            del self._latest[: _MOST_LATEST // 2]

    def since(self, count: int) -> list[int]:
        """The nodes that were touched after change number ``count``, rising."""
        passed = self.count - count
        if passed <= len(self._latest):
            return sorted(set(self._latest[len(self._latest) - passed :]))
        return np.flatnonzero(self._last > count).tolist()


@dataclass(slots=True)
class Known:
    """What is known of one request. Not to be changed by whom it is given to."""

    request: PodRequest
    verdicts: Verdicts
    change: int = 0
    """The last that it takes into account."""
    fits: dict[int, NodeFit] = field(default_factory=dict)
    """By node, where exactly it fits, as far as the specification was asked since the node was touched."""


class Remembered:
    """What was said of all nodes, by request; and how full they are."""

    def __init__(self) -> None:
        self._by_request: OrderedDict[Hashable, Known] = OrderedDict()
        self._scores: Scores = np.zeros(0)
        self._scored = 0

    @property
    def count(self) -> int:
        """How many requests are remembered."""
        return len(self._by_request)

    def verdicts(self, state: ClusterState, request: PodRequest, numbers: Ints) -> Known:
        """What holds now: of all nodes, or of those of ``numbers`` alone where they are few and nothing is remembered."""
        asked = likeness(request)
        known = self._by_request.pop(asked, None)
        if known is None and 2 * numbers.size < state.width:
            return Known(request, judge_all(state, request, numbers))
        if known is None or not _brought_up_to_date(known, state, request):
            known = Known(request, judge_all(state, request, slice(0, state.width)))
        known.change = state.changes.count
        self._by_request[asked] = known
        if len(self._by_request) > MOST_REQUESTS:
            self._by_request.popitem(last=False)
        return known

    def scores(self, state: ClusterState) -> Scores:
        """How full each node is (``columns.node_scores``). Not to be changed."""
        stale = state.changes.since(self._scored)
        if 2 * len(stale) >= state.width:
            self._scores = node_scores(state, slice(0, state.width))
        elif stale:
            if self._scores.size < state.width:
                self._scores = np.pad(self._scores, (0, state.width - self._scores.size))
            if len(stale) > _FEW:
                self._scores[stale] = node_scores(state, np.array(stale))
            else:
                for node in stale:
                    self._scores[node] = node_score(state, node)
        self._scored = state.changes.count
        return self._scores

    def validate(self, state: ClusterState) -> None:
        """Judge everything anew and compare.

        Raises:
            InvariantError: what is remembered is not what holds.
        """
        hold(np.array_equal(self.scores(state), node_scores(state, slice(0, state.width))), "remembered scores")
        for kept in list(self._by_request.values()):
            known = self.verdicts(state, kept.request, np.arange(state.width))
            fresh = judge_all(state, kept.request, slice(0, state.width))
            hold(_said(known.verdicts, state) == _said(fresh, state), "remembered verdicts")
            for node, fit in known.fits.items():
                hold(fit == state.fit(node, known.request), "remembered fit")


def _brought_up_to_date(known: Known, state: ClusterState, request: PodRequest) -> bool:
    """Judge anew what has changed; False where that is no less than everything."""
    stale = state.changes.since(known.change)
    verdicts = known.verdicts
    if 2 * len(stale) >= state.width or len(verdicts.texts) > _MOST_TEXTS:
        return False
    if known.request != request:  # in the names of containers, which no verdict has, but every assignment
        known.request = request
        known.fits.clear()
    verdicts.widen(state.width)
    if len(stale) > _FEW:
        known.fits.clear()
        verdicts.take(judge_all(state, request, np.array(stale)))
        return True
    for node in stale:
        known.fits.pop(node, None)
        if not state.known[node]:
            continue
        fit = state.fit(node, request)
        verdicts.settle(node, Judgement.of(fit))
        if not isinstance(fit, Misfit):
            known.fits[node] = fit
    return True


def _said(verdicts: Verdicts, state: ClusterState) -> list[tuple[str, bool, int, float]]:
    return [
        (
            verdicts.texts[verdicts.ids[node]],
            verdicts.unresolvable[verdicts.ids[node]],
            int(verdicts.able[node]),
            float(verdicts.bonus[node]),
        )
        for node in np.flatnonzero(state.known[: state.width]).tolist()
    ]

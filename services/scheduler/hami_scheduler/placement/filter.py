"""Which of the candidates is best: judged in columns, ordered by the node policy, and fitted exactly on the best. Changes nothing.

``binpack`` takes the fullest node that fits, ``spread`` the emptiest; ties end at the lowest name. In ``ranked`` placement all fitting nodes
are told, best first, and ``priorities`` turns their scores into the extender's 0 to 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hami_devices.fit import NodeFit
from hami_devices.model import PodRequest, Reason
from hami_devices.quota import Allowance, totals_of
from hami_devices.reasons import Misfit
from hami_protocol.events import NodeShortfall
from hami_scheduler.placement.columns import FITS, Scores, Verdicts, View, node_score
from hami_scheduler.placement.outcomes import Figures, Placement, Refusal
from hami_scheduler.placement.table import Ints

if TYPE_CHECKING:
    from hami_scheduler.placement.state import ClusterState

NEAREST: Final = 3
MOST_OVER_QUOTA: Final = 64
"""So many nodes are tried whose devices are all too large for what a quota leaves of a share in percent."""
MAX_PRIORITY: Final = 10
_SUMMARY_REASONS: Final = 4
_FREE_BITS: Final = 40
"""Room for MiB below the number of devices that would do."""


class Judged:
    """What the columns say about the candidates."""

    def __init__(self, state: ClusterState, request: PodRequest, candidates: Sequence[str]) -> None:
        if not request.asks:
            raise ValueError("a pod that asks for no device is not ours to place")
        self._state = state
        self.request = request
        self.numbers, self.unknown = state.numbers(candidates)
        every = self.numbers.size == state.width
        known = state.remembered.verdicts(state, request, self.numbers)
        self.verdicts: Verdicts = known.verdicts
        self.fits = known.fits
        self._places: View = slice(None) if every or not isinstance(self.verdicts.view, slice) else self.numbers
        self.ids: Ints = np.array(self.verdicts.ids[self._places])
        scores = state.remembered.scores(state)
        bonus = self.verdicts.bonus[self._places]
        self.scores: Scores = (scores if every else scores[self.numbers]) + (-bonus if request.node_policy == "spread" else bonus)

    @property
    def count(self) -> int:
        """How many nodes were asked about, each once."""
        return self.numbers.size + len(set(self.unknown))

    def best_first(self) -> Ints:
        """Places of the nodes that fit, in the order of the policy."""
        fitting = np.flatnonzero(self.ids == FITS)
        ranks = self._state.name_ranks()[self.numbers[fitting]]
        return fitting[np.lexsort((ranks, self._worse(fitting)))]

    def best(self) -> int | None:
        """Place of the best node that fits."""
        fitting = np.flatnonzero(self.ids == FITS)
        if not fitting.size:
            return None
        worse = self._worse(fitting)
        equal = fitting[worse == worse.min()]
        return int(equal[self._state.name_ranks()[self.numbers[equal]].argmin()])

    def _worse(self, places: Ints) -> Scores:
        scores = self.scores[places]
        return scores if self.request.node_policy == "spread" else -scores

    def name(self, place: int) -> str:
        """The node's name."""
        return str(self._state.names[self.numbers[place]])

    def exclude(self, place: int, misfit: Misfit) -> None:
        """The specification overrules the columns on this node."""
        self.ids[place] = self.verdicts.text_id(misfit.text, misfit.unresolvable)

    def exclude_by_quota(self, place: int, *, all_alike: bool) -> None:
        """The quota refuses what the pod would get on this node; and with it, where ``all_alike``, what it would get on any."""
        places = self.ids == FITS if all_alike else [place]
        self.ids[places] = self.verdicts.text_id(Reason.QUOTA, False)

    def refused(self) -> tuple[dict[str, str], dict[str, str]]:
        """Why not, by node: where a release may help, and where none does."""
        texts = np.array(self.verdicts.texts, dtype=object)
        hopeless = np.array(self.verdicts.unresolvable)[self.ids]
        failed = self._texts(texts, np.flatnonzero((self.ids != FITS) & ~hopeless))
        unresolvable = self._texts(texts, np.flatnonzero(hopeless))
        unresolvable.update(dict.fromkeys(self.unknown, str(Reason.UNREGISTERED)))
        return failed, unresolvable

    def _texts(self, texts: npt.NDArray[np.object_], places: Ints) -> dict[str, str]:
        names, ids = self._state.names[self.numbers[places]].tolist(), self.ids[places]
        if ids.size and (ids == ids[0]).all():
            return dict.fromkeys(names, texts[ids[0]])
        return dict(zip(names, texts[ids].tolist(), strict=True))

    def reasons(self) -> dict[str, int]:
        """How many nodes each text is said of, the most frequent first."""
        totals = np.bincount(self.ids, minlength=len(self.verdicts.texts)).tolist()
        counts: dict[str, int] = {}
        for number, total in enumerate(totals):
            if total and number != FITS:
                text = self.verdicts.texts[number]
                counts[text] = counts.get(text, 0) + total
        if self.unknown:
            counts[Reason.UNREGISTERED] = counts.get(Reason.UNREGISTERED, 0) + len(set(self.unknown))
        return {str(text): count for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}

    def nearest(self, limit: int) -> tuple[NodeShortfall, ...]:
        """The nodes that come nearest: the most devices that would do, then the most free memory on one, then the name.

        Nodes whose devices are not registered now come last: their figures are old, or there are none.
        """
        places = np.flatnonzero(self.ids != FITS)
        if not places.size or limit <= 0:
            return ()
        hopeless = np.array(self.verdicts.unresolvable)[self.ids[places]]
        able = self.verdicts.able[self._places][places]
        free = self._free_memory()[places]
        closeness = np.where(hopeless, 0, (able + 1) << _FREE_BITS) + free.clip(0, (1 << _FREE_BITS) - 1)
        closeness[self._absent(places)] = -1
        closest = closeness >= np.partition(closeness, -limit)[-limit] if places.size > limit else np.ones_like(hopeless)
        ranks = self._state.name_ranks()[self.numbers[places[closest]]]
        chosen = places[closest][np.lexsort((ranks, -closeness[closest]))[:limit]]
        return tuple(self._shortfall(int(place)) for place in chosen)

    def _absent(self, places: Ints) -> npt.NDArray[np.bool_]:
        """Which nodes have no devices registered now."""
        absent = np.array([text in (Reason.UNAVAILABLE, Reason.UNREGISTERED) for text in self.verdicts.texts])
        found: npt.NDArray[np.bool_] = absent[self.ids[places]]
        return found

    def _free_memory(self) -> Ints:
        vendors = [asked.vendor for container in self.request.containers for asked in container.requests]
        table = self._state.tables.get(vendors[0])
        if table is None or not table.places:
            return np.zeros(self.numbers.size, np.int64)
        free: Ints = (table.total_memory[:, self.numbers] - table.used_memory[:, self.numbers]).max(axis=0)
        return free

    def _shortfall(self, place: int) -> NodeShortfall:
        misfit = self._state.fit(int(self.numbers[place]), self.request)
        name = self.name(place)
        if not isinstance(misfit, Misfit):
            return NodeShortfall(node=name, reason=self.verdicts.texts[int(self.ids[place])])
        return NodeShortfall(node=name, reason=misfit.text, detail=detail_of(self._state, name, misfit))


def detail_of(state: ClusterState, node: str, misfit: Misfit) -> str:
    """The figures, and what the state knows more of the node where that is the reason."""
    vendor = misfit.request.vendor
    if Reason.FENCED in misfit.counts:
        return f"{misfit.detail}: {'; '.join(state.fences(node, vendor).values())}"
    if Reason.AGENT in misfit.counts:
        return f"{misfit.detail}: {state.held(node, vendor)}"
    if Reason.ALLOCATABLE in misfit.counts and (counted := state.allocatable(node, vendor)) is not None:
        allocatable, taken = counted
        return (
            f"{misfit.detail}: {allocatable}, of which {taken} are taken; it takes more once its device plugin has registered them, "
            "or once pods end"
        )
    return misfit.detail


def fit_allowed(
    state: ClusterState, node: int, request: PodRequest, allowance: Allowance | None, *, known: NodeFit | None = None
) -> NodeFit | Misfit | OverQuota:
    """The one-node judgement within what the namespace may have. Where that is too little for the devices that the policy takes first and
    a percentage is asked, smaller devices are tried. ``known`` is the judgement without it, where that has been made.
    """  # noqa: D205
    fit = known or state.fit(node, request)
    if allowance is None or isinstance(fit, Misfit) or (exceeded := _exceeded(allowance, fit)) is None:
        return fit
    sizes = {device.device.memory_mib for device in state.devices(str(state.names[node]))} if _in_percent(request) else set()
    for size in sorted(sizes, reverse=True)[1:]:
        fit = state.fit(node, request, most_memory_mib=size)
        if isinstance(fit, Misfit):
            break
        if _exceeded(allowance, fit) is None:
            return fit
    return OverQuota(exceeded)


@dataclass(frozen=True, slots=True)
class OverQuota:
    """The pod would fit on the node, and its namespace may not have so much."""

    detail: str


def _exceeded(allowance: Allowance, fit: NodeFit) -> str | None:
    totals = totals_of(fit.assignments, fit.charges, fit.running_charges, units=allowance.core_units)
    return allowance.exceeded(totals[0])


def _in_percent(request: PodRequest) -> bool:
    """Whether the amount depends on the device."""
    return any(asked.memory_percent for container in request.containers for asked in container.requests)


def judge(
    state: ClusterState,
    request: PodRequest,
    candidates: Sequence[str],
    *,
    ranked: bool,
    reasons: bool,
    allowance: Allowance | None = None,
) -> Placement | Refusal:
    """Find the best of ``candidates``; see ``ClusterState.judge``."""
    if len(candidates) == 1 and request.asks:
        return _judge_one(state, request, candidates[0], ranked=ranked, allowance=allowance)
    judged = Judged(state, request, candidates)
    exceeded = ""
    over_quota = 0
    while (best := judged.best()) is not None:
        node = int(judged.numbers[best])
        fit = fit_allowed(state, node, request, allowance, known=judged.fits.get(node))
        if isinstance(fit, Misfit):
            judged.exclude(best, fit)
            continue
        if isinstance(fit, OverQuota):
            over_quota += 1
            exceeded = exceeded or fit.detail
            judged.exclude_by_quota(best, all_alike=not _in_percent(request) or over_quota == MOST_OVER_QUOTA)
            continue
        failed, unresolvable = judged.refused() if reasons else ({}, {})
        fitting: tuple[tuple[str, float], ...] = ()
        if ranked:
            order = judged.best_first()
            names = state.names[judged.numbers[order]].tolist()
            fitting = tuple(zip(names, judged.scores[order].tolist(), strict=True))
        return Placement(
            node=judged.name(best),
            assignments=fit.assignments,
            charges=fit.charges,
            running_charges=fit.running_charges,
            traits=request.traits,
            score=float(judged.scores[best]),
            fitting_count=int((judged.ids == FITS).sum()),
            fitting=fitting,
            failed=failed,
            unresolvable=unresolvable,
        )
    return _refusal(judged, exceeded)


def with_bonus(score: float, fit: NodeFit, request: PodRequest) -> float:
    """The node's score with what the vendors add to it, so that better is better under either policy."""
    return score - fit.bonus if request.node_policy == "spread" else score + fit.bonus


def _judge_one(
    state: ClusterState, request: PodRequest, name: str, *, ranked: bool, allowance: Allowance | None = None
) -> Placement | Refusal:
    """One candidate, as at bind: the specification alone, at a quarter of the columns' cost."""
    node = state.number(name)
    fit = None if node is None else fit_allowed(state, node, request, allowance)
    nearest: tuple[NodeShortfall, ...] = ()
    if node is None or fit is None:
        text, unresolvable = str(Reason.UNREGISTERED), True
    elif isinstance(fit, Misfit):
        text, unresolvable = str(fit.text), fit.unresolvable
        nearest = (NodeShortfall(node=name, reason=text, detail=detail_of(state, name, fit)),)
    elif isinstance(fit, OverQuota):
        text, unresolvable = str(Reason.QUOTA), False
        nearest = (NodeShortfall(node=name, reason=text, detail=fit.detail),)
    else:
        score = with_bonus(node_score(state, node), fit, request)
        return Placement(
            node=name,
            assignments=fit.assignments,
            charges=fit.charges,
            running_charges=fit.running_charges,
            traits=request.traits,
            score=score,
            fitting=((name, score),) if ranked else (),
        )
    said, reasons = {name: text}, {text: 1}
    return Refusal(
        failed={} if unresolvable else said,
        unresolvable=said if unresolvable else {},
        reasons=reasons,
        reckon=lambda: Figures(summarise(1, reasons, nearest), nearest),
    )


def _refusal(judged: Judged, exceeded: str) -> Refusal:
    failed, unresolvable = judged.refused()
    reasons = judged.reasons()

    def reckon() -> Figures:
        nearest = () if exceeded else judged.nearest(NEAREST)
        summary = summarise(judged.count, reasons, nearest)
        return Figures(f"{summary}. {exceeded}" if exceeded else summary, nearest)

    return Refusal(failed=failed, unresolvable=unresolvable, reasons=reasons, reckon=reckon)


def summarise(nodes: int, reasons: Mapping[str, int], nearest: Sequence[NodeShortfall]) -> str:
    """One sentence: on how many nodes it was tried, why not, and what comes nearest."""
    said = [f"{count} {text}" for text, count in list(reasons.items())[:_SUMMARY_REASONS]]
    left = sum(list(reasons.values())[_SUMMARY_REASONS:])
    if left:
        said.append(f"{left} for other reasons")
    sentence = f"0/{nodes} nodes fit: {'; '.join(said) or 'there is none'}"
    return f"{sentence}. Nearest is {nearest[0].node}: {nearest[0].detail}" if nearest and nearest[0].detail else sentence


def priorities(fitting: Sequence[tuple[str, float]], node_policy: str) -> dict[str, int]:
    """The extender's scores for nodes that fit: 10 for the best by the policy, 0 for the worst, between them in proportion."""
    if not fitting:
        return {}
    scores = [score for _, score in fitting]
    low, high = min(scores), max(scores)
    if low == high:
        return {node: MAX_PRIORITY for node, _ in fitting}
    best, worst = (low, high) if node_policy == "spread" else (high, low)
    return {node: round(MAX_PRIORITY * (score - worst) / (best - worst)) for node, score in fitting}

"""Whom to evict so that a pod fits on a node: the least harm, then the fewest. Changes nothing.

Less harm is: no disruption budget is overdrawn; the highest priority among the victims is as low as can be; then they are as few as can be, since
victims on one card are worth more than one on each; then the sum of their priorities is the lowest. Sets are tried by size, so that the
smallest is found; where there are too many to try, everybody goes and whoever can is given back, from the highest priority down.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hami_devices.fit import NodeFit
from hami_devices.model import PodRequest
from hami_devices.quota import Allowance
from hami_devices.quota_scopes import PodTraits
from hami_protocol.devices import PodRef
from hami_scheduler.placement.filter import fit_allowed
from hami_scheduler.placement.outcomes import Placement

if TYPE_CHECKING:
    from hami_scheduler.placement.state import ClusterState

MOST_SETS: Final = 200
"""Tried on one node, about 0.1 ms each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Victim:
    """A pod that may be evicted for another one."""

    pod: PodRef
    priority: int
    budgets: tuple[str, ...] = ()
    """Names of the disruption budgets that its eviction is charged to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """Whom to evict on one node, and what the pod gets when they are gone."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def harm(self) -> tuple[int, int, int, str]:
        """Less is better."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities, default=0), len(priorities), sum(priorities), self.placement.node


def on_node(
    state: ClusterState,
    request: PodRequest,
    node: str,
    victims: Sequence[Victim],
    *,
    uid: str,
    leaving: Collection[str] = (),
    budgets: Mapping[str, int] | None = None,
    allowance: Allowance | None = None,
) -> Preemption | None:
    """Whom to evict on ``node`` for the pod with ``uid``; None where nobody's eviction lets it in. No victims where it fits without.

    Args:
        state: the cluster.
        request: what the pod asks.
        node: where.
        victims: who may be evicted there: lower in priority, and bound.
        uid: of the pod; what it holds itself counts as free.
        leaving: UIDs of pods there that go in any case.
        budgets: by name, how many more evictions each allows; one that is not named allows none.
        allowance: what the pod's namespace may have.
    """
    number = state.number(node)
    if number is None:
        return None
    vendors = {asked.vendor for container in request.containers for asked in container.requests}
    able = [victim for victim in victims if _holds(state, victim, vendors)]
    left = budgets or {}
    able = [victim for victim in able if all(left.get(budget, 0) > 0 for budget in victim.budgets)]
    trial = _Trial(state, request, number, (uid, *leaving), left, allowance)
    if (fit := trial.without(())) is not None:
        return _preemption(node, (), fit, request.traits)
    for level in sorted({victim.priority for victim in able}):
        pool = sorted((victim for victim in able if victim.priority <= level), key=lambda victim: (victim.priority, victim.pod.uid))
        if trial.without(pool, overdraw=True) is not None and (found := _smallest(trial, node, pool)) is not None:
            return found  # else what would do overdraws a budget
    return None


def _holds(state: ClusterState, victim: Victim, vendors: Collection[str]) -> bool:
    entry = state.entry(victim.pod.uid)
    return entry is not None and any(charge.vendor in vendors for charge in entry.held)


def _smallest(trial: _Trial, node: str, pool: Sequence[Victim]) -> Preemption | None:
    tried = 0
    for size in range(1, len(pool) + 1):
        found: list[Preemption] = []
        for chosen in itertools.combinations(pool, size):
            tried += 1
            if tried > MOST_SETS:
                return found[0] if found else _given_back(trial, node, pool)
            if (fit := trial.without(chosen)) is not None:
                found.append(_preemption(node, chosen, fit, trial.request.traits))
        if found:
            return min(found, key=lambda preemption: preemption.harm)
    return None


def _given_back(trial: _Trial, node: str, pool: Sequence[Victim]) -> Preemption | None:
    """All of ``pool`` but those without whom it fits too, the highest in priority given back first."""
    chosen = list(pool)
    for victim in reversed(pool):
        rest = [other for other in chosen if other is not victim]
        if trial.without(rest, overdraw=True) is not None:
            chosen = rest
    fit = trial.without(chosen)
    return None if fit is None else _preemption(node, chosen, fit, trial.request.traits)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One pod, tried on one node without some others."""

    state: ClusterState
    request: PodRequest
    number: int
    gone: tuple[str, ...]
    budgets: Mapping[str, int]
    allowance: Allowance | None

    def without(self, victims: Sequence[Victim], *, overdraw: bool = False) -> NodeFit | None:
        """What the pod would get if ``victims`` were gone; None where it does not fit, or a budget does not allow that they go."""
        if not overdraw and not within(victims, self.budgets):
            return None
        with self.state.without(*self.gone, *(victim.pod.uid for victim in victims)):
            fit = fit_allowed(self.state, self.number, self.request, self.allowance)
        return fit if isinstance(fit, NodeFit) else None


def within(victims: Iterable[Victim], budgets: Mapping[str, int]) -> bool:
    """Whether all of ``victims`` may go at once."""
    spent = Counter(budget for victim in victims for budget in victim.budgets)
    return all(count <= budgets.get(budget, 0) for budget, count in spent.items())


def _preemption(node: str, victims: Iterable[Victim], fit: NodeFit, traits: PodTraits) -> Preemption:
    placement = Placement(
        node=node,
        assignments=fit.assignments,
        charges=fit.charges,
        running_charges=fit.running_charges,
        traits=traits,
        score=0.0,
        fitting_count=0,
    )
    return Preemption(victims=tuple(victims), placement=placement)

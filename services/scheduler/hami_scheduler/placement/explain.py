"""Why a pod would be placed where it would be, or nowhere: node by node and card by card, made when somebody asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hami_devices.fit import fit_device
from hami_devices.model import DeviceRequest, DeviceState, PodRequest, Selectors
from hami_devices.order import read_order
from hami_devices.reasons import Misfit
from hami_devices.scores import node_score
from hami_protocol.explanation import DeviceExplanation, NodeExplanation
from hami_scheduler.placement import filter as filtering
from hami_scheduler.placement.columns import free_in_all
from hami_scheduler.placement.outcomes import PlacementExplanation

if TYPE_CHECKING:
    from hami_scheduler.placement.state import ClusterState


def explain(state: ClusterState, request: PodRequest, nodes: Sequence[str] | None, *, limit: int) -> PlacementExplanation:
    """Explain ``request`` on ``nodes``; see ``ClusterState.explain``."""
    judged = filtering.Judged(state, request, state.nodes() if nodes is None else nodes)
    reasons = judged.reasons()
    nearest = judged.nearest(limit)
    best = [judged.name(int(place)) for place in judged.best_first()[:limit]]
    told = [*best, *(shortfall.node for shortfall in nearest)][:limit] if nodes is None else list(dict.fromkeys(nodes))
    if best:
        count = len(judged.numbers) - sum(reasons.values()) + len(set(judged.unknown))
        summary = f"{count}/{judged.count} nodes fit; {best[0]} is the best under {request.node_policy}"
    else:
        summary = filtering.summarise(judged.count, reasons, nearest)
        free_mib, cards = free_in_all(state, request, judged.numbers)
        summary += f". Free in all on cards that the pod accepts: {free_mib} MiB on {cards} cards"
    return PlacementExplanation(
        node=best[0] if best else "", summary=summary, reasons=reasons, nodes=tuple(_node(state, name, request) for name in told)
    )


def _node(state: ClusterState, name: str, request: PodRequest) -> NodeExplanation:
    number = state.number(name)
    first = next(asked for container in request.containers for asked in container.requests)
    if number is None:
        return NodeExplanation(
            node=name, fits=False, score=0.0, reason="node unregistered", detail="no such node is known", unresolvable=True
        )
    states = state.devices(name)
    score = node_score(states)
    fit = state.fit(number, request)
    if not isinstance(fit, Misfit):
        return NodeExplanation(
            node=name, fits=True, score=filtering.with_bonus(score, fit, request), devices=_devices(states, first, request)
        )
    return NodeExplanation(
        node=name,
        fits=False,
        score=score,
        reason=fit.text,
        detail=filtering.detail_of(state, name, fit),
        unresolvable=fit.unresolvable,
        devices=_devices(fit.devices or states, fit.request, request),
    )


def _devices(states: Sequence[DeviceState], asked: DeviceRequest, request: PodRequest) -> tuple[DeviceExplanation, ...]:
    selectors = request.selectors.get(asked.vendor, Selectors())
    exclusive = read_order(request.device_policy, selectors.numa_bind).exclusive
    return tuple(
        DeviceExplanation(
            uuid=state.device.uuid,
            type=state.device.type,
            reason=str(fit_device(state, asked, selectors=selectors, exclusive=exclusive) or ""),
            free_shares=state.device.shares - state.used_shares,
            free_memory_mib=state.device.memory_mib - state.used_memory_mib,
            free_cores=state.device.cores - state.used_cores,
        )
        for state in states
        if state.vendor == asked.vendor
    )

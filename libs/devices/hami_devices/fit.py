"""Whether a pod's request fits on one node, and on which of its devices: the specification of every placement decision. Pure.

``fit_device`` judges one device, ``fit_container`` one container's request of one vendor, ``fit_node`` the whole pod. They judge and change
nothing. Invariants: no device is charged over its memory, cores or shares; more room never turns a fit into a misfit; the order in which
devices are given does not matter. The scheduler's columns answer the same for all nodes at once and are tested against this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami_devices import mig
from hami_devices.accounting import Account
from hami_devices.model import Charge, DeviceRequest, DeviceState, PodRequest, Reason, Selectors, Weights
from hami_devices.order import Order, in_order, read_order
from hami_devices.reasons import Misfit
from hami_devices.rules import Choice, Demand, Outcome, Picked, Rules
from hami_devices.scores import device_score
from hami_devices.selectors import misfit as selector_misfit
from hami_devices.topology import PairScores, mean_score, pick_linked
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment
from hami_protocol.registration import clean

_ANY = Selectors()
WHOLE_CORES = 100
LINK_WEIGHT = 10.0
"""Points of the node score for a point of a pair's score: the next better kind of link (10) outweighs any difference in use (30)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFit:
    """Where on the node the pod fits."""

    assignments: tuple[VendorAssignment, ...]
    """One per vendor asked, each with an entry for every container of the pod."""
    charges: tuple[Charge, ...]
    """What the pod is charged while its init containers may run."""
    running_charges: tuple[Charge, ...]
    """What is left of it when they are over."""
    bonus: float = 0.0
    """How much better than others this node is, in points of the node score, by the vendors' own rules."""


def fit_device(state: DeviceState, request: DeviceRequest, *, selectors: Selectors = _ANY, exclusive: bool = False) -> Reason | None:
    """Why one share of ``request`` does not fit on the device; None if it does. The first reason that holds, in this order."""
    if (reason := _not_meant(state, request, selectors)) is not None:
        return reason
    device = state.device
    need = demand(state, request)
    if isinstance(need, Reason):
        return need
    if device.shares - state.used_shares < need.slots:
        return Reason.SLOTS
    if exclusive and state.used_shares:
        return Reason.EXCLUSIVE
    if device.memory_mib - state.used_memory_mib < need.memory_mib:
        return Reason.MEMORY
    if need.ignores_cores:
        return None
    return _cores_misfit(state, need.cores)


def _not_meant(state: DeviceState, request: DeviceRequest, selectors: Selectors) -> Reason | None:
    """Why the device would not do even if it were free."""
    device = state.device
    if not device.healthy:
        return request.rules.unhealthy or Reason.HEALTH
    if state.cordoned:
        return Reason.CORDON
    if state.vendor != request.vendor:
        return Reason.TYPE
    if selectors is not _ANY and (reason := selector_misfit(selectors, device)) is not None:
        return reason
    return Reason.MODE if request.device_mode and device.mode != request.device_mode else None


def demand(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    """What one share of ``request`` takes of the device; why the device cannot give it, where the vendor says so."""
    if request.rules.demand is not None:
        return request.rules.demand(state, request)
    if state.device.mode == mig.MODE:
        return _instance(state, request)
    return Demand(memory_mib=request.memory_on(state.device.memory_mib), cores=request.cores)


def _instance(state: DeviceState, request: DeviceRequest) -> Demand | Reason:
    """Which MIG instance a share becomes; its memory and cores are what is booked. A card with a share of which nobody knows where it lies is out."""
    held = mig.marked(state.marks)
    if len(held) < state.used_shares:
        return Reason.HEALTH
    profiles = state.device.mig_profiles
    memory_mib = request.memory_on(state.device.memory_mib)
    if request.whole:  # the largest is what the card has left beside its own needs
        memory_mib = min(memory_mib, max((profile.memory_mib for profile in profiles), default=memory_mib))
    found = mig.choose(profiles, held, memory_mib)
    if found is None:
        return Reason.MIG
    profile, instance = found
    return Demand(memory_mib=profile.memory_mib, cores=profile.cores, instance=instance)


def _cores_misfit(state: DeviceState, cores: int) -> Reason | None:
    total = state.device.cores
    if not cores:
        return Reason.CORES_EXHAUSTED if total and state.used_cores >= total else None
    if total - state.used_cores < cores:
        return Reason.CORES
    return Reason.EXCLUSIVE if cores == WHOLE_CORES == total and state.used_shares else None


def fit_container(
    states: Iterable[DeviceState],
    request: DeviceRequest,
    *,
    order: Order,
    selectors: Selectors = _ANY,
    weights: Weights = Weights(),  # noqa: B008  # frozen
    pair_scores: PairScores | None = None,
    container: str = "",
    taken: Collection[str] = (),
) -> tuple[DeviceState, ...] | Misfit:
    """Which devices of the vendor one container gets, in the order in which they were taken; or why it gets none.

    Args:
        states: the node's devices of the request's vendor, in any order.
        request: what the container asks of that vendor.
        order: in which order they are tried.
        selectors: what the pod accepts; with ``numa_bind``, all devices come from one NUMA node.
        weights: for the score by which they are ordered.
        pair_scores: how well pairs are linked, where the node says so.
        container: its name, for the misfit.
        taken: UUIDs of devices that it must not get, since other containers of its pod have them.
    """
    tried = in_order(order, [(state, device_score(state, weights, (request,))) for state in states])
    boards = _boards_in_use(tried, request.rules) if order.exclusive else frozenset()
    counts: dict[Reason, int] = {}
    groups: dict[int, list[DeviceState]] = {}
    for state in tried:
        reason = Reason.CUSTOM if state.device.uuid in taken else fit_device(state, request, selectors=selectors, exclusive=order.exclusive)
        if reason is None and _board(state, request.rules) in boards:
            reason = Reason.EXCLUSIVE
        if reason is not None:
            counts[reason] = counts.get(reason, 0) + 1
            continue
        group = groups.setdefault(state.device.numa if selectors.numa_bind else 0, [])
        group.extend(_times(state, request, selectors))
        if not order.linked and request.rules.pick is None and len(group) >= request.count:
            return tuple(group[: request.count])
    for group in groups.values():
        if len(group) >= request.count:
            picked = _picked(tried, group, request, pair_scores or {})
            if not isinstance(picked, Mapping):
                return tuple(picked)
            return Misfit(counts={**counts, **picked}, devices=tuple(tried), request=request, selectors=selectors, container=container)
    most = max((len(group) for group in groups.values()), default=0)
    apart = sum(len(group) for group in groups.values()) - most
    if apart:
        counts[Reason.NUMA] = apart
    if most:
        counts[Reason.PARTIAL] = most
    return Misfit(counts=counts, devices=tuple(tried), request=request, selectors=selectors, container=container)


def _times(state: DeviceState, request: DeviceRequest, selectors: Selectors) -> Iterator[DeviceState]:
    """The device, as often as one container may have a share of it: once, unless each share is a MIG instance of its own."""
    yield state
    if state.device.mode != mig.MODE:
        return
    for _ in range(1, request.count):
        state = charged(state, share_of(state, request))
        if fit_device(state, request, selectors=selectors) is not None:
            return
        yield state


def _picked(tried: Sequence[DeviceState], fitting: Sequence[DeviceState], request: DeviceRequest, pair_scores: PairScores) -> Picked:
    if request.rules.pick is not None:
        return request.rules.pick(Choice(devices=_by_place(tried), fitting=tuple(fitting), request=request))
    return [fitting[place] for place in pick_linked([state.device.uuid for state in fitting], request.count, pair_scores)]


def fit_node(states: Sequence[DeviceState], request: PodRequest, *, pair_scores: PairScores | None = None) -> NodeFit | Misfit:
    """Whether the whole pod fits on a node with these devices (of all vendors), and where; or the first container that does not.

    Ordinary init containers are fitted each on what is left beside the sidecars started before it; sidecars and application containers
    add up. A device may serve an init container and, later, an application container.
    """
    running = {(state.vendor, state.device.uuid): state for state in states}
    account = Account()
    held: dict[str, dict[int, tuple[DeviceShare, ...]]] = {}
    chosen_by: dict[str, list[tuple[DeviceState, ...]]] = {}
    rules: dict[str, Rules] = {}
    links = 0.0
    asks = [(place, container, asked) for place, container in enumerate(request.containers) for asked in container.requests]
    for left, (place, container, asked) in zip(reversed(range(len(asks))), asks, strict=True):
        vendor = asked.vendor
        rules[vendor] = asked.rules
        candidates = [state for state in running.values() if state.vendor == vendor]
        if not candidates:
            return Misfit.bare(Reason.UNREGISTERED, asked, container.name)
        if sum(state.device.shares if state.device.mode == mig.MODE else 1 for state in candidates) < asked.count:
            return Misfit.bare(Reason.DEVICE_COUNT, asked, container.name, devices=tuple(candidates))
        selectors = request.selectors.get(vendor, _ANY)
        chosen = fit_container(
            candidates,
            asked,
            order=read_order(request.device_policy, selectors.numa_bind),
            selectors=selectors,
            weights=request.weights,
            pair_scores=pair_scores,
            container=container.name,
            taken=[uuid for owner, uuid in account.running if owner == vendor] if asked.rules.apart else (),
        )
        if isinstance(chosen, Misfit):
            return chosen
        shares = tuple(share_of(state, asked) for state in chosen)
        held.setdefault(vendor, {})[place] = shares
        chosen_by.setdefault(vendor, []).append(chosen)
        if pair_scores and asked.rules.bonus is None and read_order(request.device_policy, selectors.numa_bind).linked:
            links += LINK_WEIGHT * mean_score([state.device.uuid for state in chosen], pair_scores)
        account.add(container.kind, vendor, shares)
        if left:
            _charge(running, container.kind, chosen, shares)
    charges, running_charges = account.charges()
    return NodeFit(
        assignments=tuple(_assignment(request, vendor, shares) for vendor, shares in held.items()),
        charges=charges,
        running_charges=running_charges,
        bonus=links + sum(_bonus(rules[vendor], vendor, containers, states, request) for vendor, containers in chosen_by.items()),
    )


def _charge(
    running: dict[tuple[str, str], DeviceState], kind: ContainerKind, chosen: Sequence[DeviceState], shares: Sequence[DeviceShare]
) -> None:
    """Leave to the containers that follow what a container of this kind leaves them."""
    for state, share in zip(chosen, shares, strict=True):
        slot = state.vendor, share.uuid
        if kind is not ContainerKind.INIT:
            running[slot] = charged(state, share)
        elif share.instance is not None:  # which is there until the pod has ended
            before = running[slot]
            running[slot] = dataclasses.replace(before, marks=with_mark(before.marks, mig.mark(share.instance), 1))


def _bonus(
    rules: Rules, vendor: str, containers: Sequence[tuple[DeviceState, ...]], states: Sequence[DeviceState], pod: PodRequest
) -> float:
    if rules.bonus is None:
        return 0.0
    devices = _by_place([state for state in states if state.vendor == vendor])
    return rules.bonus(Outcome(containers=tuple(containers), devices=devices, pod=pod))


def _by_place(states: Iterable[DeviceState]) -> tuple[DeviceState, ...]:
    return tuple(sorted(states, key=lambda state: (state.device.index, state.device.uuid)))


def _board(state: DeviceState, rules: Rules) -> str:
    return "" if rules.board is None else rules.board(state)


def _boards_in_use(states: Iterable[DeviceState], rules: Rules) -> frozenset[str]:
    return frozenset(board for state in states if state.used_shares and (board := _board(state, rules)))


def with_mark(marks: tuple[tuple[str, int], ...], mark: str, slots: int) -> tuple[tuple[str, int], ...]:
    """``marks`` with so many more slots marked so; a negative number takes them off."""
    counts = dict(marks)
    counts[mark] = counts.get(mark, 0) + slots
    return tuple(sorted((each, count) for each, count in counts.items() if count))


def charged(state: DeviceState, share: DeviceShare) -> DeviceState:
    """The device with one more share on it."""
    marks = with_mark(state.marks, share.mark, share.slots) if share.mark else state.marks
    if share.instance is not None:
        marks = with_mark(marks, mig.mark(share.instance), 1)
    return dataclasses.replace(
        state,
        used_shares=state.used_shares + share.slots,
        used_memory_mib=state.used_memory_mib + share.memory_mib,
        used_cores=state.used_cores + share.cores,
        marks=marks,
    )


def share_of(state: DeviceState, request: DeviceRequest) -> DeviceShare:
    """One share of ``request`` on a device that it fits on.

    Raises:
        ValueError: it does not.
    """
    need = demand(state, request)
    if isinstance(need, Reason):
        raise ValueError(f"{state.device.uuid}: {need}")
    return DeviceShare(
        uuid=state.device.uuid,
        type=clean(state.device.type) if request.rules.names_model else state.vendor,
        memory_mib=need.memory_mib,
        cores=need.cores,
        cores_percent=need.cores_percent,
        slots=need.slots,
        mark=need.mark,
        instance=need.instance,
    )


def _assignment(request: PodRequest, vendor: str, shares: dict[int, tuple[DeviceShare, ...]]) -> VendorAssignment:
    return VendorAssignment(
        vendor=vendor,
        containers=tuple(
            ContainerShares(container=container.name, kind=container.kind, shares=shares.get(place, ()))
            for place, container in enumerate(request.containers)
        ),
    )

"""Whether a pod's request fits on one node, and on which of its devices: the specification of every placement decision. Pure.

``fit_device`` judges one device, ``fit_container`` one container's request of one vendor, ``fit_node`` the whole pod. They judge and change
nothing. Invariants: no device is charged over its memory, cores or shares; more room never turns a fit into a misfit; the order in which
devices are given does not matter. The scheduler's columns answer the same for all nodes at once and are tested against this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hami_devices.accounting import Account
from hami_devices.model import Charge, DeviceRequest, DeviceState, PodRequest, Reason, Selectors, Weights
from hami_devices.nvidia import MIG_MODE
from hami_devices.order import Order, in_order, read_order
from hami_devices.reasons import Misfit
from hami_devices.scores import device_score
from hami_devices.selectors import misfit as selector_misfit
from hami_devices.topology import PairScores, pick_linked
from hami_protocol.devices import ContainerKind, ContainerShares, DeviceShare, VendorAssignment

_ANY = Selectors()
WHOLE_CORES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFit:
    """Where on the node the pod fits."""

    assignments: tuple[VendorAssignment, ...]
    """One per vendor asked, each with an entry for every container of the pod."""
    charges: tuple[Charge, ...]
    """What the pod is charged while its init containers may run."""
    running_charges: tuple[Charge, ...]
    """What is left of it when they are over."""


def fit_device(state: DeviceState, request: DeviceRequest, *, selectors: Selectors = _ANY, exclusive: bool = False) -> Reason | None:
    """Why one share of ``request`` does not fit on the device; None if it does. The first reason that holds, in this order."""
    device = state.device
    if not device.healthy:
        return Reason.HEALTH
    if state.cordoned:
        return Reason.CORDON
    if state.vendor != request.vendor:
        return Reason.TYPE
    if (reason := selector_misfit(selectors, device)) is not None:
        return reason
    if state.used_shares >= device.shares:
        return Reason.SLOTS
    if exclusive and state.used_shares:
        return Reason.EXCLUSIVE
    if device.memory_mib - state.used_memory_mib < request.memory_on(device.memory_mib):
        return Reason.MEMORY
    if (reason := _cores_misfit(state, request.cores)) is not None:
        return reason
    return Reason.MIG if device.mode == MIG_MODE else None


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
    """
    tried = in_order(order, [(state, device_score(state, weights, (request,))) for state in states])
    counts: dict[Reason, int] = {}
    groups: dict[int, list[DeviceState]] = {}
    for state in tried:
        reason = fit_device(state, request, selectors=selectors, exclusive=order.exclusive)
        if reason is not None:
            counts[reason] = counts.get(reason, 0) + 1
            continue
        group = groups.setdefault(state.device.numa if selectors.numa_bind else 0, [])
        group.append(state)
        if not order.linked and len(group) == request.count:
            return tuple(group)
    for group in groups.values():
        if len(group) >= request.count:
            places = pick_linked([state.device.uuid for state in group], request.count, pair_scores or {})
            return tuple(group[place] for place in places)
    most = max((len(group) for group in groups.values()), default=0)
    apart = sum(len(group) for group in groups.values()) - most
    if apart:
        counts[Reason.NUMA] = apart
    if most:
        counts[Reason.PARTIAL] = most
    return Misfit(counts=counts, devices=tuple(tried), request=request, selectors=selectors, container=container)


def fit_node(states: Sequence[DeviceState], request: PodRequest, *, pair_scores: PairScores | None = None) -> NodeFit | Misfit:
    """Whether the whole pod fits on a node with these devices (of all vendors), and where; or the first container that does not.

    Ordinary init containers are fitted each on what is left beside the sidecars started before it; sidecars and application containers
    add up. A device may serve an init container and, later, an application container.
    """
    base = {(state.vendor, state.device.uuid): state for state in states}
    running = dict(base)
    account = Account()
    held: dict[str, dict[int, tuple[DeviceShare, ...]]] = {}
    for place, container in enumerate(request.containers):
        taken: list[tuple[tuple[str, str], int, int]] = []
        for asked in container.requests:
            held.setdefault(asked.vendor, {})
            candidates = [state for state in running.values() if state.vendor == asked.vendor]
            if not candidates:
                return Misfit.bare(Reason.UNREGISTERED, asked, container.name)
            if len(candidates) < asked.count:
                return Misfit.bare(Reason.DEVICE_COUNT, asked, container.name, devices=tuple(candidates))
            selectors = request.selectors.get(asked.vendor, _ANY)
            chosen = fit_container(
                candidates,
                asked,
                order=read_order(request.device_policy, selectors.numa_bind),
                selectors=selectors,
                weights=request.weights,
                pair_scores=pair_scores,
                container=container.name,
            )
            if isinstance(chosen, Misfit):
                return chosen
            shares = tuple(_share(state, asked) for state in chosen)
            held[asked.vendor][place] = shares
            taken.extend(((asked.vendor, share.uuid), share.memory_mib, share.cores) for share in shares)
        account.add(container.kind, taken)
        if container.kind is not ContainerKind.INIT:
            for slot, memory_mib, cores in taken:
                running[slot] = charged(running[slot], memory_mib, cores)
    charges, running_charges = account.charges()
    return NodeFit(
        assignments=tuple(_assignment(request, vendor, shares) for vendor, shares in held.items()),
        charges=charges,
        running_charges=running_charges,
    )


def charged(state: DeviceState, memory_mib: int, cores: int) -> DeviceState:
    """The device with one more share on it."""
    return dataclasses.replace(
        state,
        used_shares=state.used_shares + 1,
        used_memory_mib=state.used_memory_mib + memory_mib,
        used_cores=state.used_cores + cores,
    )


def _share(state: DeviceState, request: DeviceRequest) -> DeviceShare:
    memory_mib = request.memory_on(state.device.memory_mib)
    return DeviceShare(uuid=state.device.uuid, type=state.vendor, memory_mib=memory_mib, cores=request.cores)


def _assignment(request: PodRequest, vendor: str, shares: dict[int, tuple[DeviceShare, ...]]) -> VendorAssignment:
    return VendorAssignment(
        vendor=vendor,
        containers=tuple(
            ContainerShares(container=container.name, kind=container.kind, shares=shares.get(place, ()))
            for place, container in enumerate(request.containers)
        ),
    )

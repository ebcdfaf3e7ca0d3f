"""Which of a refusal's reasons are its cause: those without which the pod could be placed. Pure.

A node that could not take the pod even when it is empty, healthy and served is no cause, whatever state it is in now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from hami_devices.catalog import Catalog
from hami_devices.fit import fit_node
from hami_devices.model import UNRESOLVABLE, DeviceState, PodRequest, Reason
from hami_devices.reasons import Misfit
from hami_devices.rejections import Rejection, read_rejection
from hami_protocol.events import NodeShortfall
from hami_protocol.inventory import Inventory

_SELECTED: Final = frozenset({Reason.TYPE, Reason.UUID})
_OF_NODE: Final = frozenset({Reason.UNAVAILABLE, Reason.AGENT, Reason.ALLOCATABLE, Reason.FENCED})


class NodeCards(Struct, frozen=True, kw_only=True):
    """A node's cards, as they would be without any pod."""

    cards: tuple[DeviceState, ...]
    dead: frozenset[str] = frozenset()
    """Vendors whose agent does not report."""


def cards_of(inventory: Inventory, catalog: Catalog) -> dict[str, NodeCards]:
    """The cards of ``inventory`` by node, without what is charged on them."""
    found: dict[str, NodeCards] = {}
    for node in inventory.nodes:
        groups = [(vendor.name, group) for group in node.device_groups if (vendor := catalog.by_device_type(group.device_type)) is not None]
        cards = tuple(DeviceState(device=device, vendor=name) for name, group in groups for device in group.devices)
        found[node.name] = NodeCards(cards=cards, dead=frozenset(name for name, group in groups if not group.alive))
    return found


def blocking(
    rejections: Sequence[Rejection], nearest: Sequence[NodeShortfall], request: PodRequest, nodes: Mapping[str, NodeCards] | None
) -> frozenset[Reason]:
    """The reasons that are causes.

    Args:
        rejections: why nodes were rejected.
        nearest: the nodes that come nearest, the nearest first.
        request: what the pod asks.
        nodes: the cluster's cards; None where they are not known.
    """
    if not rejections:
        return frozenset()
    if any(Reason.QUOTA in each.cards for each in rejections):
        return frozenset({Reason.QUOTA})
    if nodes is None:
        return _without_cards(rejections, nearest)
    vendors = {asked.vendor for container in request.containers for asked in container.requests}
    having = {name: node for name, node in nodes.items() if vendors & {card.vendor for card in node.cards}}
    if not having:
        return _without_cards(rejections, nearest)
    alone = {name: fit_node(tuple(map(_empty, node.cards)), request) for name, node in having.items()}
    never = [fit for fit in alone.values() if isinstance(fit, Misfit)]
    if len(never) == len(having):
        return _of_empty(never)
    dead = any(vendors & having[name].dead for name, fit in alone.items() if not isinstance(fit, Misfit))
    near = [each for each in nearest if not isinstance(alone.get(each.node), Misfit | None)]
    return _of_capable(rejections, never, near, dead=dead) or _without_cards(rejections, nearest)


def _of_empty(never: Iterable[Misfit]) -> frozenset[Reason]:
    """Why no node could take the pod even when it is empty; annotations count only where no card that they accept is there."""
    reasons = {reason for misfit in never for reason in _deciding(misfit)} - {Reason.UNREGISTERED}
    return frozenset(reasons - _SELECTED or reasons) or frozenset({Reason.UNREGISTERED})


def _of_capable(
    rejections: Iterable[Rejection], never: Iterable[Misfit], near: Iterable[NodeShortfall], *, dead: bool
) -> frozenset[Reason]:
    """What keeps the pod from nodes that could take it. Nodes that never could are subtracted from the counts of their own reason."""
    hopeless: dict[Reason, int] = {}
    for misfit in never:
        for reason in _deciding(misfit):
            hopeless[reason] = hopeless.get(reason, 0) + 1
    counts: dict[Reason, int] = {}
    for rejection in rejections:
        for reason in rejection.deciding:
            counts[reason] = counts.get(reason, 0) + rejection.nodes
    left = {reason for reason, count in counts.items() if count > hopeless.get(reason, 0)}
    left |= {reason for each in near if (read := read_rejection(each.reason, 1)) is not None for reason in read.deciding}
    left -= UNRESOLVABLE
    return frozenset(left if dead else left - {Reason.UNAVAILABLE})


def _without_cards(rejections: Sequence[Rejection], nearest: Sequence[NodeShortfall]) -> frozenset[Reason]:
    """Where the cluster's cards are not known: what decides on most nodes with cards of the vendor, and on the nearest."""
    having = [each for each in rejections if Reason.UNREGISTERED not in each.cards] or list(rejections)
    of_cards = [each for each in having if _OF_NODE.isdisjoint(each.cards)] or having
    most = max(each.nodes for each in of_cards)
    found = {reason for each in of_cards if each.nodes == most for reason in each.deciding}
    first = next((read for each in nearest if (read := read_rejection(each.reason, 1)) is not None), None)
    if first is not None and _OF_NODE.isdisjoint(first.cards) and Reason.UNREGISTERED not in first.cards:
        found |= set(first.deciding)
    return frozenset(found)


def _deciding(misfit: Misfit) -> tuple[Reason, ...]:
    return Rejection(nodes=1, cards=misfit.counts).deciding


def _empty(card: DeviceState) -> DeviceState:
    return DeviceState(device=msgspec.structs.replace(card.device, healthy=True), vendor=card.vendor)

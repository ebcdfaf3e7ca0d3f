"""What the events of one node's devices change in the cards that the ledger knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from hami_billing.core.values import Card
from hami_protocol.events import DevicesReported, LivenessChanged


class Changes(NamedTuple):
    """What changes among one node's cards of one type."""

    ends: tuple[str, ...] = ()
    """Cards whose open row ends now."""
    begins: tuple[Card, ...] = ()


def apply(open_cards: Iterable[Card], event: DevicesReported | LivenessChanged, when: int) -> Changes:
    """Decide what ``event`` changes.

    Args:
        open_cards: the rows without an end of the event's node and device type.
        event: a report of the node's devices, or of whether the node registers them.
        when: when it happened.
    """
    before = {card.card: card for card in open_cards}
    if isinstance(event, LivenessChanged):
        return _changes(before, {uuid: replace(card, registers=event.alive) for uuid, card in before.items()}, when)
    now = {
        device.uuid: Card(
            card=device.uuid,
            node=event.node,
            device_type=event.device_type,
            model=device.type,
            memory_mib=device.memory_mib,
            cores=device.cores,
            slots=device.shares,
            healthy=device.healthy,
            began=when,
        )
        for device in event.devices
    }
    return _changes(before, now, when)


def _changes(before: Mapping[str, Card], now: Mapping[str, Card], when: int) -> Changes:
    ends = tuple(uuid for uuid, card in before.items() if uuid not in now or not _alike(card, now[uuid]))
    begins = tuple(replace(card, began=when) for uuid, card in now.items() if uuid not in before or uuid in ends)
    return Changes(ends, begins)


def _alike(one: Card, other: Card) -> bool:
    return replace(one, began=0) == replace(other, began=0)

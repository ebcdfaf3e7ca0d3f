"""What an event of the allocation log changes in the holds of its pod.

| event | pod unknown | pod holds devices | pod has ended |
|---|---|---|---|
| ``PodAllocating`` | opens holds | nothing: a pod is granted once | opens holds if the end was reported by another node |
| ``ShareResizeApplied``, later generation, same node | nothing | ends holds, opens others | nothing |
| ``PodReleased``, ``AllocationFailed``, same node | marks the pod as ended | ends holds | nothing |

An event that is delivered or published again therefore changes nothing, and the agent of another node cannot change a pod's bill.
A release may precede its grant where the log lost its tail: the late grant must not open a hold that nothing would end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hami_billing.core.values import Hold, PodState
from hami_devices.accounting import charges_of
from hami_protocol.events import AllocationFailed, Event, PodAllocating, PodReleased, ShareResizeApplied

_OF_A_POD: Final = (PodAllocating, ShareResizeApplied, PodReleased, AllocationFailed)


class Changes(NamedTuple):
    """What one event changes."""

    state: PodState
    ends: bool = False
    """The pod's open holds end when the event happened."""
    opens: tuple[Hold, ...] = ()


def apply(state: PodState | None, event: Event, when: int) -> Changes | None:
    """Decide what ``event`` changes; None for nothing.

    Args:
        state: what is known of the event's pod, None for nothing.
        event: an event of the allocation log.
        when: when it happened.
    """
    holds = state is not None and not state.ended and state.node == event.node if isinstance(event, _OF_A_POD) else False
    generation = state.generation if state else 0
    match event:
        case PodAllocating() if state is None or (state.ended and state.node != event.node):
            return Changes(PodState(node=event.node), opens=_holds(event, when))
        case ShareResizeApplied() if holds and event.generation > generation:
            resized = PodState(node=event.node, generation=event.generation)
            return Changes(resized, ends=True, opens=_holds(event, when))
        case PodReleased() | AllocationFailed() if state is None or holds:
            return Changes(PodState(node=event.node, generation=generation, ended=True), ends=holds)
    return None


def _holds(event: PodAllocating | ShareResizeApplied, when: int) -> tuple[Hold, ...]:
    """What the pod holds once its init containers are over."""
    return tuple(
        Hold(
            uid=event.pod.uid,
            namespace=event.pod.namespace,
            pod=event.pod.name,
            node=event.node,
            vendor=charge.vendor,
            card=charge.uuid,
            slots=charge.shares,
            memory_mib=charge.memory_mib,
            cores=charge.cores,
            began=when,
        )
        for charge in charges_of(event.assignments)[1]
        if charge.shares
    )
